package nbd_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// scene is something that must not happen, and the check that keeps it away. show
// returns what happened nevertheless.
type scene struct {
	name  string
	check checks.Check
	show  func(t *testing.T) error
}

func TestNothingOfAGoneClientComesLate(t *testing.T) {
	for _, s := range successionScenes {
		t.Run(s.name, func(t *testing.T) {
			if err := s.show(t); err != nil {
				t.Error(err)
			}
		})
	}
}

var successionScenes = []scene{
	{"killed, and another client comes", checks.Succession, func(t *testing.T) error {
		return successor(t, func(s *server, c *nbdtest.Client) *nbdtest.Client {
			c.Close()
			return s.connect(false)
		})
	}},
	{"one of two connections is shut down", checks.Succession, func(t *testing.T) error {
		return successor(t, func(s *server, c *nbdtest.Client) *nbdtest.Client {
			other := s.connect(false)
			want(t, other, "read", 0, cmdRead, 1<<19, 512, nil, 0)
			u := c.Conn.(*net.UnixConn)
			if err := errors.Join(u.CloseRead(), u.CloseWrite()); err != nil {
				t.Fatal(err)
			}
			return other
		})
	}},
	{"disconnected, and another client comes", checks.Succession, func(t *testing.T) error {
		return successor(t, func(s *server, c *nbdtest.Client) *nbdtest.Client {
			if err := c.Send(0, cmdDisc, 0, 0, 0, nil); err != nil {
				t.Fatal(err)
			}
			c.Close()
			return s.connect(false)
		})
	}},
	{"cut off by the server, and its descriptor is another's", checks.Succession, func(t *testing.T) error {
		return successor(t, cutOff)
	}},
	{"killed with requests that nobody has read", checks.Succession, func(t *testing.T) error { return unreadRequests(t, serve) }},
	{"killed with requests that nobody has read from memory", checks.Succession, func(t *testing.T) error { return unreadRequests(t, serveInMemory) }},
}

func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timed out: %s", what)
		}
	}
}

// waits reports whether a client waits for the end of a predecessor's I/O, or replied is
// closed, which it should not be.
func waits(t *testing.T, s *server, replied chan struct{}) (early bool) {
	t.Helper()
	eventually(t, "the successor waits", func() bool {
		select {
		case <-replied:
			early = true
		default:
		}
		st, _ := s.Stats("disk")
		return early || st.Waiting > 0
	})
	return early
}

// successor has a client write a block, ends it while that is being done, and writes
// the block again as whoever comes after it.
func successor(t *testing.T, end func(*server, *nbdtest.Client) *nbdtest.Client) error {
	m := nbdtest.NewMemory(1 << 20)
	first := true
	m.Hold = func(op block.Op, off uint64) bool {
		hold := first && op == block.OpWrite
		first = first && !hold
		return hold
	}
	s := serve(t, m, nbd.Config{MaxInFlight: 1})
	c := s.connect(false)
	if err := c.Send(0, cmdWrite, 1, 0, 512, bytes.Repeat([]byte{1}, 512)); err != nil {
		return err
	}
	m.WaitHeld(1)
	next := end(s, c)
	replied, result := make(chan struct{}), make(chan error, 1)
	go func() {
		r, err := next.Do(0, cmdWrite, 0, 512, bytes.Repeat([]byte{2}, 512))
		if err == nil && r.Error != 0 {
			err = fmt.Errorf("error %d", r.Error)
		}
		result <- err
		close(replied)
	}()
	early := waits(t, s, replied)
	m.LetAll()
	if err := <-result; err != nil {
		return err
	}
	r, err := next.Do(0, cmdRead, 0, 512, nil)
	switch {
	case err != nil:
		return err
	case r.Data[0] != 2:
		return errors.New("a write of a client that is gone came after its successor's, which had been acknowledged")
	case early:
		return errors.New("the successor did not wait")
	}
	return nil
}

// cutOff ends a client's connection at the server, as it does with that of a user who may
// not use the disk any more, while nobody reads from it: it has all the requests under
// way that it may.
func cutOff(s *server, c *nbdtest.Client) *nbdtest.Client {
	if err := c.Send(0, cmdWrite, 2, 0, 512, bytes.Repeat([]byte{1}, 512)); err != nil {
		s.t.Fatal(err)
	}
	raw, err := c.Conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, "the server has read the request", func() bool {
		unread := -1
		raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		return err == nil && unread == 0
	})
	s.mu.Lock()
	s.conns[0].Close()
	s.mu.Unlock()
	return s.connect(false)
}

// unreadRequests: a client that is killed has more requests in its socket than the
// device takes at once. None of them begins after its successor's.
func unreadRequests(t *testing.T, serve func(testing.TB, block.Device, nbd.Config) *server) error {
	m := nbdtest.NewMemory(1 << 20)
	m.Depth = 1
	m.Hold = func(op block.Op, off uint64) bool { return off == 4096 }
	s := serve(t, m, nbd.Config{})
	c := s.connect(false)
	for i, off := range []uint64{4096, 0, 0, 0} {
		if err := c.Send(0, cmdWrite, uint64(i), off, 512, bytes.Repeat([]byte{1}, 512)); err != nil {
			return err
		}
	}
	m.WaitHeld(1)
	c.Close()
	next := s.connect(false)
	replied, result := make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := next.Do(0, cmdWrite, 0, 512, bytes.Repeat([]byte{2}, 512))
		result <- err
		close(replied)
	}()
	if checks.On(checks.Succession) {
		waits(t, s, replied)
	}
	m.LetAll()
	if err := <-result; err != nil {
		return err
	}
	m.WaitLive(0)
	eventually(t, "the dead client is gone", func() bool {
		st, _ := s.Stats("disk")
		return st.Clients == 1
	})
	if n := len(m.Calls()); n != 2 {
		return fmt.Errorf("the device was asked for %d I/Os, 2 were to begin: %v", n, m.Calls())
	}
	return nil
}

// A client that only stops sending still gets its answers, whoever comes.
func TestHalfClosedClientIsAnswered(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	m.Hold = func(op block.Op, _ uint64) bool { return op == block.OpWrite }
	s := serve(t, m, nbd.Config{})
	c := s.connect(false)
	c.Send(0, cmdWrite, 7, 0, 512, make([]byte, 512))
	m.WaitHeld(1)
	c.Conn.(*net.UnixConn).CloseWrite()
	next := s.connect(false)
	var replied chan struct{}
	for early := true; early; { // until the server has seen the end of what the first sends
		replied = make(chan struct{})
		go func() {
			defer close(replied)
			if r, err := next.Do(0, cmdRead, 0, 512, nil); err != nil || r.Error != 0 {
				t.Errorf("%+v, %v", r, err)
			}
		}()
		early = waits(t, s, replied)
	}
	m.LetAll()
	if r, err := c.Receive(func(uint64) int { return 0 }); err != nil || r.Cookie != 7 || r.Error != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	<-replied
}
