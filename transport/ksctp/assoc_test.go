package ksctp_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1")}

// RFC 5043 section 11.1: a peer without the indication, or with another, is no
// peer.
func TestIndicationIsDemandedByBothEnds(t *testing.T) {
	kernel(t)
	for _, c := range []struct {
		name         string
		dial, listen uint32
		dialFails    bool
	}{
		{"the listener gives none", 1, 0, true},
		{"the listener gives another", 1, 2, true},
		{"the dialler gives none", 0, 1, false},
		{"the dialler gives another", 2, 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := make(chan error, 1)
			l := listen(t, ksctp.Config{Params: assoc.Params{Adaptation: c.listen}, Local: loopback, Refused: func(_ netip.AddrPort, err error) { refused <- err }})
			a, err := ksctp.Dial(patient(t), ksctp.Config{Params: assoc.Params{Adaptation: c.dial}}, l.Addr())
			var wrong *assoc.AdaptationError
			if c.dialFails {
				if err == nil {
					a.Abort("")
				}
				if !errors.As(err, &wrong) || wrong.Want != c.dial || wrong.Peer != c.listen || wrong.None != (c.listen == 0) {
					t.Errorf("dial: %v", err)
				}
			} else {
				if err == nil { // it may be up for a moment, and only that
					a.Start(assoctest.NewInbox())
					<-a.Done()
					err = a.Err()
				}
				var abort *assoc.AbortError
				if !errors.As(err, &abort) || abort.Local || abort.Cause.Code != assoc.CauseUserAbort {
					t.Errorf("the dialler's end: %v, want an abort by the peer", err)
				}
			}
			if c.listen != 0 {
				if err := <-refused; !errors.As(err, &wrong) || wrong.Want != c.listen || wrong.Peer != c.dial || wrong.None != (c.dial == 0) {
					t.Errorf("refused: %v", err)
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if c.listen != 0 {
				if _, err := l.Accept(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("accept: %v", err)
				}
			}
		})
	}
}

func TestNobodyListens(t *testing.T) {
	kernel(t)
	l := listen(t, ksctp.Config{Local: loopback})
	at := l.Addr()
	l.Close()
	if _, err := l.Accept(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	_, err := ksctp.Dial(patient(t), ksctp.Config{}, at)
	var failed *assoc.Error
	if !errors.Is(err, syscall.ECONNREFUSED) || !errors.As(err, &failed) || failed.Remote != at {
		t.Errorf("dial: %v", err)
	}
}

func TestAddressesThatMakeNoSense(t *testing.T) {
	kernel(t)
	at := netip.MustParseAddrPort("127.0.0.1:7471")
	for name, f := range map[string]func() error{
		"no peer": func() error { _, err := ksctp.Dial(t.Context(), ksctp.Config{}); return err },
		"no port": func() error {
			_, err := ksctp.Dial(t.Context(), ksctp.Config{}, netip.AddrPortFrom(loopback[0], 0))
			return err
		},
		"different ports": func() error {
			_, err := ksctp.Dial(t.Context(), ksctp.Config{}, at, netip.MustParseAddrPort("127.0.0.2:1"))
			return err
		},
		"not of this host": func() error {
			_, err := ksctp.Dial(t.Context(), ksctp.Config{Local: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, at)
			return err
		},
		"any address": func() error {
			_, err := ksctp.Listen(t.Context(), ksctp.Config{Local: []netip.Addr{netip.IPv4Unspecified()}})
			return err
		},
		"nowhere": func() error { _, err := ksctp.Listen(t.Context(), ksctp.Config{}); return err },
		"large buffer": func() error {
			_, err := ksctp.Listen(t.Context(), ksctp.Config{Local: loopback, SendBuffer: 9 << 20})
			return err
		},
	} {
		var failed *assoc.Error
		if err := f(); !errors.As(err, &failed) {
			t.Errorf("%s: %v", name, err)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

func TestAbort(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{}, ksctp.Config{})
	x.a.Abort("no more of this")
	x.a.Abort("again")
	<-x.a.Done()
	<-x.b.Done()
	var abort *assoc.AbortError
	if err := x.b.Err(); !errors.As(err, &abort) || abort.Local || abort.Cause.Code != assoc.CauseUserAbort {
		t.Errorf("the peer's end: %v", err)
	}
	if err := x.a.Err(); !errors.As(err, &abort) || !abort.Local || !strings.Contains(err.Error(), "no more of this") {
		t.Errorf("this end: %v", err)
	}
	if e := x.rb.WaitEvent(t, assoc.EventDown); e.Err != x.b.Err() {
		t.Errorf("the event says %v, Err %v", e.Err, x.b.Err())
	}
	for _, a := range []*ksctp.Assoc{x.a, x.b} {
		if _, err := a.TrySend([]assoc.Outgoing{one(0, []byte("late"))}); !errors.As(err, &abort) {
			t.Errorf("send: %v", err)
		}
		if err := a.SendNow(one(0, []byte("late"))); !errors.As(err, &abort) {
			t.Errorf("send now: %v", err)
		}
		if _, err := a.Outq(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("what is queued: %v", err)
		}
		if err := a.Wait(t.Context()); err != nil {
			t.Errorf("wait: %v", err)
		}
		a.Release(1)
		a.Kick()
		a.LimitRTO(0)
		a.Stats()
		if _, err := a.Paths(); err == nil {
			t.Error("paths of an association that is over")
		}
	}
}

// Everything that was queued arrives before the association ends, and the
// other end may not queue any more.
func TestShutdownDeliversWhatWasQueued(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{}, ksctp.Config{})
	x.rb.Set(func() { x.rb.Quiet = true })
	p := make([]byte, 1400)
	sent := 0
	for range 3 { // until the kernel is full
		n, err := x.a.TrySend(repeat(one(1, p), 10000))
		if err != nil {
			t.Fatal(err)
		}
		sent += n
	}
	for range 5 {
		if err := x.a.SendNow(one(2, p)); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	if err := x.a.Shutdown(patient(t)); err != nil {
		t.Fatal(err)
	}
	<-x.b.Done()
	x.rb.WaitEvent(t, assoc.EventShutdown)
	if x.rb.Total != sent {
		t.Errorf("%d of %d messages have arrived", x.rb.Total, sent)
	}
	if err := x.a.Err(); err != nil {
		t.Errorf("this end: %v", err)
	}
	if err := x.b.Err(); err != assoc.ErrShutdown {
		t.Errorf("the peer's end: %v", err)
	}
	if _, err := x.b.TrySend([]assoc.Outgoing{one(0, p)}); !errors.Is(err, assoc.ErrShutdown) {
		t.Errorf("send: %v", err)
	}
}

func repeat(m assoc.Outgoing, n int) []assoc.Outgoing {
	ms := make([]assoc.Outgoing, n)
	for i := range ms {
		ms[i] = m
	}
	return ms
}

// A shutdown that the peer does not go along with becomes an abort.
func TestShutdownThatTakesTooLong(t *testing.T) {
	x := connect(t, "127.0.0.1", ksctp.Config{}, ksctp.Config{RecvBuffer: 128 << 10})
	x.rb.Set(func() { x.rb.Hold, x.rb.Quiet = true, true })
	if n, err := x.a.TrySend(repeat(one(0, make([]byte, 1000)), 2000)); err != nil || n < 500 {
		t.Fatalf("%d sent, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.a.Shutdown(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("shut down: %v", err)
	}
	var abort *assoc.AbortError
	<-x.a.Done()
	if err := x.a.Err(); !errors.As(err, &abort) || !abort.Local {
		t.Errorf("this end: %v", err)
	}
	x.rb.Lock()
	held := x.rb.Held
	x.rb.Hold = false
	x.rb.Unlock()
	x.b.Release(held)
	<-x.b.Done()
	if err := x.b.Err(); !errors.As(err, &abort) || abort.Local {
		t.Errorf("the peer's end: %v", err)
	}
}

func TestAssociationThatIsOverBeforeItIsStarted(t *testing.T) {
	kernel(t)
	l := listen(t, ksctp.Config{Local: loopback})
	for _, ended := range []string{"here", "by the peer"} {
		a, err := ksctp.Dial(patient(t), ksctp.Config{}, l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		b, err := l.Accept(patient(t))
		if err != nil {
			t.Fatal(err)
		}
		b.Abort("not this one")
		if ended == "here" {
			a.Abort("nor this")
			<-a.Done()
		}
		r := assoctest.NewInbox()
		a.Start(r)
		<-a.Done()
		r.Lock()
		var abort *assoc.AbortError
		if e := r.Events; len(e) != 2 || e[0].Kind != assoc.EventUp || e[1].Kind != assoc.EventDown || !errors.As(e[1].Err, &abort) || abort.Local != (ended == "here") {
			t.Errorf("ended %s: events %v", ended, e)
		}
		r.Unlock()
	}
}

// What the peer has ended before Accept is not handed out, and Close ends what
// was not accepted, but nothing else.
func TestListenerHandsOutWhatIsAlive(t *testing.T) {
	kernel(t)
	l := listen(t, ksctp.Config{Params: assoc.Params{Backlog: 4}, Local: loopback})
	dial := func() *ksctp.Assoc {
		a, err := ksctp.Dial(patient(t), ksctp.Config{}, l.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { a.Close() })
		return a
	}
	dial().Abort("changed my mind")
	kept := dial()
	b, err := l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := b.PeerAddrs()[0], kept.LocalAddrs()[0]; got != want {
		t.Errorf("accepted the association with %v, want %v", got, want)
	}
	waits := dial()
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Error(err)
	}
	r, ra, rb := assoctest.NewInbox(), assoctest.NewInbox(), assoctest.NewInbox()
	waits.Start(r)
	<-waits.Done()
	kept.Start(ra)
	b.Start(rb)
	send(t, kept, one(0, []byte("still here")))
	rb.WaitFor(t, 1)
	b.Close()
	<-b.Done()
	<-kept.Done()
}

func TestTooManyWaitForAccept(t *testing.T) {
	kernel(t)
	refused := make(chan error, 1)
	l := listen(t, ksctp.Config{Params: assoc.Params{Backlog: 2}, Local: loopback, Refused: func(_ netip.AddrPort, err error) { refused <- err }})
	for i := range 3 {
		a, err := ksctp.Dial(patient(t), ksctp.Config{}, l.Addr())
		if err == nil {
			defer a.Close()
		} else if abort := (*assoc.AbortError)(nil); i < 2 || !errors.As(err, &abort) {
			t.Fatal(err) // only the third may be aborted that early
		}
	}
	if err := <-refused; err == nil || !strings.Contains(err.Error(), "2 associations wait") {
		t.Errorf("refused: %v", err)
	}
}

// Without Local, the one address that routes to the peer is bound, not all of
// them.
func TestDialWithoutAnAddressUsesOne(t *testing.T) {
	ha, hb := hosts(t, 2)
	c := quick
	c.Local, c.Port = addrs(hb, 2), port
	listenOn(t, hb, c)
	a, err := dialFrom(t, ha, ksctp.Config{Port: 47100}, netip.AddrPortFrom(hb.AddrOn(1), port))
	if err != nil {
		t.Fatal(err)
	}
	if got := a.LocalAddrs(); len(got) != 1 || got[0].Addr() != ha.AddrOn(1) {
		t.Errorf("local addresses %v, want %v alone", got, ha.AddrOn(1))
	}
	if got := a.PeerAddrs(); len(got) != 2 {
		t.Errorf("the peer's addresses %v, want both", got)
	}
}
