package verbs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// The peers of these tests are the addresses of this host.
var (
	evilHost   = netip.MustParseAddr("127.0.0.2")
	honestHost = netip.MustParseAddr("127.0.0.1")
)

func byAddress() transport.Protector {
	return transport.Plaintext(slog.New(slog.DiscardHandler), evilHost, honestHost)
}

func identity(a netip.Addr) transport.Identity { return transport.Identity("plaintext:" + a.String()) }

// A peer that connects and says nothing fills its part of the half-open streams and
// not the others' (R19): what is too much is reset and reported, others get in at
// once, and all is given back.
func TestSilentConnectionsOfAPeer(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{Limits: Limits{HalfOpen: 8}})
	a.tc = &transport.Config{Protector: byAddress()}
	b.tc = a.tc
	failed := make(chanOfErrors, 100)
	ln, err := b.dev.Listen(testContext(t), netip.AddrPortFrom(honestHost, 0), ListenConfig{Transport: b.tc, Setup: Setup{Timeout: time.Minute}, OnFailed: failed.put})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const most = 6 // two are kept for another peer
	var conns []net.Conn
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: evilHost.AsSlice()}}
	for range 3 * most {
		// One that is reset may fail here already.
		if c, err := dialer.DialContext(testContext(t), "tcp", ln.Addr().String()); err == nil {
			defer c.Close()
			conns = append(conns, c)
		}
	}
	for range 2 * most {
		var q *QuotaError
		if err := <-failed; !errors.As(err, &q) || q.Resource != "half-open streams" || q.Principal != "peer "+string(identity(evilHost)) {
			t.Errorf("a connection is refused with %v", err)
		}
	}
	if n := b.dev.Usage().HalfOpen; n != most {
		t.Errorf("%d half-open streams, want %d", n, most)
	}
	for range 2 * most {
		if ev := nextEvent(t, b.dev); ev.Kind != EventQuotaExceeded || ev.Peer != identity(evilHost) {
			t.Errorf("event %v of %q", ev.Kind, ev.Peer)
		}
	}
	acceptAll(t, b, ln)
	if _, err := a.dial(ln.Addr()); err != nil {
		t.Errorf("another peer does not get in: %v", err)
	}
	for _, c := range conns {
		c.Close()
	}
	wantHalfOpen(t, b.dev, 0)
	for _, u := range b.dev.Resources().Peers {
		if u.Name == string(identity(evilHost)) {
			t.Errorf("an account is left of the peer that has gone: %+v", u)
		}
	}
}

// wantHalfOpen waits until n streams are half-open.
func wantHalfOpen(t *testing.T, d *Device, n int64) {
	t.Helper()
	ctx := testContext(t)
	for d.Usage().HalfOpen != n {
		if ctx.Err() != nil {
			t.Fatalf("%d are half-open, want %d", d.Usage().HalfOpen, n)
		}
		runtime.Gosched()
	}
}

type chanOfErrors chan error

func (c chanOfErrors) put(_ transport.Flow, err error) { c <- err }

// Requests count as half-open until they are answered, whichever way.
func TestRequestsAreHalfOpenUntilAnswered(t *testing.T) {
	overEachCarrier(t, Config{}, Config{}, func(t *testing.T, a, b *end) {
		ln := listen(t, b, ListenConfig{})
		for name, answer := range map[string]func(r *ConnRequest) error{
			"accept": func(r *ConnRequest) error {
				qp, err := r.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg})
				b.qp = qp
				return err
			},
			"reject":        func(r *ConnRequest) error { return r.Reject(testContext(t), nil) },
			"reject depths": func(r *ConnRequest) error { return r.RejectDepths(testContext(t), nil, 1, 1) },
			"no room, then reject": func(r *ConnRequest) error {
				cfg := b.cfg
				cfg.MaxSend = -1
				if _, err := r.Accept(testContext(t), b.pd, AcceptConfig{QP: cfg}); err == nil {
					return errors.New("a queue pair without a send queue is made")
				}
				if n := b.dev.Usage().HalfOpen; n == 0 {
					return errors.New("the request counts no more, though it is not answered")
				}
				return r.Reject(testContext(t), nil)
			},
			"failed": func(r *ConnRequest) error {
				if _, err := r.Accept(testContext(t), b.pd, AcceptConfig{QP: b.cfg, PrivateData: make([]byte, 5000)}); err == nil {
					return errors.New("private data of 5,000 bytes are taken")
				}
				return nil
			},
		} {
			dialled := make(chan *QP, 1)
			go func() {
				dial := DialConfig{Remote: ln.Addr(), Transport: a.tc, Setup: Setup{Plain: true}} // so it does not try again
				dial.QP = a.cfg
				qp, _ := a.pd.Dial(testContext(t), dial)
				dialled <- qp
			}()
			r, err := ln.Accept(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if n := b.dev.Usage().HalfOpen; n < 1 {
				t.Errorf("%s: %d half-open before the answer", name, n)
			}
			if err := answer(r); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if qp := <-dialled; qp != nil {
				if n := b.dev.Usage().HalfOpen; n != 0 {
					t.Errorf("%s: %d half-open while the stream is up", name, n)
				}
				qp.Abort(nil)
				<-b.qp.Done()
			}
			wantHalfOpen(t, b.dev, 0) // until an association has gone
		}
	})
}

