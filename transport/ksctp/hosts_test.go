package ksctp_test

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

const port = 7471

// hosts are two, on as many wires.
func hosts(t *testing.T, wires int) (a, b *lab.Host) {
	t.Helper()
	lab.RequireKernelSCTP(t)
	l := lab.Start(t, lab.Config{NoCharon: true, Wires: wires})
	return l.Host("alpha"), l.Host("beta")
}

func addrs(h *lab.Host, wires int) (as []netip.Addr) {
	for i := range wires {
		as = append(as, h.AddrOn(i))
	}
	return as
}

func ports(as []netip.Addr) (out []netip.AddrPort) {
	for _, a := range as {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

func listenOn(t *testing.T, h *lab.Host, c ksctp.Config) *ksctp.Listener {
	t.Helper()
	var l *ksctp.Listener
	err := h.Do(func() (err error) { l, err = ksctp.Listen(patient(t), c); return err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func dialFrom(t *testing.T, h *lab.Host, c ksctp.Config, to ...netip.AddrPort) (a *ksctp.Assoc, err error) {
	t.Helper()
	if derr := h.Do(func() error { a, err = ksctp.Dial(patient(t), c, to...); return nil }); derr != nil {
		t.Fatal(derr)
	}
	if err == nil {
		t.Cleanup(func() { a.Close(); <-a.Done() })
	}
	return a, err
}

// between is an association from host a to host b over so many wires.
func between(t *testing.T, a, b *lab.Host, wires int, c ksctp.Config) *ends {
	t.Helper()
	ca, cb := c, c
	ca.Local, cb.Local, cb.Port = addrs(a, wires), addrs(b, wires), port
	x := &ends{l: listenOn(t, b, cb), ra: assoctest.NewInbox(), rb: assoctest.NewInbox()}
	var err error
	if x.a, err = dialFrom(t, a, ca, ports(cb.Local)...); err != nil {
		t.Fatal(err)
	}
	if x.b, err = x.l.Accept(patient(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.b.Close(); <-x.b.Done() })
	x.a.Start(x.ra)
	x.b.Start(x.rb)
	return x
}

// quick has everything noticed within a second or so.
var quick = ksctp.Config{Params: assoc.Params{
	RTOInitial: 200 * time.Millisecond, RTOMin: 200 * time.Millisecond, RTOMax: 500 * time.Millisecond,
	Heartbeat: 200 * time.Millisecond, PathMaxRetrans: 2, DeadAfter: time.Hour,
}}

// RFC 9260 section 8.2: data goes on by the other path when one fails, both ends
// are told, and are told when it is back.
func TestPathsFailAndComeBack(t *testing.T) {
	row(t, "the kernel's SCTP on two wires: a path fails and comes back, and both ends are told")
	ha, hb := hosts(t, 2)
	x := between(t, ha, hb, 2, quick)
	if got := x.a.PeerAddrs(); len(got) != 2 || got[0] != ports(addrs(hb, 2))[0] || got[1] != ports(addrs(hb, 2))[1] {
		t.Errorf("the peer's addresses: %v", got)
	}
	if got := x.b.PeerAddrs(); len(got) != 2 || got[0].Addr() != ha.AddrOn(0) || got[1].Addr() != ha.AddrOn(1) {
		t.Errorf("the dialler's addresses: %v", got)
	}
	if got := x.b.LocalAddrs(); len(got) != 2 || got[0].Addr() != hb.AddrOn(0) || got[1].Addr() != hb.AddrOn(1) {
		t.Errorf("the addresses that the listener's end has: %v", got)
	}
	second := ports(addrs(hb, 2))[1]
	// What the dialler was told by its user is right (RFC 9260 section 5.4); the
	// listener confirms by a heartbeat what it was told by the peer.
	if ps, err := x.a.Paths(); err != nil || ps[0].State != ksctp.PathUp || ps[1].State != ksctp.PathUp {
		t.Errorf("paths: %+v, %v", ps, err)
	}
	if e := x.rb.WaitEvent(t, assoc.EventPathUp); e.Path.Addr() != ha.AddrOn(1) {
		t.Errorf("path up at the listener: %v", e.Path)
	}
	sent := 0
	some := func() {
		t.Helper()
		for range 100 {
			send(t, x.a, one(uint16(sent%10), make([]byte, 1000)))
			sent++
		}
		x.rb.WaitFor(t, sent)
	}
	some()
	if err := ha.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	some()
	if e := x.ra.WaitEvent(t, assoc.EventPathDown); e.Path != ports(addrs(hb, 2))[0] {
		t.Errorf("path down: %v", e.Path)
	}
	if e := x.rb.WaitEvent(t, assoc.EventPathDown); e.Path.Addr() != ha.AddrOn(0) {
		t.Errorf("path down at the peer: %v", e.Path)
	}
	ps, err := x.a.Paths()
	if err != nil || len(ps) != 2 || ps[0].State != ksctp.PathDown || !ps[0].Primary || ps[1].State != ksctp.PathUp || ps[1].Primary || ps[1].MTU != 1500 || ps[1].Remote != second {
		t.Errorf("paths: %+v, %v", ps, err)
	}
	x.ra.Lock()
	x.ra.Events = nil
	x.ra.Unlock()
	if err := ha.Sever(t.Context(), 0, false); err != nil {
		t.Fatal(err)
	}
	if e := x.ra.WaitEvent(t, assoc.EventPathUp); e.Path != ports(addrs(hb, 2))[0] {
		t.Errorf("path up: %v", e.Path)
	}
}

// An association of one path outlives a cut that is shorter than DeadAfter, and
// one that is longer ends it.
func TestDeathByTheClock(t *testing.T) {
	ha, hb := hosts(t, 1)
	x := between(t, ha, hb, 1, quick) // whose DeadAfter is over when the test says so, however long a cut takes
	cut := func(cut bool) {
		t.Helper()
		if err := ha.Sever(t.Context(), 0, cut); err != nil {
			t.Fatal(err)
		}
	}
	cut(true)
	send(t, x.a, repeat(one(0, make([]byte, 1000)), 10)...)
	x.a.LimitRTO(time.Second)
	x.ra.WaitEvent(t, assoc.EventPathDown)
	if n, err := x.a.Outq(); err != nil || n != 10000 {
		t.Errorf("%d bytes are not acknowledged, want 10000; %v", n, err)
	}
	x.rb.WaitEvent(t, assoc.EventPathDown)
	cut(false)
	x.a.Kick()
	x.ra.WaitEvent(t, assoc.EventPathUp)
	x.rb.WaitEvent(t, assoc.EventPathUp)
	x.a.LimitRTO(0)
	x.rb.WaitFor(t, 10)
	if s := x.a.Stats(); s.Retransmits == 0 {
		t.Errorf("nothing was sent again: %+v", s)
	}
	if x.a.RunOut() || x.b.RunOut() {
		t.Error("the path is back, and its time still runs")
	}
	for _, r := range []*assoctest.Inbox{x.ra, x.rb} {
		r.Set(func() { r.Events = nil })
	}
	cut(true)
	x.ra.WaitEvent(t, assoc.EventPathDown)
	x.rb.WaitEvent(t, assoc.EventPathDown)
	if !x.a.RunOut() || !x.b.RunOut() {
		t.Error("the path is cut, and its time does not run")
	}
	<-x.a.Done()
	<-x.b.Done()
	for _, a := range []*ksctp.Assoc{x.a, x.b} {
		if err := a.Err(); !errors.Is(err, assoc.ErrPeerUnreachable) {
			t.Errorf("the association ended: %v", err)
		}
	}
}

// A second path that never worked does not keep an association alive.
func TestDeathByTheClockWithAPathThatNeverWorked(t *testing.T) {
	ha, hb := hosts(t, 2)
	if err := ha.Sever(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	c := quick
	c.DeadAfter = 2 * time.Second
	x := between(t, ha, hb, 2, c)
	if err := ha.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	<-x.b.Done()
	<-x.a.Done()
	for _, a := range []*ksctp.Assoc{x.a, x.b} {
		if err := a.Err(); !errors.Is(err, assoc.ErrPeerUnreachable) {
			t.Errorf("the association ended: %v", err)
		}
	}
}

// Without DeadAfter the kernel gives up by the number of retransmissions, and a
// handshake without answers ends as well.
func TestDeathByRetransmissions(t *testing.T) {
	ha, hb := hosts(t, 1)
	c := quick
	c.DeadAfter, c.AssocMaxRetrans, c.MaxInitRetrans = 0, 3, 2
	x := between(t, ha, hb, 1, c)
	if err := ha.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	send(t, x.a, one(0, []byte("into the void")))
	<-x.a.Done()
	if err := x.a.Err(); !errors.Is(err, assoc.ErrPeerUnreachable) {
		t.Errorf("the association ended: %v", err)
	}
	c.Local = nil
	if _, err := dialFrom(t, ha, c, netip.AddrPortFrom(hb.Addr(), port)); !errors.Is(err, assoc.ErrPeerUnreachable) {
		t.Errorf("dial: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := ha.Do(func() error {
		_, err := ksctp.Dial(ctx, ksctp.Config{}, netip.AddrPortFrom(hb.Addr(), port))
		return err
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial that is given up: %v", err)
	}
}

// Of an association whose peer does not answer, Stats says how often something was
// sent again; with the first answer that is over.
func TestWhatIsSentInVainIsCounted(t *testing.T) {
	ha, hb := hosts(t, 1)
	x := between(t, ha, hb, 1, quick)
	until := func(what string, ok func(assoc.Stats) bool) {
		t.Helper()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		ctx := patient(t)
		for !ok(x.a.Stats()) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("never happened: %s: %+v", what, x.a.Stats())
			}
		}
	}
	if err := ha.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	send(t, x.a, one(0, []byte("into the void")))
	until("it was sent three times in vain", func(s assoc.Stats) bool { return s.Unanswered >= 3 })
	if err := ha.Sever(t.Context(), 0, false); err != nil {
		t.Fatal(err)
	}
	x.rb.WaitFor(t, 1)
	until("it is answered", func(s assoc.Stats) bool { return s.Unanswered == 0 })
}

// RFC 9260 section 5.2: a peer that has lost the association sets it up anew, with
// the same addresses and ports. What it indicates this time the kernel does not
// say, so it has to come again.
func TestRestartByThePeer(t *testing.T) {
	row(t, "the kernel's SCTP: an association that the peer restarts")
	ha, hb := hosts(t, 1)
	c := quick
	c.Adaptation, c.Heartbeat = 1, -1 // the answer to a heartbeat would end the old association before the new one does
	x := between(t, ha, hb, 1, c)
	if err := ha.Sever(t.Context(), 0, true); err != nil {
		t.Fatal(err)
	}
	x.a.Abort("the peer does not hear of it")
	<-x.a.Done()
	if err := ha.Sever(t.Context(), 0, false); err != nil {
		t.Fatal(err)
	}
	c.Port = x.a.LocalAddrs()[0].Port()
	again := func() (*ksctp.Assoc, error) {
		a, err := dialFrom(t, ha, c, netip.AddrPortFrom(hb.Addr(), port))
		if err != nil {
			return nil, err
		}
		return a, nil
	}
	a, err := again()
	if err == nil { // the handshake may be over before the abort comes
		a.Start(assoctest.NewInbox())
		<-a.Done()
		err = a.Err()
	}
	var abort *assoc.AbortError
	if !errors.As(err, &abort) || abort.Local {
		t.Errorf("the new association: %v", err)
	}
	<-x.b.Done()
	if err := x.b.Err(); err != assoc.ErrRestarted {
		t.Errorf("the old association: %v", err)
	}
	if a, err = again(); err != nil {
		t.Fatal(err)
	}
	b, err := x.l.Accept(patient(t))
	if err != nil {
		t.Fatal(err)
	}
	r := assoctest.NewInbox()
	b.Start(r)
	a.Start(assoctest.NewInbox())
	send(t, a, one(0, []byte("hello again")))
	r.WaitFor(t, 1)
	b.Close()
	<-b.Done()
}

// MaxMessage follows the path's MTU, and what was made for a larger one is not
// fragmented but refused (RFC 5043 section 9).
func TestPathMTUChanges(t *testing.T) {
	row(t, "the kernel's SCTP: the path's MTU changes")
	ha, hb := hosts(t, 1)
	x := between(t, ha, hb, 1, quick)
	at1500 := x.a.MaxMessage()
	if at1500 < 1440 || at1500 > 1500-20-12-16 {
		t.Errorf("a message may have %d bytes with an MTU of 1500", at1500)
	}
	mtu := func(n string) {
		t.Helper()
		if _, err := ha.Run(t.Context(), "ip", "link", "set", ha.Dev(), "mtu", n); err != nil {
			t.Fatal(err)
		}
	}
	mtu("1300")
	long := make([]byte, at1500)
	got := 0
	// The kernel learns it when it sends the first packet that is too long.
	for err := error(nil); !errors.Is(err, assoc.ErrTooLong); {
		if err = x.a.Wait(patient(t)); err != nil {
			t.Fatal(err)
		}
		var n int
		if n, err = x.a.TrySend([]assoc.Outgoing{one(0, long)}); err != nil && !errors.Is(err, assoc.ErrTooLong) {
			t.Fatal(err)
		}
		if got += n; got > 5000 {
			t.Fatal("5000 messages do not teach the kernel the path's MTU")
		}
		x.rb.WaitFor(t, got)
	}
	at1300 := x.a.MaxMessage()
	if at1300 < 1240 || at1300 > 1300-20-12-16 {
		t.Errorf("a message may have %d bytes with an MTU of 1300", at1300)
	}
	send(t, x.a, one(0, long[:at1300]))
	x.rb.WaitFor(t, got+1)
	for _, m := range x.rb.Got {
		if !m.Flags.Whole() {
			t.Fatalf("a fragment: %v", m.Flags)
		}
	}
}

// Loss, reordering and duplication on the wire are the kernel's to deal with.
func TestMessagesOverABadWire(t *testing.T) {
	ha, hb := hosts(t, 1)
	x := between(t, ha, hb, 1, quick)
	for _, h := range []*lab.Host{ha, hb} {
		if err := h.Impair(t.Context(), 0, "delay", "3ms", "1ms", "loss", "2%", "duplicate", "2%", "reorder", "5%"); err != nil {
			t.Fatal(err)
		}
	}
	seen := make(map[byte]int)
	x.rb.Set(func() {
		x.rb.On = func(m *assoc.Message) { seen[m.Payload[0]]++ }
		x.rb.Quiet = true
	})
	const n = 2000
	for i := range n {
		send(t, x.a, one(uint16(i%7), []byte{byte(i % 200)}, make([]byte, 999)))
	}
	x.rb.WaitFor(t, n)
	s := x.a.Stats()
	if err := x.a.Shutdown(patient(t)); err != nil {
		t.Fatal(err)
	}
	<-x.b.Done()
	for i, k := range seen {
		if k != n/200 {
			t.Errorf("the message %d came %d times, want %d", i, k, n/200)
		}
	}
	if s.Retransmits == 0 {
		t.Errorf("the wire was good: %+v", s)
	}
}
