package ksctp_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/transport/sctp"
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

// inbox is a Receiver that keeps what comes.
type inbox struct {
	mu     sync.Mutex
	more   sync.Cond
	got    []sctp.Message
	events []sctp.Event
	hold   bool
	total  int
	held   int
	quiet  bool // count only
	on     func(*sctp.Message)
}

func newInbox() *inbox {
	b := new(inbox)
	b.more.L = &b.mu
	return b
}

func (b *inbox) Message(m *sctp.Message) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total++
	if b.on != nil {
		b.on(m)
	}
	if !b.quiet {
		k := *m
		k.Payload = append([]byte(nil), m.Payload...)
		b.got = append(b.got, k)
	}
	if b.hold {
		b.held += len(m.Payload)
	}
	return b.hold
}

// set changes what it does with messages that may be coming already.
func (b *inbox) set(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

func (b *inbox) Event(e sctp.Event) {
	b.mu.Lock()
	b.events = append(b.events, e)
	b.more.Broadcast()
	b.mu.Unlock()
}

func (b *inbox) BatchEnd() {
	b.mu.Lock()
	b.more.Broadcast()
	b.mu.Unlock()
}

// wait waits until ok, which is called with the lock held.
func (b *inbox) wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { b.BatchEnd() })
	defer stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for !ok() {
		if ctx.Err() != nil {
			t.Fatalf("waited in vain for %s: %d messages, events %v", what, b.total, b.events)
		}
		b.more.Wait()
	}
}

func (b *inbox) waitFor(t testing.TB, n int) {
	t.Helper()
	b.wait(t, "messages", func() bool { return b.total >= n })
}

func (b *inbox) waitEvent(t testing.TB, kind sctp.EventKind) (e sctp.Event) {
	t.Helper()
	b.wait(t, "the event "+kind.String(), func() bool {
		for _, e = range b.events {
			if e.Kind == kind {
				return true
			}
		}
		return false
	})
	return e
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
	ra, rb *inbox
}

func connect(t testing.TB, addr string, ca, cb ksctp.Config) *ends {
	t.Helper()
	kernel(t)
	x := &ends{ra: newInbox(), rb: newInbox()}
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
func send(t testing.TB, a sctp.Association, ms ...sctp.Outgoing) {
	t.Helper()
	for len(ms) > 0 {
		n, err := a.TrySend(ms)
		if errors.Is(err, sctp.ErrTooLong) {
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
func findsRoom(t testing.TB, a sctp.Association, m sctp.Outgoing) {
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

func one(stream uint16, b ...[]byte) sctp.Outgoing {
	return sctp.Outgoing{Stream: stream, PPID: 16, Bufs: b}
}

func TestMessagesOverLoopback(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		x := connect(t, addr, ksctp.Config{Adaptation: 1}, ksctp.Config{Adaptation: 1})
		const n = 5000
		for i := range n {
			var b [1000]byte
			binary.BigEndian.PutUint32(b[:], uint32(i))
			send(t, x.a, one(uint16(i%10), b[:4], b[4:4+i%900]))
		}
		x.rb.waitFor(t, n)
		seen := make(map[uint32]bool)
		for _, m := range x.rb.got {
			i := binary.BigEndian.Uint32(m.Payload)
			if seen[i] || int(i) >= n || m.Stream != uint16(i%10) || len(m.Payload) != 4+int(i)%900 || m.PPID != 16 || m.Flags != sctp.Begin|sctp.End|sctp.Unordered {
				t.Fatalf("message %d: seen %v, %+v", i, seen[i], m)
			}
			seen[i] = true
		}
		if err := x.a.Shutdown(patient(t)); err != nil {
			t.Error(err)
		}
		<-x.b.Done()
		if x.b.Err() != sctp.ErrShutdown {
			t.Errorf("the peer's end: %v", x.b.Err())
		}
		if e := x.rb.events[len(x.rb.events)-1]; e.Kind != sctp.EventDown || e.Err != sctp.ErrShutdown {
			t.Errorf("the last event: %+v", e)
		}
	}
}
