package ksctp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// row tells make interop, which writes docs/interop.md, what the test proves.
func row(t *testing.T, what string) { t.Attr("row", what) }

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what should come at once.
const patience = 60 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// kernel skips a test where the kernel has no SCTP.
func kernel(t testing.TB) {
	t.Helper()
	if err := ksctp.Available(); err != nil {
		t.Skipf("make interop runs it in its virtual machine: %v", err)
	}
}

func listen(t testing.TB, c ksctp.Config) *ksctp.Listener {
	t.Helper()
	l, err := ksctp.Listen(patient(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// ends are both ends of an association.
type ends struct {
	l      *ksctp.Listener
	a, b   *ksctp.Assoc
	ra, rb *assoctest.Inbox
}

func connect(t testing.TB, addr string, ca, cb ksctp.Config) *ends {
	t.Helper()
	kernel(t)
	x := &ends{ra: assoctest.NewInbox(), rb: assoctest.NewInbox()}
	if len(cb.Local) == 0 {
		cb.Local = []netip.Addr{netip.MustParseAddr(addr)}
	}
	x.l = listen(t, cb)
	var err error
	if x.a, err = ksctp.Dial(patient(t), ca, x.l.Addrs()...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.a.Close(); <-x.a.Done() })
	if x.b, err = x.l.Accept(patient(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.b.Close(); <-x.b.Done() })
	x.a.Start(x.ra)
	x.b.Start(x.rb)
	return x
}

// send queues messages and waits for room.
func send(t testing.TB, a assoc.Association, ms ...assoc.Outgoing) {
	t.Helper()
	for len(ms) > 0 {
		n, err := a.TrySend(ms)
		if errors.Is(err, assoc.ErrTooLong) {
			findsRoom(t, a, ms[n]) // an association in UDP begins with short packets
		} else if err != nil {
			t.Fatal(err)
		}
		if ms = ms[n:]; len(ms) > 0 {
			if err := a.Wait(patient(t)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// findsRoom waits until a message fits a packet.
func findsRoom(t testing.TB, a assoc.Association, m assoc.Outgoing) {
	t.Helper()
	n := 0
	for _, b := range m.Bufs {
		n += len(b)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx := patient(t); a.MaxMessage() < n; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("a message of %d bytes does not fit: %d do", n, a.MaxMessage())
		}
	}
}

func one(stream uint16, b ...[]byte) assoc.Outgoing {
	return assoc.Outgoing{Stream: stream, PPID: 16, Bufs: b}
}

func TestMessagesOverLoopback(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		x := connect(t, addr, ksctp.Config{Params: assoc.Params{Adaptation: 1}}, ksctp.Config{Params: assoc.Params{Adaptation: 1}})
		const n = 5000
		for i := range n {
			var b [1000]byte
			binary.BigEndian.PutUint32(b[:], uint32(i))
			send(t, x.a, one(uint16(i%10), b[:4], b[4:4+i%900]))
		}
		x.rb.WaitFor(t, n)
		seen := make(map[uint32]bool)
		for _, m := range x.rb.Got {
			i := binary.BigEndian.Uint32(m.Payload)
			if seen[i] || int(i) >= n || m.Stream != uint16(i%10) || len(m.Payload) != 4+int(i)%900 || m.PPID != 16 || m.Flags != assoc.Begin|assoc.End|assoc.Unordered {
				t.Fatalf("message %d: seen %v, %+v", i, seen[i], m)
			}
			seen[i] = true
		}
		if err := x.a.Shutdown(patient(t)); err != nil {
			t.Error(err)
		}
		<-x.b.Done()
		if x.b.Err() != assoc.ErrShutdown {
			t.Errorf("the peer's end: %v", x.b.Err())
		}
		if e := x.rb.Events[len(x.rb.Events)-1]; e.Kind != assoc.EventDown || e.Err != assoc.ErrShutdown {
			t.Errorf("the last event: %+v", e)
		}
	}
}
