package nbd_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

func TestSlowClientsHoldNothing(t *testing.T) {
	for _, s := range slowScenes {
		t.Run(s.name, func(t *testing.T) {
			if err := s.show(t); err != nil {
				t.Error(err)
			}
		})
	}
}

var slowScenes = []scene{
	{"a header and one byte of a large write", checks.ClientBytes, func(t *testing.T) error {
		return neighbour(t, nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 0, 32<<20, []byte{1}))
	}},
	{"a header and one byte of a small write", checks.ClientBytes, func(t *testing.T) error {
		return neighbour(t, nbdtest.AppendRequest(nil, 0, cmdWrite, 1, 0, 64<<10, []byte{1}))
	}},
	{"reads whose data is not read", checks.ClientBytes, func(t *testing.T) error {
		var requests []byte // more than the socket takes
		for i := range uint64(8) {
			requests = nbdtest.AppendRequest(requests, 0, cmdRead, i, 0, 1<<20, nil)
		}
		return neighbour(t, requests)
	}},
}

// neighbour has a client send what keeps it waiting for itself, on a disk that has one
// I/O. Another client of the disk must not notice.
func neighbour(t *testing.T, request []byte) error {
	m := nbdtest.NewMemory(64 << 20)
	m.Depth = 1
	var asked atomic.Int32
	m.GetError = func(block.Op, uint64, uint32) error { asked.Add(1); return nil }
	s := serve(t, m, nbd.Config{})
	c := s.connect(false)
	if _, err := c.Write(request); err != nil {
		return err
	}
	eventually(t, "the slow client has asked for an I/O", func() bool { return asked.Load() > 0 })
	other, result := s.connect(false), make(chan error, 1)
	go func() {
		_, err := other.Do(0, cmdRead, 4096, 512, nil)
		result <- err
	}()
	var err error
	eventually(t, "the other client has its answer", func() bool {
		select {
		case err = <-result:
			return true
		default:
		}
		st, _ := s.Stats("disk")
		if st.Oldest > 10*time.Second {
			err = errors.New("a client waits for what another does not send or read")
			return true
		}
		return false
	})
	return err
}

// TestWriteThatComesInPieces: a client stops in the middle of writes, again and again,
// for so long that what has come is set aside. They arrive whole.
func TestWriteThatComesInPieces(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(4 << 20)
		m.Depth = 2
		c := serve(t, m, nbd.Config{}).connect(structured)
		for _, n := range []int{20_000, 300_001, 1 << 20, 3<<20 + 4711} {
			p := randomBytes(n)
			req := nbdtest.AppendRequest(nil, 0, cmdWrite, uint64(n), 17, uint32(n), p)
			for _, cut := range []int{29, 15_000, n / 3, n - 1} {
				done := n + 28 - len(req)
				if cut <= done {
					continue
				}
				if _, err := c.Write(req[:cut-done]); err != nil {
					t.Fatal(err)
				}
				req = req[cut-done:]
				m.WaitLive(0)
			}
			if _, err := c.Write(req); err != nil {
				t.Fatal(err)
			}
			if r, err := c.Receive(func(uint64) int { return 0 }); err != nil || r.Error != 0 || r.Cookie != uint64(n) {
				t.Fatalf("%+v, %v", r, err)
			}
			m.Data(func(data []byte) {
				if !bytes.Equal(data[17:17+n], p) {
					t.Errorf("a write of %d bytes is not what was sent", n)
				}
			})
		}
	})
}

// TestUnreadRepliesAreKept: a client asks for much, reads nothing for a while, and then
// gets all of it, the I/Os having been given back meanwhile.
func TestUnreadRepliesAreKept(t *testing.T) {
	eachKind(t, func(t *testing.T, structured bool) {
		m := nbdtest.NewMemory(8 << 20)
		s := serve(t, m, nbd.Config{})
		c := s.connect(structured)
		p := randomBytes(8 << 20)
		m.Data(func(data []byte) { copy(data, p) })
		const n, size = 64, 128 << 10
		for i := range uint64(n) {
			if err := c.Send(0, cmdRead, i, i*size, size, nil); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "the replies are kept", func() bool { return len(m.Calls()) > 0 && m.Live() == 0 })
		for range n {
			r, err := c.Receive(func(uint64) int { return size })
			if err != nil || r.Error != 0 || !bytes.Equal(r.Data, p[r.Cookie*size:(r.Cookie+1)*size]) {
				t.Fatalf("read %d: %d bytes, error %d, %v", r.Cookie, len(r.Data), r.Error, err)
			}
		}
		want(t, c, "write", 0, cmdWrite, 0, 512, make([]byte, 512), 0)
	})
}

