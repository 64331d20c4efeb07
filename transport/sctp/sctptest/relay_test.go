package sctptest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what should come at once.
const patience = 30 * time.Second

// ends are a client and a server with a relay between them.
type ends struct {
	t              *testing.T
	relay          *Relay
	client, server *net.UDPConn
}

func between(t *testing.T, f Faults) *ends {
	t.Helper()
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRelay(server.LocalAddr().(*net.UDPAddr).AddrPort(), f, 1)
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
		r.Close()
	})
	return &ends{t, r, client, server}
}

func packet(n uint32) []byte { return binary.BigEndian.AppendUint32(make([]byte, 96), n) }

// send sends packets with the numbers from first on.
func (x *ends) send(first, n uint32) {
	x.t.Helper()
	for i := range n {
		if _, err := x.client.Write(packet(first + i)); err != nil {
			x.t.Fatal(err)
		}
	}
}

// recv is the next packet at the server.
func (x *ends) recv() ([]byte, netip.AddrPort) {
	x.t.Helper()
	b := make([]byte, 1<<16)
	x.server.SetReadDeadline(time.Now().Add(patience))
	n, from, err := x.server.ReadFromUDPAddrPort(b)
	if err != nil {
		x.t.Fatal(err)
	}
	return b[:n], from
}

// collect is what comes of n packets, which are sent one by one: the sockets'
// buffers are no fault.
func (x *ends) collect(n uint32) (got [][]byte) {
	x.t.Helper()
	for i := range n {
		x.send(i, 1)
		x.settled(int(i) + 1)
		for c := x.relay.Counts(); len(got) < c.Passed+c.Duplicated; {
			b, _ := x.recv()
			got = append(got, b)
		}
	}
	return got
}

// settled waits until the relay has treated n packets.
func (x *ends) settled(n int) {
	x.t.Helper()
	for end := time.Now().Add(patience); ; {
		c := x.relay.Counts()
		if c.Passed+c.Lost >= n {
			return
		}
		if time.Now().After(end) {
			x.t.Fatalf("%d packets were sent, the relay has %+v", n, c)
		}
	}
}

func TestWithoutFaultsAllPassesBothWays(t *testing.T) {
	x := between(t, Faults{})
	x.send(0, 50)
	for i := range uint32(50) {
		b, from := x.recv()
		if !bytes.Equal(b, packet(i)) {
			t.Fatalf("packet %d is %x", i, b)
		}
		if _, err := x.server.WriteToUDPAddrPort(b, from); err != nil {
			t.Fatal(err)
		}
	}
	b := make([]byte, 1000)
	for i := range uint32(50) {
		x.client.SetReadDeadline(time.Now().Add(patience))
		n, err := x.client.Read(b)
		if err != nil || !bytes.Equal(b[:n], packet(i)) {
			t.Fatalf("answer %d is %x: %v", i, b[:n], err)
		}
	}
	if c := x.relay.Counts(); c != (Counts{Passed: 100}) {
		t.Errorf("%+v", c)
	}
}

// Each fault happens about as often as it should, is counted, and is what it is
// called.
func TestFaults(t *testing.T) {
	const n = 1000
	near := func(what string, got, want int) {
		t.Helper()
		if got < want*3/4 || got > want*5/4 {
			t.Errorf("%s: %d of %d packets, want about %d", what, got, n, want)
		}
	}
	run := func(f Faults) (Counts, [][]byte) {
		x := between(t, f)
		got := x.collect(n)
		return x.relay.Counts(), got
	}
	c, got := run(Faults{Loss: 0.2})
	near("loss", c.Lost, n/5)
	if len(got) != n-c.Lost || c.Passed != n-c.Lost {
		t.Errorf("%d came, %+v", len(got), c)
	}
	c, got = run(Faults{Duplicate: 0.2})
	near("duplication", c.Duplicated, n/5)
	if len(got) != n+c.Duplicated {
		t.Errorf("%d came, %+v", len(got), c)
	}
	c, got = run(Faults{Corrupt: 0.2})
	near("corruption", c.Corrupted, n/5)
	bad := 0
	for i, b := range got {
		diff := 0
		for k, v := range packet(uint32(i)) {
			if b[k] != v {
				diff++
			}
		}
		if diff > 1 {
			t.Fatalf("packet %d differs in %d bytes", i, diff)
		}
		bad += diff
	}
	if bad != c.Corrupted || len(got) != n {
		t.Errorf("%d of %d packets are corrupt, %+v", bad, len(got), c)
	}
}

// Packets that are late come after those behind them.
func TestReordering(t *testing.T) {
	x := between(t, Faults{Reorder: 1, Delay: time.Hour})
	x.send(0, 1)
	x.settled(1)
	x.relay.SetFaults(Faults{})
	x.send(1, 1)
	for _, want := range []uint32{1, 0} {
		if b, _ := x.recv(); !bytes.Equal(b, packet(want)) {
			t.Errorf("%x comes, want packet %d", b, want)
		}
		x.relay.mu.Lock()
		for l := range x.relay.late {
			l.Reset(0) // its time is over
		}
		x.relay.mu.Unlock()
	}
	if c := x.relay.Counts(); c.Reordered != 1 {
		t.Errorf("%+v", c)
	}
}

func TestLatency(t *testing.T) {
	x := between(t, Faults{Latency: 20 * time.Millisecond})
	start := time.Now()
	x.send(0, 1)
	x.recv()
	if d := time.Since(start); d < 20*time.Millisecond {
		t.Errorf("a packet came after %v", d)
	}
}

// Drop tells the direction, and what it loses is lost.
func TestDrop(t *testing.T) {
	x := between(t, Faults{Drop: func(fromClient bool, p []byte) bool { return fromClient && p[99]%2 == 1 }})
	got := x.collect(6)
	if len(got) != 3 || !bytes.Equal(got[1], packet(2)) || x.relay.Counts().Lost != 3 {
		t.Errorf("%x, %+v", got, x.relay.Counts())
	}
	x.relay.SetFaults(Faults{Drop: func(fromClient bool, _ []byte) bool { return !fromClient }})
	x.send(6, 1)
	_, from := x.recv()
	if _, err := x.server.WriteToUDPAddrPort([]byte("answer"), from); err != nil {
		t.Fatal(err)
	}
	x.settled(8)
	x.client.SetReadDeadline(time.Now().Add(time.Millisecond))
	if n, err := x.client.Read(make([]byte, 10)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("an answer of %d bytes came: %v", n, err)
	}
}

// After Rebind a client has another port.
func TestRebind(t *testing.T) {
	x := between(t, Faults{})
	x.send(0, 1)
	_, a := x.recv()
	x.relay.Rebind()
	x.send(1, 1)
	_, b := x.recv()
	if a == b {
		t.Errorf("the client is at %v before and after", a)
	}
}

func TestOnlyLoopback(t *testing.T) {
	if _, err := NewRelay(netip.MustParseAddrPort("192.0.2.1:9899"), Faults{}, 1); err == nil {
		t.Error("a relay to another host")
	}
}

// Close ends what waits, more than once, and nothing passes afterwards.
func TestClose(t *testing.T) {
	x := between(t, Faults{Latency: time.Hour})
	x.send(0, 3)
	x.settled(3)
	for range 2 {
		if err := x.relay.Close(); err != nil {
			t.Error(err)
		}
	}
	x.relay.Rebind()
	x.relay.mu.Lock()
	defer x.relay.mu.Unlock()
	for l := range x.relay.late {
		if l.Stop() {
			t.Error("a packet still waits to be sent")
		}
	}
}