// A session of a peer that has too much half-open is terminated, and its association
// goes on (RFC 5043 section 6.4).
func TestSessionsOfAPeerAreHalfOpen(t *testing.T) {
	x := newAttacker(t, 16)
	x.b.dev.SetPeerQuota(Quota{HalfOpen: 1})
	mux := x.assoc.Receiver().(*overhear)
	silent, err := transport.DialSCTP(testContext(t), sctpLocal, x.tc, muxOf)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	wantHalfOpen(t, x.b.dev, 1)
	if _, err := mux.Initiate(testContext(t), sctpadapt.Session{}); !errors.Is(err, sctpadapt.ErrTerminated) {
		t.Errorf("a session beyond the quota: %v", err)
	}
	x.bystander.wantAlive(x.target)
	silent.Close()
	wantHalfOpen(t, x.b.dev, 0)
	if _, err := mux.Initiate(testContext(t), sctpadapt.Session{}); err != nil {
		t.Errorf("a session within the quota: %v", err)
	}
}

// An association whose last stream is over counts again, and ends at once if its peer
// has too much half-open.
func TestAssociationWithoutStreamsIsHalfOpenAgain(t *testing.T) {
	x := newAttacker(t, 16)
	over := make(chan struct{})
	go func() {
		<-x.assoc.Done()
		close(over)
	}()
	x.b.dev.SetPeerQuota(Quota{HalfOpen: 1})
	silent, err := transport.DialSCTP(testContext(t), sctpLocal, x.tc, muxOf)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	wantHalfOpen(t, x.b.dev, 1)
	x.a.qp.Abort(nil)
	select {
	case <-over:
		var abort *assoc.AbortError
		if err := x.assoc.Err(); !errors.As(err, &abort) {
			t.Errorf("the association ended with %v", err)
		}
	case <-testContext(t).Done():
		t.Error("the association lives on")
	}
}

// waiter is a request of a peer.
type waiter struct {
	id      transport.Identity
	dropped bool
}

func (w *waiter) Flow() transport.Flow             { return transport.Flow{} }
func (w *waiter) Protection() transport.Protection { return fakeConn{w.id} }
func (w *waiter) privateData() []byte              { return nil }
func (w *waiter) depths() Depths                   { return Depths{} }
func (w *waiter) accept(context.Context, []byte, uint16, uint16) (*started, error) {
	return nil, io.EOF
}
func (w *waiter) reject(context.Context, []byte) error                       { return nil }
func (w *waiter) rejectDepths(context.Context, []byte, uint16, uint16) error { return nil }
func (w *waiter) drop()                                                      { w.dropped = true }