// TestTooManyUnreadRepliesEndTheClient, and no other.
func TestTooManyUnreadRepliesEndTheClient(t *testing.T) {
	m := nbdtest.NewMemory(8 << 20)
	s := serve(t, m, nbd.Config{MaxKept: 1 << 20})
	good, c := s.connect(false), s.connect(false)
	clients := func(n int) func() bool {
		return func() bool {
			st, _ := s.Stats("disk")
			return st.Clients == n
		}
	}
	eventually(t, "both are there", clients(2))
	for i := range uint64(8) {
		if err := c.Send(0, cmdRead, i, 0, 1<<20, nil); err != nil {
			break
		}
	}
	eventually(t, "the client is cut off", clients(1))
	if n, err := io.Copy(io.Discard, c); n >= 8<<20 {
		t.Errorf("%d bytes came, %v", n, err)
	}
	m.WaitLive(0)
	want(t, good, "read", 0, cmdRead, 0, 512, nil, 0)
}

// TestSlowReaderOfALargeReadIsServed, however little may be kept: what is put together in
// memory anyhow is waited for.
func TestSlowReaderOfALargeReadIsServed(t *testing.T) {
	m := nbdtest.NewMemory(4 << 20)
	p := randomBytes(4 << 20)
	m.Data(func(data []byte) { copy(data, p) })
	s := serve(t, m, nbd.Config{MaxKept: 1 << 20})
	c := s.connect(false)
	for i := range uint64(3) {
		if err := errors.Join(c.Send(0, cmdRead, i, 0, uint32(len(p)), nil), c.Send(0, cmdRead, 10+i, 0, 4096, nil)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "nothing is held", func() bool { return len(m.Calls()) >= 4 && m.Live() == 0 })
	for range 6 {
		n := 0
		r, err := c.Receive(func(cookie uint64) int {
			n = 4096
			if cookie < 10 {
				n = len(p)
			}
			return n
		})
		if err != nil || r.Error != 0 || !bytes.Equal(r.Data, p[:n]) {
			t.Fatalf("%d bytes, error %d, %v", len(r.Data), r.Error, err)
		}
	}
}

func TestOldestRequest(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	m.Hold = func(block.Op, uint64) bool { return true }
	s := serve(t, m, nbd.Config{})
	c := s.connect(false)
	oldest := func() time.Duration { st, _ := s.Stats("disk"); return st.Oldest }
	if d := oldest(); d != 0 {
		t.Errorf("%v without a request", d)
	}
	c.Send(0, cmdRead, 1, 0, 512, nil)
	m.WaitHeld(1)
	eventually(t, "the request grows old", func() bool { return oldest() > 20*time.Millisecond })
	first := oldest()
	c.Send(0, cmdRead, 2, 512, 512, nil)
	m.WaitHeld(2)
	if d := oldest(); d < first {
		t.Errorf("a second request makes the oldest %v old, it was %v", d, first)
	}
	m.LetAll()
	if err := errors.Join(drop(c, 2), checkZero(oldest())); err != nil {
		t.Error(err)
	}
}

// A request that the device does not take waits for nothing once it is answered.
func TestRefusedRequestDoesNotGrowOld(t *testing.T) {
	m := nbdtest.NewMemory(1 << 20)
	m.GetError = func(block.Op, uint64, uint32) error { return syscall.EIO }
	s := serve(t, m, nbd.Config{})
	c := s.connect(false)
	for _, typ := range []uint16{cmdRead, cmdWrite} {
		r, err := c.Do(0, typ, 0, 512, map[uint16][]byte{cmdWrite: make([]byte, 512)}[typ])
		if err != nil || r.Error == 0 {
			t.Fatalf("%+v, %v", r, err)
		}
		st, _ := s.Stats("disk")
		if err := checkZero(st.Oldest); err != nil {
			t.Error(err)
		}
	}
}

func drop(c *nbdtest.Client, n int) error {
	for range n {
		if _, err := c.Receive(func(uint64) int { return 512 }); err != nil {
			return err
		}
	}
	return nil
}

func checkZero(d time.Duration) error {
	if d != 0 {
		return fmt.Errorf("the oldest request is %v old when all are answered", d)
	}
	return nil
}
