package verbs

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// outage is a time in which a path carries nothing, from the first packet on: some
// retransmissions of TCP and SCTP.
type outage struct {
	mu  sync.Mutex
	due bool
	end time.Time
}

func (o *outage) begin() {
	o.mu.Lock()
	o.due = true
	o.mu.Unlock()
}

// left is how long it goes on, 0 if it is not on.
func (o *outage) left() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.due {
		o.due, o.end = false, time.Now().Add(3500*time.Millisecond)
	}
	return max(0, time.Until(o.end))
}

// tcpOutage is a path to target that holds everything up during the outage.
func tcpOutage(t *testing.T, o *outage, target netip.AddrPort) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	pass := func(to, from *net.TCPConn) {
		buf := make([]byte, 64<<10)
		for {
			n, err := from.Read(buf)
			<-time.After(o.left())
			if n > 0 {
				to.Write(buf[:n])
			}
			if err != nil {
				to.CloseWrite()
				return
			}
		}
	}
	wg.Go(func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		s, err := net.Dial("tcp", target.String())
		if err != nil {
			return
		}
		defer s.Close()
		var both sync.WaitGroup
		both.Go(func() { pass(s.(*net.TCPConn), c.(*net.TCPConn)) })
		both.Go(func() { pass(c.(*net.TCPConn), s.(*net.TCPConn)) })
		both.Wait()
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// What was posted before a graceful close arrives, and Reads are answered, although the
// path loses several packets in a row.
func TestCloseOutlivesAnOutage(t *testing.T) {
	for _, carrier := range []string{"TCP", "SCTP in UDP"} {
		t.Run(carrier, func(t *testing.T) {
			t.Parallel() // most of the time is the outage
			o := &outage{}
			var server, client *transport.Config
			if carrier == "TCP" {
				server, client = tcp, tcp
			} else {
				server = iwarptest.SCTPInUDP(t)
				client, _ = relayTo(t, server, sctptest.Faults{Drop: func(bool, []byte) bool { return o.left() > 0 }})
			}
			a, b := newEnd(t, Config{}), newEnd(t, Config{})
			b.tc = server
			ln := listen(t, b, ListenConfig{})
			accepted := acceptAll(t, b, ln)
			to := ln.Addr()
			if carrier == "TCP" {
				to = tcpOutage(t, o, to)
			}
			x := a.another(to, client)
			b.qp = <-accepted

			const size = 10000
			mr, target := a.mr(2*size, LocalWrite), b.mr(2*size, LocalWrite|RemoteWrite|RemoteRead)
			fill(mr.Bytes()[:size], 1)
			fill(target.Bytes()[size:], 2)
			b.recv(RecvWR{SGL: whole(b.mr(size, LocalWrite), size)})
			o.begin()
			x.post(SendWR{Op: OpWrite, SGL: whole(mr, size), RemoteSTag: target.STag(), Flags: Signaled})
			x.post(SendWR{Op: OpRead, SGL: []SGE{{MR: mr, Off: size, Len: size}}, RemoteSTag: target.STag(), RemoteTO: size, Flags: Signaled})
			x.post(SendWR{Op: OpSend, SGL: whole(mr, size), Flags: Signaled})
			x.qp.Close()
			for _, op := range []WCOp{WCWrite, WCRead, WCSend} {
				x.wantOK(op)
			}
			b.wantOK(WCRecv)
			if err := x.wantEnd(); err != nil {
				t.Errorf("the stream ended with %v", err)
			}
			if err := b.wantEnd(); !errors.Is(err, io.EOF) {
				t.Errorf("the peer's stream ended with %v", err)
			}
			if string(mr.Bytes()[:size]) != string(target.Bytes()[:size]) || string(mr.Bytes()[size:]) != string(target.Bytes()[size:]) {
				t.Error("other data arrived")
			}
		})
	}
}

// A stream that both ends close may be over at one of them before what it has sent has
// arrived. That is delivered, too, if the device is closed at once.
func TestWhatAClosedDeviceHadSentIsDelivered(t *testing.T) {
	t.Parallel()
	o := &outage{}
	server := iwarptest.SCTPInUDP(t)
	client, _ := relayTo(t, server, sctptest.Faults{Drop: func(fromClient bool, _ []byte) bool { return fromClient && o.left() > 0 }})
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	b.tc = server
	accepted := acceptAll(t, b, listen(t, b, ListenConfig{}))
	x := a.another(sctpLocal, client)
	b.qp = <-accepted
	b.recv(RecvWR{SGL: whole(b.mr(100, LocalWrite), 100)})
	x.wantAlive(b.mr(8, LocalWrite|RemoteWrite|RemoteRead))
	o.begin()
	x.post(SendWR{Op: OpSend, SGL: whole(a.mr(100, 0), 100), Flags: Signaled})
	x.qp.Close()
	b.qp.Close()
	x.wantOK(WCSend)
	if err := x.wantEnd(); err != nil {
		t.Errorf("the stream ended with %v", err)
	}
	a.dev.Close()
	b.wantOK(WCRecv)
	if err := b.wantEnd(); err != nil {
		t.Errorf("the peer's stream ended with %v", err)
	}
}
