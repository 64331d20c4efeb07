// Package piontest holds package sctp against pion's SCTP, a foreign peer. It is
// a module of its own, so that nobody who uses IronWarp depends on it.
package piontest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/pion/logging"
	pion "github.com/pion/sctp"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/sctp"
)

const patience = time.Minute

const short, long = 2000, 1400

// pionPort is the SCTP port that pion always has, at both ends.
const pionPort = 5000

// box keeps messages.
type box struct {
	mu   sync.Mutex
	more sync.Cond
	got  map[uint32]int
	bad  error
}

func newBox() *box {
	b := &box{got: make(map[uint32]int)}
	b.more.L = &b.mu
	return b
}

func (b *box) Message(m *assoc.Message) bool {
	b.take(m.Payload)
	return false
}

func (b *box) take(p []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := binary.BigEndian.Uint32(p)
	b.got[n]++
	if !bytes.Equal(p, message(n)) {
		b.bad = fmt.Errorf("message %d is damaged", n)
	}
}

func (b *box) Event(e assoc.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == assoc.EventDown && e.Err != nil {
		b.bad = e.Err
	}
	b.more.Broadcast()
}

func (b *box) BatchEnd() { b.more.Broadcast() }

// once waits until the numbers below n are here, each once.
func (b *box) once(t *testing.T, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	defer context.AfterFunc(ctx, b.more.Broadcast)()
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.got) < n && b.bad == nil && ctx.Err() == nil {
		b.more.Wait()
	}
	if b.bad != nil || len(b.got) != n {
		t.Fatalf("%d of %d messages came: %v", len(b.got), n, b.bad)
	}
	for k, c := range b.got {
		if c != 1 {
			t.Fatalf("message %d came %d times", k, c)
		}
	}
}

// message is the n-th message. Those below short fit the packets that an association
// begins with, and one chunk of pion's; the others have up to long bytes.
func message(n uint32) []byte {
	size := 4 + n*37%500
	if n >= short {
		size = 600 + n*37%(long-600+1)
	}
	b := make([]byte, size)
	binary.BigEndian.PutUint32(b, n)
	for i := 4; i < len(b); i++ {
		b[i] = byte(n + uint32(i))
	}
	return b
}

func udp(t *testing.T) *net.UDPConn {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// to is a UDP socket with one peer, which may be known later.
type to struct {
	*net.UDPConn
	mu   sync.Mutex
	peer netip.AddrPort
}

func (c *to) Read(p []byte) (int, error) {
	n, from, err := c.ReadFromUDPAddrPort(p)
	c.mu.Lock()
	c.peer = from
	c.mu.Unlock()
	return n, err
}

func (c *to) Write(p []byte) (int, error) {
	c.mu.Lock()
	peer := c.peer
	c.mu.Unlock()
	return c.WriteToUDPAddrPort(p, peer)
}

func (c *to) RemoteAddr() net.Addr { return net.UDPAddrFromAddrPort(c.peer) }

func config(b *box) sctp.Config {
	return sctp.Config{
		Port:   pionPort,
		Admit:  func(_, _ netip.AddrPort, _ bool) error { return nil },
		Accept: func(*sctp.Assoc) assoc.Receiver { return b },
	}
}

// grow waits until messages of n bytes fit a packet: an association begins with short
// ones, and finds out what its path carries.
func grow(t testing.TB, a *sctp.Assoc, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); a.MaxMessage() < n; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("packets carry messages of %d bytes, and %d are wanted", a.MaxMessage(), n)
		}
	}
}

// exchange sends messages each way and ends the association.
func exchange(t *testing.T, a *sctp.Assoc, ours *box, p *pion.Association, ourShutdown bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := p.OpenStream(3, pion.PayloadTypeWebRTCBinary)
	if err != nil {
		t.Fatal(err)
	}
	s.SetReliabilityParams(true, pion.ReliabilityTypeReliable, 0)
	theirs := newBox()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			k, err := s.Read(buf)
			if err != nil {
				theirs.more.Broadcast()
				return
			}
			theirs.take(buf[:k])
			theirs.more.Broadcast()
		}
	}()
	go func() {
		for i := range uint32(short) {
			if _, err := s.WriteSCTP(message(i), pion.PayloadTypeWebRTCBinary); err != nil {
				t.Error(err)
				return
			}
		}
	}()
	for i := range uint32(short + 500) {
		if i == short {
			// pion drops packets with a PAD chunk (RFC 4820) whole, by which longer ones
			// are probed at first.
			grow(t, a, long)
		}
		if _, err := a.Send(ctx, []assoc.Outgoing{{Stream: 3, PPID: uint32(pion.PayloadTypeWebRTCBinary), Bufs: [][]byte{message(i)}}}); err != nil {
			t.Fatal(err)
		}
	}
	ours.once(t, short)
	theirs.once(t, short+500)
	if ourShutdown {
		if err := a.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		return
	}
	if err := p.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	<-a.Done()
	if a.Err() != assoc.ErrShutdown {
		t.Error(a.Err())
	}
}

func pionConfig(c net.Conn) pion.Config {
	return pion.Config{NetConn: c, LoggerFactory: logging.NewDefaultLoggerFactory()}
}

func TestPionIsTheClient(t *testing.T) {
	for _, ourShutdown := range []bool{true, false} {
		in := newBox()
		e, err := sctp.Listen(udp(t), config(in))
		if err != nil {
			t.Fatal(err)
		}
		p, err := pion.Client(pionConfig(&to{UDPConn: udp(t), peer: e.Addr()}))
		if err != nil {
			t.Fatal(err)
		}
		a, err := e.Accept(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, a, in, p, ourShutdown)
		p.Close()
		e.Close()
	}
}

func TestPionIsTheServer(t *testing.T) {
	for _, ourShutdown := range []bool{true, false} {
		in := newBox()
		e, err := sctp.Listen(udp(t), config(in))
		if err != nil {
			t.Fatal(err)
		}
		c := &to{UDPConn: udp(t), peer: e.Addr()}
		type result struct {
			p   *pion.Association
			err error
		}
		served := make(chan result, 1)
		go func() {
			p, err := pion.Server(pionConfig(c))
			served <- result{p, err}
		}()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		a, err := e.Dial(ctx, c.LocalAddr().(*net.UDPAddr).AddrPort(), sctp.DialConfig{
			RemotePort: pionPort, LocalPort: pionPort,
			Receiver: func(*sctp.Assoc) assoc.Receiver { return in },
		})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		r := <-served
		if r.err != nil {
			t.Fatal(r.err)
		}
		exchange(t, a, in, r.p, ourShutdown)
		r.p.Close()
		e.Close()
	}
}
