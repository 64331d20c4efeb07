package sctp

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

func patient(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func anyone(_, _ netip.AddrPort, _ bool) error { return nil }

// listen makes an endpoint on a free port of the loopback address.
func listen(t testing.TB, addr string, cfg Config) *Endpoint {
	t.Helper()
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Admit == nil {
		cfg.Admit = anyone
	}
	e, err := Listen(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// ends are both ends of an association.
type ends struct {
	ea, eb *Endpoint
	a, b   *Assoc
	ra, rb *assoctest.Inbox
}

func connect(t testing.TB, addr string, ca, cb Config) *ends {
	t.Helper()
	x := &ends{ra: assoctest.NewInbox(), rb: assoctest.NewInbox()}
	cb.Accept = func(*Assoc) assoc.Receiver { return x.rb }
	x.ea, x.eb = listen(t, addr, ca), listen(t, addr, cb)
	var err error
	if x.a, err = x.ea.Dial(patient(t), x.eb.Addr(), DialConfig{Receiver: func(*Assoc) assoc.Receiver { return x.ra }}); err != nil {
		t.Fatal(err)
	}
	if x.b, err = x.eb.Accept(patient(t)); err != nil {
		t.Fatal(err)
	}
	x.ra.Wait(t, "answers to probes", func() bool { return x.a.Stats().PathMTU >= min(or(ca.MTU, safeMTU), safeMTU)-3 })
	x.rb.Wait(t, "answers to probes", func() bool { return x.b.Stats().PathMTU >= min(or(cb.MTU, safeMTU), safeMTU)-3 })
	return x
}

func TestMessagesOverLoopback(t *testing.T) {
	for _, addr := range []string{"127.0.0.1", "::1"} {
		x := connect(t, addr, Config{Params: assoc.Params{Adaptation: 1}}, Config{Params: assoc.Params{Adaptation: 1}})
		const n = 5000
		for i := range n {
			var b [1000]byte
			binary.BigEndian.PutUint32(b[:], uint32(i))
			m := assoc.Outgoing{Stream: uint16(i % 10), PPID: 16, Bufs: [][]byte{b[:4], b[4 : 4+i%900]}}
			if _, err := x.a.Send(patient(t), []assoc.Outgoing{m}); err != nil {
				t.Fatal(err)
			}
		}
		x.rb.WaitFor(t, n)
		seen := make(map[uint32]bool)
		for _, m := range x.rb.Got {
			i := binary.BigEndian.Uint32(m.Payload)
			if seen[i] || int(i) >= n || m.Stream != uint16(i%10) || len(m.Payload) != 4+int(i)%900 || m.PPID != 16 || m.Flags&^assoc.Immediate != assoc.Begin|assoc.End|assoc.Unordered {
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
		t.Logf("%+v", x.a.Stats())
	}
}
