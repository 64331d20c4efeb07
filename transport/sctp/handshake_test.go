package sctp

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

// wires are a network in memory between endpoints, for tests in a bubble of
// synctest, whose clock runs when all wait.
type wires struct {
	mu    sync.Mutex
	ends  map[netip.AddrPort]*wire
	rnd   *rand.Rand
	loss  int // percent
	delay time.Duration
	drop  func(from, to netip.AddrPort, p packet) bool
	alter func(from netip.AddrPort) netip.AddrPort // as a NAT does
}

type wire struct {
	w    *wires
	addr netip.AddrPort
	in   chan letter
	done chan struct{}
	once sync.Once
}

type letter struct {
	from netip.AddrPort
	p    packet
}

func newWires(seed uint64) *wires {
	return &wires{ends: make(map[netip.AddrPort]*wire), rnd: rand.New(rand.NewPCG(seed, 0)), delay: time.Millisecond}
}

// endpoint makes an endpoint on the network.
func (w *wires) endpoint(addr string, cfg Config) *Endpoint {
	k := &wire{w: w, addr: netip.MustParseAddrPort(addr), in: make(chan letter, 10000), done: make(chan struct{})}
	w.mu.Lock()
	w.ends[k.addr] = k
	w.mu.Unlock()
	if cfg.Admit == nil {
		cfg.Admit = anyone
	}
	return newEndpoint(k, cfg)
}

func (k *wire) send(to netip.AddrPort, s *sender) error {
	w := k.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range s.batch.packets {
		p := append(packet(nil), s.batch.packets[i]...)
		if w.rnd.IntN(100) < w.loss || w.drop != nil && w.drop(k.addr, to, p) {
			continue
		}
		from := k.addr
		if w.alter != nil {
			from = w.alter(from)
		}
		time.AfterFunc(w.delay, func() {
			w.mu.Lock()
			other := w.ends[to]
			w.mu.Unlock()
			if other != nil {
				select {
				case other.in <- letter{from, p}:
				case <-other.done:
				}
			}
		})
	}
	return nil
}

func (k *wire) read(r *demux) error {
	for {
		select {
		case l := <-k.in:
			r.now = r.e.now()
			r.packet(l.from, l.p)
			r.finish()
		case <-k.done:
			return nil
		}
	}
}

func (k *wire) local() netip.AddrPort              { return k.addr }
func (k *wire) recvBuffer() int                    { return 1 << 20 }
func (k *wire) mtu(netip.Addr, netip.AddrPort) int { return 0 }
func (k *wire) close() {
	k.once.Do(func() { close(k.done) })
	k.w.mu.Lock()
	if k.w.ends[k.addr] == k {
		delete(k.w.ends, k.addr)
	}
	k.w.mu.Unlock()
}

const (
	addrA = "192.0.2.1:9899"
	addrB = "192.0.2.2:9899"
)

// bubbleInbox is an inbox on the clock of a bubble.
func bubbleInbox() *assoctest.Inbox {
	b := assoctest.NewInbox()
	b.Patience = time.Hour
	return b
}

// pass lets time pass in a bubble.
func pass(d time.Duration) { <-time.After(d) }

func to(b *assoctest.Inbox) func(*Assoc) assoc.Receiver {
	return func(*Assoc) assoc.Receiver { return b }
}

// RFC 9260 section 5.1: the handshake gets through a network that loses a third
// of the packets, and the association then works.
func TestHandshakeOverALossyNetwork(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			w := newWires(seed)
			w.loss = 33
			in, out := bubbleInbox(), bubbleInbox()
			a := w.endpoint(addrA, Config{Params: assoc.Params{MaxInitRetrans: 50, AssocMaxRetrans: 100}})
			b := w.endpoint(addrB, Config{Params: assoc.Params{AssocMaxRetrans: 100}, Accept: to(in)})
			defer b.Close()
			defer a.Close()
			x, err := a.Dial(t.Context(), netip.MustParseAddrPort(addrB), DialConfig{Receiver: to(out)})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := x.TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}}); err != nil {
				t.Fatal(err)
			}
			in.Wait(t, "the message", func() bool { return in.Total == 1 })
			if _, err := b.Accept(t.Context()); err != nil {
				t.Error(err)
			}
			if s := b.Stats(); s.Assocs != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// RFC 9260 section 5.2.1: both ends dial at the same time, with the same ports,
