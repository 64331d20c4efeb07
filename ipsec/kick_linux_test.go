package ipsec

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRetransmissionTimeoutIsShortOnlyWhileAFlowIsHurried(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	longest := func() (ms int) {
		control(c, func(fd int) {
			if ms, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS); err != nil {
				t.Skipf("TCP_RTO_MAX_MS needs Linux 6.15: %v", err)
			}
		})
		return ms
	}
	before := longest()
	patience := hurry(c)
	if got := longest(); patience != before || got != hurryMS {
		t.Errorf("hurried: %d ms, was %d, to be restored %d", got, before, patience)
	}
	if again := hurry(c); again != 0 {
		t.Errorf("a second hurry would restore %d ms", again)
	}
	calm(c, patience)
	if got := longest(); got != before {
		t.Errorf("calm: %d ms, was %d", got, before)
	}
	if kick(c) {
		t.Error("a connection that has nothing to send counts as stuck")
	}
	if hurry("no connection") != 0 || kick(nil) {
		t.Error("what is no socket was hurried or kicked")
	}
}
