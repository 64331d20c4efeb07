package verbstest_test

import (
	"errors"
	"math/rand/v2"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

// sockets are two sockets for packets, and what one of them gets.
type sockets struct {
	*verbstest.Fabric
	alpha, beta *verbstest.Host
	a, b        net.PacketConn
	got         chan string
}

func open(t *testing.T, h *verbstest.Host, port uint16) net.PacketConn {
	t.Helper()
	s, err := h.Transport().Network.ListenPacket(h.Addr(port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func newSockets(t *testing.T) *sockets {
	t.Helper()
	s := &sockets{Fabric: verbstest.New(), got: make(chan string, 100)}
	s.alpha, s.beta = s.Host("alpha"), s.Host("beta")
	s.a, s.b = open(t, s.alpha, 0), open(t, s.beta, 9899)
	s.read(s.b)
	return s
}

func (s *sockets) read(c net.PacketConn) {
	go func() {
		b := make([]byte, 100)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			s.got <- string(b[:n])
		}
	}()
}

// send sends a packet from a socket, and returns what has arrived at beta when all is quiet.
func (s *sockets) send(t *testing.T, from net.PacketConn, packet string) (arrived string, err error) {
	t.Helper()
	_, err = from.WriteTo([]byte(packet), net.UDPAddrFromAddrPort(s.beta.Addr(9899)))
	<-time.After(time.Minute)
	synctest.Wait()
	for {
		select {
		case p := <-s.got:
			arrived += p
		default:
			return arrived, err
		}
	}
}

func TestPacketsSufferFromFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t)
		want := func(when, packet string, werr error) {
			t.Helper()
			if got, err := s.send(t, s.a, "x"); got != packet || !errors.Is(err, werr) {
				t.Errorf("%s: %q arrived, %v", when, got, err)
			}
		}
		want("without a fault", "x", nil)
		s.alpha.Hold(true)
		want("while packets are swallowed", "", nil)
		s.alpha.Hold(false)
		s.beta.Pause(true)
		want("in a pause", "", syscall.EPERM)
		s.beta.Pause(false)
		s.alpha.Refuse(true)
		want("while new connections are refused", "x", nil)
		other := open(t, s.alpha, 0)
		if got, _ := s.send(t, other, "y"); got != "" {
			t.Errorf("%q arrived from who is refused", got)
		}
		s.alpha.Refuse(false)
		if got, _ := s.send(t, other, "y"); got != "y" {
			t.Errorf("%q arrived from who was refused before", got)
		}
		s.beta.Cut()
		want("after a cut", "", nil)
		if got, _ := s.send(t, open(t, s.alpha, 0), "z"); got != "z" {
			t.Errorf("%q arrived from a socket that was opened after the cut", got)
		}
		s.b.Close()
		want("where no socket is", "", nil)
		s.read(open(t, s.beta, 9899))
		want("at a socket that was opened after the cut", "x", nil)
		if p := s.alpha.Packets(); p.Swallowed != 1 || p.Refused != 1 || p.Strays != 3 || p.Arrived != 5 || p.Lost != 0 || p.Sent != 10 {
			t.Errorf("counted: %+v", p)
		}
	})
}

func TestPacketsThatAreUnderWayAreSwallowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t)
		s.alpha.Carry(func(bool, int) []time.Duration { return []time.Duration{time.Second} })
		time.AfterFunc(time.Second/2, func() { s.beta.Hold(true) })
		if got, err := s.send(t, s.a, "x"); got != "" || err != nil {
			t.Errorf("%q arrived, %v", got, err)
		}
	})
}

func TestCarryDecidesAboutPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t)
		delays := map[int][]time.Duration{1: nil, 2: {time.Second, time.Millisecond}, 3: {time.Second}, 4: {time.Second}}
		s.alpha.Carry(func(out bool, size int) []time.Duration {
			if !out {
				t.Error("alpha is said to be sent what it sends")
			}
			return delays[size]
		})
		s.beta.Carry(func(out bool, size int) []time.Duration {
			if out {
				t.Error("beta is said to send what it is sent")
			}
			if size == 4 {
				return nil
			}
			return []time.Duration{time.Second}
		})
		to := net.UDPAddrFromAddrPort(s.beta.Addr(9899))
		for _, p := range []string{"1", "333", "4444"} {
			if _, err := s.a.WriteTo([]byte(p), to); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := s.send(t, s.a, "22"); got != "2233322" {
			t.Errorf("%q arrived", got)
		}
		if p := s.alpha.Packets(); p.Lost != 2 || p.Arrived != 3 || p.Sent != 4 {
			t.Errorf("counted: %+v", p)
		}
	})
}

func TestDamageChangesPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSockets(t)
		s.alpha.Carry(func(bool, int) []time.Duration { return []time.Duration{0, time.Second} })
		s.alpha.Damage(func(p []byte) { p[0]++ })
		s.beta.Damage(func(p []byte) { p[1]-- })
		sent := []byte("ab")
		if got, err := s.send(t, s.a, string(sent)); got != "baba" || err != nil {
			t.Errorf("%q arrived, %v", got, err)
		}
	})
}

func TestSocketsForPackets(t *testing.T) {
	f := verbstest.New()
	h, other := f.Host("host"), f.Host("other")
	s := open(t, h, 9899)
	n := h.Transport().Network
	if _, err := n.ListenPacket(h.Addr(9899)); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second socket at an address: %v", err)
	}
	if _, err := n.ListenPacket(other.Addr(9899)); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("a socket at another host's address: %v", err)
	}
	read := make(chan error)
	go func() {
		_, _, err := s.ReadFrom(make([]byte, 1))
		read <- err
	}()
	s.Close()
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("ReadFrom after Close: %v", err)
	}
	if _, err := s.WriteTo(nil, s.LocalAddr()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("WriteTo after Close: %v", err)
	}
	open(t, h, 9899)
}

// Streams over SCTP survive what a bad network does to their packets, and their outages.
func TestStreamOverSCTPInABadNetwork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPairOver(t, transport.SCTPUDP)
		rnd := rand.New(rand.NewPCG(1, 2))
		p.alpha.Carry(func(bool, int) (all []time.Duration) {
			for range []int{0, 1, 1, 1, 2}[rnd.IntN(5)] {
				all = append(all, time.Duration(rnd.Int64N(int64(5*time.Millisecond))))
			}
			return all
		})
		copy(p.am.Bytes(), "behind the losses")
		p.write(t, 1<<20)
		<-time.After(10 * time.Millisecond)
		p.alpha.Pause(true)
		if !p.a.Paused() {
			t.Error("the stream does not know of its pause")
		}
		<-time.After(10 * time.Second)
		p.alpha.Pause(false)
		if wc, err := p.acq.Next(t.Context()); err != nil || wc.Err != nil {
			t.Fatal(err, wc.Err)
		}
		if err := p.a.PostSend(&verbs.SendWR{Op: verbs.OpSend}); err != nil { // behind the Write
			t.Fatal(err)
		}
		if wc, err := p.bcq.Next(t.Context()); err != nil || wc.Err != nil {
			t.Fatal(err, wc.Err)
		}
		if string(p.bm.Bytes()[:17]) != "behind the losses" {
			t.Error("something else arrived")
		}
		if c := p.alpha.Packets(); c.Lost == 0 || c.Arrived+c.Lost <= c.Sent-c.Refused-c.Strays || c.Refused == 0 {
			t.Errorf("nothing was lost, doubled and refused: %+v", c)
		}
		p.Cut()
		if _, err := p.dial(); err != nil {
			t.Error(err)
		}
	})
}