// and get one association, whatever gets lost.
func TestCollision(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			w := newWires(seed)
			if seed > 0 {
				w.loss = 20
			}
			in := [2]*assoctest.Inbox{bubbleInbox(), bubbleInbox()}
			cfg := Config{Params: assoc.Params{MaxInitRetrans: 50, AssocMaxRetrans: 100}}
			e := [2]*Endpoint{w.endpoint(addrA, cfg), w.endpoint(addrB, cfg)}
			defer e[0].Close()
			defer e[1].Close()
			var wg sync.WaitGroup
			var x [2]*Assoc
			for i := range e {
				wg.Go(func() {
					pass(time.Duration(int(seed)%4*i) * 300 * time.Microsecond)
					var err error
					x[i], err = e[i].Dial(t.Context(), e[1-i].Addr(), DialConfig{Receiver: to(in[i]), LocalPort: 7, RemotePort: 7})
					if err != nil {
						t.Error(err)
					}
				})
			}
			if wg.Wait(); t.Failed() {
				return
			}
			for i := range e {
				if _, err := x[i].TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}}); err != nil {
					t.Fatal(err)
				}
				in[1-i].Wait(t, "the message", func() bool { return in[1-i].Total == 1 })
			}
			for i := range e {
				if s := e[i].Stats(); s.Assocs != 1 || x[i].State() != "ESTABLISHED" {
					t.Errorf("end %d: %+v, %s", i, s, x[i].State())
				}
			}
		})
	}
}

// RFC 9260 section 5.2.4 A: a peer that has forgotten everything restarts the
// association; the old one ends and says so.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		in := bubbleInbox()
		b := w.endpoint(addrB, Config{Accept: to(in)})
		defer b.Close()
		dial := func(e *Endpoint) *Assoc {
			x, err := e.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(bubbleInbox()), LocalPort: 7})
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		a := w.endpoint(addrA, Config{})
		dial(a)
		old, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Second) // until nothing is on its way
		w.mu.Lock()
		w.loss = 100 // the host dies: nobody is told
		w.mu.Unlock()
		a.Close()
		w.mu.Lock()
		w.loss = 0
		w.mu.Unlock()
		a = w.endpoint(addrA, Config{})
		defer a.Close()
		x := dial(a)
		again, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-old.Done()
		if !errors.Is(old.Err(), assoc.ErrRestarted) {
			t.Errorf("the old association: %v", old.Err())
		}
		if _, err := x.TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}}); err != nil {
			t.Fatal(err)
		}
		in.Wait(t, "the message", func() bool { return in.Total == 1 })
		if s := b.Stats(); s.Assocs != 1 || again.State() != "ESTABLISHED" {
			t.Errorf("%+v", s)
		}
	})
}

// RFC 6951 section 5.4: a NAT gives the peer another port, and it goes on.
func TestPeerMovesToAnotherPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		in, out := bubbleInbox(), bubbleInbox()
		a := w.endpoint(addrA, Config{})
		b := w.endpoint(addrB, Config{Accept: to(in)})
		defer b.Close()
		defer a.Close()
		x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(out)})
		if err != nil {
			t.Fatal(err)
		}
		y, err := b.Accept(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		pass(time.Second) // until nothing is on its way
		moved := netip.MustParseAddrPort("192.0.2.1:1234")
		w.mu.Lock()
		w.ends[moved] = w.ends[a.Addr()]
		w.alter = func(from netip.AddrPort) netip.AddrPort {
			if from == a.Addr() {
				return moved
			}
			return from
		}
		w.mu.Unlock()
		for i, s := range []*Assoc{x, y} {
			if _, err := s.TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}}); err != nil {
				t.Fatal(err)
			}
			box := []*assoctest.Inbox{in, out}[i]
			box.Wait(t, "the message", func() bool { return box.Total == 1 })
		}
		if y.Remote() != moved {
			t.Errorf("the peer is at %v", y.Remote())
		}
		w.mu.Lock()
		delete(w.ends, moved)
		w.mu.Unlock()
	})
}