// In a full backlog the peer with the most gives way to others, its youngest request
// first, down to an even part, and to nobody with as many (R19).
func TestBacklogIsDividedAmongPeers(t *testing.T) {
	const most = 8
	b := newBacklog(most)
	refused := map[transport.Identity]int{}
	put := func(id transport.Identity, n int) {
		for i := range n {
			r := &ConnRequest{in: &waiter{id: id}}
			if out := b.put(r); out != nil {
				refused[out.Peer()]++
			} else if len(b.all) > most {
				t.Fatalf("%d wait, %d are possible (%d. of %s)", len(b.all), most, i, id)
			}
		}
	}
	for _, step := range []struct {
		id   transport.Identity
		n    int
		want map[transport.Identity]int // refused so far
	}{
		{"flood", 100, map[transport.Identity]int{"flood": 92}},
		{"a", 2, map[transport.Identity]int{"flood": 94}},
		{"flood", 10, map[transport.Identity]int{"flood": 104}},
		{"b", 2, map[transport.Identity]int{"flood": 106}},
		{"a", 5, map[transport.Identity]int{"flood": 107, "a": 4}}, // 3 to 3 to 2
	} {
		put(step.id, step.n)
		for id, n := range step.want {
			if refused[id] != n {
				t.Fatalf("after %d of %s: %v refused, want %v", step.n, step.id, refused, step.want)
			}
		}
	}
	var got []string
	for r := b.pop(); r != nil; r = b.pop() {
		got = append(got, string(r.Peer()))
	}
	if want := []string{"flood", "flood", "flood", "a", "a", "b", "b", "a"}; !slices.Equal(got, want) {
		t.Errorf("they are taken in the order %v, want %v", got, want)
	}
	if len(b.peers) != 0 {
		t.Errorf("of no request %v are left", b.peers)
	}
	last := &ConnRequest{in: &waiter{id: "a"}}
	b.put(last)
	if got := b.close(); !slices.Equal(got, []*ConnRequest{last}) {
		t.Errorf("its end returns %v", got)
	}
	if late := (&ConnRequest{in: &waiter{id: "a"}}); b.put(late) != late || b.pop() != nil {
		t.Error("a request is let in after the end")
	}
}

// All who wait for requests get theirs, however they come.
func TestBacklogWakesAllWhoWait(t *testing.T) {
	b := newBacklog(4)
	got := make(chan error)
	for range 3 {
		go func() {
			_, err := b.take(testContext(t), nil)
			got <- err
		}()
	}
	for i := range 3 {
		b.put(&ConnRequest{in: &waiter{id: transport.Identity(fmt.Sprint(i))}})
	}
	for range 3 {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	closed := make(chan struct{})
	close(closed)
	if _, err := b.take(t.Context(), closed); !errors.Is(err, ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.take(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}

// A ULP that dials where nobody answers uses up its own part, not that of others
// (R2): theirs connect, and all is given back.
func TestDialsOfAULPAreBounded(t *testing.T) {
	a, b := newEnd(t, Config{Limits: Limits{Dials: 8}}), newEnd(t, Config{})
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	flood, err := a.dev.NewULP("flood", ULPConfig{Trust: ST})
	if err != nil {
		t.Fatal(err)
	}
	pd, err := flood.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cfg := a.cfg
	if cfg.SendCQ, err = flood.CreateCQ(64, nil); err != nil {
		t.Fatal(err)
	}
	cfg.RecvCQ = cfg.SendCQ
	ctx, cancel := context.WithCancel(testContext(t))
	const attempts, most = 40, 8 - 8/guaranteedPart/3*2 // the rest is kept for the other ULP and a newcomer
	ends := make(chan error, attempts)
	for range attempts {
		go func() {
			_, err := pd.Dial(ctx, DialConfig{QP: cfg, Remote: silent.Addr().(*net.TCPAddr).AddrPort(), Transport: tcp, Setup: Setup{Timeout: time.Minute}})
			ends <- err
		}()
	}
	for range attempts - most {
		var q *QuotaError
		if err := <-ends; !errors.As(err, &q) || q.Resource != "streams being dialled" || q.Principal != "ULP flood" {
			t.Errorf("a dial too many: %v", err)
		}
	}
	if n := flood.Usage().Dials; n != most {
		t.Errorf("%d are being dialled, want %d", n, most)
	}
	ln := listen(t, b, ListenConfig{})
	acceptAll(t, b, ln)
	if _, err := a.dial(ln.Addr()); err != nil {
		t.Errorf("another ULP does not get through: %v", err)
	}
	cancel()
	for range most {
		if err := <-ends; !errors.Is(err, context.Canceled) {
			t.Errorf("a dial ends with %v", err)
		}
	}
	if n := a.dev.Usage().Dials; n != 0 {
		t.Errorf("%d are being dialled when all is over", n)
	}
}
