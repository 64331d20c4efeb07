package target_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// pausing is a Protector whose flows have no security association until that was looked at often enough,
// once their initiator is there.
type pausing struct {
	transport.Protector
	begun atomic.Bool
	looks atomic.Int32
}

func (p *pausing) Admit(ctx context.Context, f transport.Flow, outgoing bool, c transport.Monitored) (transport.Protection, error) {
	q, err := p.Protector.Admit(ctx, f, outgoing, c)
	return pausedProtection{q, p}, err
}

type pausedProtection struct {
	transport.Protection
	by *pausing
}

const manyLooks = 20

func (p pausedProtection) Paused() bool { return !p.by.begun.Load() || p.by.looks.Add(1) < manyLooks }

// TestSilenceOverRDMAIsNotJudgedWithoutAnSA: however long an association is away, its session is neither
// asked whether it is there nor ended.
func TestSilenceOverRDMAIsNotJudgedWithoutAnSA(t *testing.T) {
	for _, w := range []way{{name: "RDMA mode", connect: inRDMA(isertest.Options{IRD: 8, Invalidates: true})}, {name: "streaming mode", connect: fromStream}} {
		t.Run(w.name, func(t *testing.T) {
			dev, err := verbs.Open(verbs.Config{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { dev.Close() })
			ulp, err := dev.NewULP("target", verbs.ULPConfig{})
			if err != nil {
				t.Fatal(err)
			}
			p := &pausing{Protector: transport.LoopbackOnly()}
			s := serveOn(t, target.Config{Ping: 10 * time.Millisecond}, nil, func(ctx context.Context, srv *target.Server) (string, func() error) {
				ln, err := dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: &transport.Config{Protector: p}, Streaming: true})
				if err != nil {
					t.Fatal(err)
				}
				return ln.Addr().String(), func() error { return srv.ServeRDMA(ctx, ln, ulp) }
			}, unit{size: 1 << 20})
			c := w.connect(t, s, 1)
			c.ready()
			p.begun.Store(true)
			h, _ := c.w.next()
			if n, err := iscsi.ParseNOPIn(&h); h.Opcode() != iscsi.OpNOPIn || err != nil || n.TTT == iscsi.NoTag {
				t.Errorf("%v, %v: %+v", h.Opcode(), err, n)
			}
			if n := p.looks.Load(); n < manyLooks {
				t.Errorf("it is asked after %d looks", n)
			}
		})
	}
}
