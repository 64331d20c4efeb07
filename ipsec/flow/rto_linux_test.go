package flow

import (
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestRetransmissionTimeoutIsShortOnlyUntilItIsRestored(t *testing.T) {
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
	longest := func() int {
		return control(c, func(fd int) int {
			ms, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, tcpRTOMaxMS)
			if err != nil {
				t.Skipf("TCP_RTO_MAX_MS needs Linux 6.15: %v", err)
			}
			return ms
		})
	}
	before := longest()
	w := &Watch{Monitored: tcp{c}}
	for range 2 { // the second time changes nothing, nor what is restored
		w.ShortenRTO()
		if got := longest(); got != int(shortRTO/time.Millisecond) {
			t.Errorf("shortened: %d ms, was %d", got, before)
		}
	}
	w.RestoreRTO()
	if got := longest(); got != before {
		t.Errorf("restored: %d ms, was %d", got, before)
	}
	if w.Kick() {
		t.Error("a connection that has nothing to send counts as stuck")
	}
	none := &Watch{Monitored: &counting{}}
	none.ShortenRTO()
	if none.rtoMax != 0 || none.Kick() {
		t.Error("what is no socket had its timeout cut, or is stuck")
	}
}

// tcp is a TCP connection as a stream hands it over.
type tcp struct{ net.Conn }

func (tcp) Outq() (int, error) { return 0, nil }

func (c tcp) SyscallConn() (syscall.RawConn, error) { return c.Conn.(syscall.Conn).SyscallConn() }