// A packet from another port that finds an association just before it ends does not keep it in
// the endpoint, where it would be in the way of the peer's next one.
func TestAssociationThatHasEndedDoesNotMove(t *testing.T) {
	x := connect(t, "127.0.0.1", Config{}, Config{})
	moved := netip.AddrPortFrom(x.b.Remote().Addr(), x.b.Remote().Port()^1)
	x.b.Abort("")
	<-x.b.Done()
	x.b.mu.Lock()
	x.b.movedLocked(moved)
	x.b.mu.Unlock()
	x.eb.mu.RLock()
	defer x.eb.mu.RUnlock()
	if len(x.eb.byAddr) != 0 {
		t.Errorf("the endpoint has it: %v", x.eb.byAddr)
	}
}

// RFC 9260 sections 8.1 and 8.2: a silent peer is noticed, first as a path that
// is down, then for good, without DATA by heartbeats and with it.
func TestSilentPeer(t *testing.T) {
	for _, sends := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWires(1)
			in, out := bubbleInbox(), bubbleInbox()
			a := w.endpoint(addrA, Config{})
			b := w.endpoint(addrB, Config{Accept: to(in)})
			defer b.Close()
			defer a.Close()
			x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(out)})
			if err != nil {
				t.Fatal(err)
			}
			pass(10 * time.Minute) // idle, with heartbeats
			if x.State() != "ESTABLISHED" || x.Stats().PacketsOut < 15 {
				t.Fatalf("after 10 idle minutes: %s, %+v", x.State(), x.Stats())
			}
			w.mu.Lock()
			w.loss = 100
			w.mu.Unlock()
			if sends {
				if _, err := x.TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}}); err != nil {
					t.Fatal(err)
				}
			}
			<-x.Done()
			if !errors.Is(x.Err(), assoc.ErrPeerUnreachable) {
				t.Error(x.Err())
			}
			out.Lock()
			defer out.Unlock()
			k := slices.DeleteFunc(slices.Clone(out.Events), func(e assoc.Event) bool { return e.Kind == assoc.EventMTU })
			if len(k) != 3 || k[1].Kind != assoc.EventPathDown || k[2].Kind != assoc.EventDown || !errors.Is(k[2].Err, assoc.ErrPeerUnreachable) {
				t.Errorf("events %v", k)
			}
		})
	}
}

// A path that comes back is reported, and what waited gets through.
func TestPathComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		in, out := bubbleInbox(), bubbleInbox()
		cfg := Config{Params: assoc.Params{AssocMaxRetrans: 100, RTOMax: 3 * time.Second}}
		a := w.endpoint(addrA, cfg)
		cfg.Accept = to(in)
		b := w.endpoint(addrB, cfg)
		defer b.Close()
		defer a.Close()
		x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(out)})
		if err != nil {
			t.Fatal(err)
		}
		setLoss := func(n int) {
			w.mu.Lock()
			w.loss = n
			w.mu.Unlock()
		}
		setLoss(100)
		x.TrySend([]assoc.Outgoing{{Bufs: [][]byte{[]byte("hello")}}})
		pass(time.Minute)
		setLoss(0)
		in.Wait(t, "the message", func() bool { return in.Total == 1 })
		out.Wait(t, "the path", func() bool { return len(out.Events) == 3 && out.Events[2].Kind == assoc.EventPathUp })
	})
}

