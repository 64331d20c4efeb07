package daemon

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/hangs"
	"github.com/ironwarp/ironwarp/transport"
)

// soon fails the test if f takes longer than what a user's program should be able to make root, and others, wait.
func soon(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	case <-time.After(waitTime):
		t.Fatalf("a program makes the daemon wait: %s", what)
	}
}

// TestProgramThatKeepsItsSocketLocked has nobody wait for it: a page from which it sends does not come (FUSE), and what is
// asked of the socket waits in the kernel until it does.
func TestProgramThatKeepsItsSocketLocked(t *testing.T) {
	h := withPrograms(t)
	p := h.program(alice)
	s := p.mustConnect(firstPort + 3)
	other := p.mustConnect(firstPort + 4)
	unlock := hangs.Lock(t, s.TCPConn)
	id := ""
	soon(t, "bob's stream ls", func() error { _, err := h.as(bob).Streams(t.Context()); return err })
	soon(t, "status", func() error { _, err := h.api.Status(t.Context()); return err })
	soon(t, "stream ls", func() error {
		list, err := h.api.Streams(t.Context())
		for _, l := range list {
			if l.Program != "" && l.Flow == flowOf(s) {
				id = l.ID
			}
		}
		return err
	})
	soon(t, "another program", func() error { h.program(bob).mustConnect(firstPort + 16); return nil })
	soon(t, "stream kill", func() error { _, err := h.api.KillStream(t.Context(), id); return err })
	soon(t, "a reload that ends its streams", func() error { h.ulps(""); return nil })
	if !other.isOver() {
		t.Error("its other stream goes on")
	}
	soon(t, "the daemon's end", func() error { h.stop(); return nil })
	unlock()
}

func flowOf(s *ownStream) string {
	return transport.Flow{Protocol: transport.ProtoTCP, Local: s.LocalAddr().(*net.TCPAddr).AddrPort(), Remote: s.RemoteAddr().(*net.TCPAddr).AddrPort()}.String()
}

// TestProgramThatDoesNotRead what the daemon tells it: a reload does not wait for that.
func TestProgramThatDoesNotRead(t *testing.T) {
	h := withPrograms(t)
	c, err := h.dialFlows(alice)(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for id := 1; id <= 2000; id++ { // an answer is longer than its question, and so many have no room
		body := fmt.Sprintf(`{"op":"ports","id":%d}`, id)
		if _, err := c.Write(append([]byte{0, 0, 0, byte(len(body))}, body...)); err != nil {
			t.Fatal(err)
		}
	}
	last, same := -1, 0
	eventually(t, "an answer has no room", func() bool {
		n := 0
		raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
		if same++; n != last {
			last, same = n, 0
		}
		return same == 20
	})
	soon(t, "a reload", func() error { h.ulps(programUsers(", limits: {attachments: 3}")); return nil })
}

// TestProgramThatLeavesDescriptorsBehind, which its connection's close closes, keeps the daemon from no end.
func TestProgramThatLeavesDescriptorsBehind(t *testing.T) {
	h := withPrograms(t)
	fd := hangs.Descriptor(t)
	eventually(t, "it is left behind", func() bool {
		c, err := h.dialFlows(alice)(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, _, err := c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil); err != nil { // the daemon takes none yet
			return false
		}
		_, _ = c.Write(make([]byte, 9000)) // no message
		_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
		return err == nil
	})
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	soon(t, "a reload", func() error { h.ulps(""); return nil })
	soon(t, "the daemon's end", func() error { h.stop(); return nil })
}

// TestProgramSpeaksAgainstNoPeer: it hands over one connection from a peer a thousand times, as if that had made so many.
func TestProgramSpeaksAgainstNoPeer(t *testing.T) {
	h := withPrograms(t)
	p := h.program(bob)
	s, err := p.connect(firstPort+16, true)
	if err != nil {
		t.Fatal(err)
	}
	for range 1100 {
		if _, err := p.Admit(t.Context(), transport.Flow{}, false, s); err == nil {
			t.Fatal("one flow was admitted twice")
		}
	}
	for range 200 { // who is to be blocked is so by another goroutine
		if blocks, err := h.api.Blocks(t.Context()); err != nil || len(blocks) > 0 {
			t.Fatalf("%+v, %v", blocks, err)
		}
	}
	if !h.program(alice).mustConnect(firstPort).works() {
		t.Error("another user's stream carries nothing")
	}
}

// TestProgramSaysThatItWasDialled, and has dialled another's port from one of its own.
func TestProgramSaysThatItWasDialled(t *testing.T) {
	h := withPrograms(t)
	p := h.program(bob)
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	for i, tc := range []struct {
		to  uint16
		may bool
	}{{firstPort + 2, false}, {firstPort + 17, true}} {
		l, err := lc.Listen(t.Context(), "tcp4", fmt.Sprintf("127.0.0.1:%d", tc.to))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: firstPort + 20 + i}}
		d.SetMultipathTCP(false)
		c, err := d.DialContext(t.Context(), "tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = p.Admit(t.Context(), transport.Flow{}, false, &ownStream{TCPConn: c.(*net.TCPConn)})
		if tc.may && err != nil || !tc.may && !errors.Is(err, transport.ErrNotProtected) {
			t.Errorf("to port %d: %v", tc.to, err)
		}
	}
}
