package carrier

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

func (p autoPeer) Lifetime() context.Context { return context.Background() }

// TestStreamsLeaveACarrierThatThePeerHasNoMore: they wait for an SA that the peer refuses, and end once the peer itself
// says that it has no such carrier, not before, and not without the refusal.
func TestStreamsLeaveACarrierThatThePeerHasNoMore(t *testing.T) {
	fabric := verbstest.New()
	qp := stream(t, fabric.Host("alpha"), fabric.Host("beta"))
	var refused, has atomic.Bool
	var questions atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	looks, p := make(chan struct{}), newAutoPeer()
	var running sync.WaitGroup
	c := New(Config{Log: slog.New(slog.DiscardHandler), Avoid: time.Millisecond, Kernel: func() error { return ksctp.ErrUnavailable },
		Run: func(f func(context.Context)) { running.Go(func() { f(ctx) }) },
		Peers: func() []Peer {
			select {
			case looks <- struct{}{}:
			case <-ctx.Done():
			}
			return []Peer{p}
		},
		Streams: func(Peer) []*verbs.QP { return []*verbs.QP{qp} },
		Refused: func(Peer) bool { return refused.Load() },
		Hello: func(_ context.Context, _ *local.Consumer, _ Peer, k transport.Kind) (probe.Transports, error) {
			if k != transport.TCP {
				t.Errorf("asked over %v, which the peer refuses", k)
			}
			questions.Add(1)
			if has.Load() {
				return probe.Transports(0).With(transport.TCP), nil
			}
			return 0, nil
		},
	})
	running.Go(func() { c.Reconsider(ctx) })
	defer func() {
		cancel()
		running.Wait()
	}()
	fabric.Pause(true)
	for range 5 {
		<-looks
	}
	if n := questions.Load(); n != 0 {
		t.Errorf("the peer is asked %d times though it refuses nothing", n)
	}
	has.Store(true)
	refused.Store(true)
	for questions.Load() < 2 { // the first is answered once the second is asked
		<-looks
	}
	if err := qp.Err(); err != nil {
		t.Fatalf("ended though the peer has the carrier: %v", err)
	}
	has.Store(false)
	for qp.Err() == nil {
		<-looks
	}
	if err := qp.Err(); !strings.Contains(err.Error(), "peer beta has no tcp for this host any more") {
		t.Errorf("%v", err)
	}
}

// stream is a stream between two hosts of a fabric.
func stream(t *testing.T, from, to *verbstest.Host) *verbs.QP {
	t.Helper()
	device := func(name string) (*verbs.Device, *verbs.PD, verbs.QPConfig) {
		dev := must(verbs.Open(verbs.Config{}))
		t.Cleanup(func() { dev.Close() })
		ulp := must(dev.NewULP(name, verbs.ULPConfig{}))
		cq := must(ulp.CreateCQ(16, nil))
		return dev, must(ulp.AllocPD()), verbs.QPConfig{SendCQ: cq, RecvCQ: cq, MaxSend: 4, MaxRecv: 4}
	}
	dev, pd, cfg := device("to")
	ln := must(dev.Listen(t.Context(), to.Addr(7471), verbs.ListenConfig{Transport: to.Transport()}))
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		must(must(ln.Accept(t.Context())).Accept(t.Context(), pd, verbs.AcceptConfig{QP: cfg}))
	}()
	_, fromPD, fromCfg := device("from")
	qp := must(fromPD.Dial(t.Context(), verbs.DialConfig{Remote: to.Addr(7471), Transport: from.Transport(), QP: fromCfg}))
	<-accepted
	return qp
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