// Dial fails in finite time, for the reason that there is.
func TestDialFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		a := w.endpoint(addrA, Config{Params: assoc.Params{Adaptation: 1}})
		defer a.Close()
		dial := func(ctx context.Context) error {
			_, err := a.Dial(ctx, netip.MustParseAddrPort(addrB), DialConfig{Receiver: to(bubbleInbox())})
			var ae *assoc.Error
			if !errors.As(err, &ae) || ae.Op != "dial" || ae.Remote != netip.MustParseAddrPort(addrB) {
				t.Errorf("%v", err)
			}
			return err
		}
		if err := dial(t.Context()); !errors.Is(err, assoc.ErrPeerUnreachable) {
			t.Errorf("nobody there: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := dial(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("out of time: %v", err)
		}
		cancel()
		b := w.endpoint(addrB, Config{})
		if err := dial(t.Context()); !errors.Is(err, &assoc.AbortError{}) {
			t.Errorf("nobody listens: %v", err)
		}
		b.Close()
		// RFC 5043 section 7.1: another indication, or none.
		for _, other := range []uint32{0, 2} {
			b = w.endpoint(addrB, Config{Params: assoc.Params{Adaptation: other}, Accept: to(bubbleInbox())})
			err := dial(t.Context())
			switch {
			case other == 0 && !errors.Is(err, assoc.ErrAdaptation): // the peer minds nothing: we do
				t.Errorf("no indication: %v", err)
			case other != 0 && !errors.Is(err, &assoc.AbortError{Cause: assoc.Cause{Code: assoc.CauseUserAbort}}):
				t.Errorf("another indication: %v", err)
			}
			synctest.Wait()
			pass(time.Second)
			if s := b.Stats(); s.Assocs != 0 {
				t.Errorf("indication %d: %+v", other, s)
			}
			b.Close()
		}
		if s := a.Stats(); s.Assocs != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// An association that is being dialled has begun when its Receiver is made: a late packet of the
// one before it, between the same ports, does not end it, and the end of the endpoint does, with
// the reason.
func TestAssociationHasBegunWhenItsReceiverIsMade(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWires(1)
		a, b := w.endpoint(addrA, Config{}), w.endpoint(addrB, Config{Accept: to(bubbleInbox())})
		defer b.Close()
		defer a.Close()
		x, err := a.Dial(t.Context(), b.Addr(), DialConfig{LocalPort: 7, Receiver: func(*Assoc) assoc.Receiver {
			p := packet(appendAbort(appendHeader(nil, DefaultPort, 7, 0x1234), flagT, assoc.Cause{}))
			p.seal()
			r := newDemux(a)
			r.now = a.now()
			r.packet(b.Addr(), p)
			r.finish()
			return bubbleInbox()
		}})
		if err != nil {
			t.Fatal(err)
		}
		if st := x.State(); st != "ESTABLISHED" {
			t.Error(st)
		}
		closed := make(chan struct{})
		_, err = a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: func(*Assoc) assoc.Receiver {
			go func() {
				defer close(closed)
				a.Close()
			}()
			synctest.Wait() // until it waits for the end of this one
			return bubbleInbox()
		}})
		if !errors.Is(err, &assoc.AbortError{Local: true, Cause: assoc.Cause{Code: assoc.CauseUserAbort}}) {
			t.Errorf("the endpoint is closed: %v", err)
		}
		<-closed
	})
}

// RFC 9260 section 9.2: what was queued arrives before the end, whichever end
// begins, or both; nothing more may be sent.
func TestShutdown(t *testing.T) {
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) {
			w := newWires(seed)
			w.loss = int(seed) % 3 * 10
			in, out := bubbleInbox(), bubbleInbox()
			cfg := Config{Params: assoc.Params{AssocMaxRetrans: 100, MaxInitRetrans: 50}}
			a := w.endpoint(addrA, cfg)
			cfg.Accept = to(in)
			b := w.endpoint(addrB, cfg)
			defer b.Close()
			defer a.Close()
			x, err := a.Dial(t.Context(), b.Addr(), DialConfig{Receiver: to(out)})
			if err != nil {
				t.Fatal(err)
			}
			y, err := b.Accept(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			ms := make([]assoc.Outgoing, 200)
			for i := range ms {
				ms[i].Bufs = [][]byte{make([]byte, 500)}
			}
			for _, s := range []*Assoc{x, y} {
				if n, err := s.TrySend(ms); n != len(ms) || err != nil {
					t.Fatal(n, err)
				}
			}
			both := seed%2 == 0
			var wg sync.WaitGroup
			wg.Go(func() {
				if err := x.Shutdown(t.Context()); err != nil && !errors.Is(err, assoc.ErrShutdown) && !(w.loss > 0 && errors.Is(err, assoc.ErrPeerUnreachable)) {
					t.Error(err)
				}
			})
			if both {
				wg.Go(func() { y.Shutdown(t.Context()) })
			}
			wg.Wait()
			<-y.Done()
			if in.Total != 200 || both && out.Total != 200 {
				t.Errorf("%d and %d messages came", in.Total, out.Total)
			}
			if _, err := x.TrySend(ms[:1]); !errors.Is(err, assoc.ErrShutdown) && !errors.Is(err, assoc.ErrPeerUnreachable) {
				t.Errorf("a message after the shutdown: %v", err)
			}
			if n := a.Stats().Assocs + b.Stats().Assocs; n != 0 {
				t.Errorf("%d associations are left", n)
			}
		})
	}
}
