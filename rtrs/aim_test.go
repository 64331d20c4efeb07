package rtrs

import (
	"bytes"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/verbs"
)

// aimed is a target, and the Completion of the read whose data it takes.
type aimed struct {
	*waiter
	mu   sync.Mutex // guards the fields below it
	mem  []byte
	from uint64 // what is before that is refused
	got  int    // bytes that were taken

	over atomic.Bool
	then func(p *Permit) // what the completion does; may be nil
	late atomic.Int64    // bytes that came after the completion
}

func newAimed(n int) *aimed { return &aimed{waiter: newWaiter(), mem: make([]byte, n)} }

func (a *aimed) Place(at uint64, b []byte) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.over.Load() {
		a.late.Add(int64(len(b)))
	}
	if at < a.from {
		return false
	}
	a.got += copy(a.mem[at:], b)
	return true
}

func (a *aimed) Complete(p *Permit, errno syscall.Errno) {
	a.over.Store(true)
	if a.then != nil {
		a.then(p)
	}
	a.waiter.Complete(p, errno)
}

func (a *aimed) taken() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.got
}

func (a *aimed) content() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return bytes.Clone(a.mem)
}

// The data of a read that is aimed goes to the target and not to the permit's buffer, which
// gets what the target refuses, with a CRC and without. The next read of the permit is not
// aimed any more.
func TestAimedRead(t *testing.T) {
	const n, at = 150<<10 + 512, 512
	for _, crc := range []bool{true, false} {
		t.Run(fmt.Sprintf("CRC %v", crc), func(t *testing.T) {
			m := newMemory(n)
			fill(m.data, 0x0102030405060708)
			srv := startServer(t, ServerConfig{NewSession: m.session})
			cfg := clientConfig(newHost(t), srv.addr, "a")
			cfg.QueueDepth, cfg.Setup.NoCRC = 1, !crc
			cl := connect(t, cfg)
			for _, from := range []uint64{0, n / 2} {
				p, a := get(t, cl), newAimed(at+n)
				clear(p.Buffer())
				a.from = at + from
				p.Aim(a, at)
				p.Submit(Read, header(0), n, a)
				if errno := a.wait(t); errno != 0 {
					t.Fatal(errno)
				}
				mem, buf := a.content()[at:], p.Buffer()[:n]
				if from == 0 && (!bytes.Equal(buf, make([]byte, n)) || !bytes.Equal(mem, m.data)) {
					t.Error("the data is not in the target alone")
				}
				for i, v := range m.data {
					if mem[i]|buf[i] != v || mem[i]&buf[i] != 0 {
						t.Fatalf("byte %d is %#x in the target and %#x in the buffer, want %#x in one", i, mem[i], buf[i], v)
					}
				}
				cl.Put(p)
				got := make([]byte, n)
				if errno := read(t, cl, 0, got); errno != 0 || !bytes.Equal(got, m.data) || a.late.Load() != 0 {
					t.Errorf("a read after that: %v, %d bytes to the target", errno, a.late.Load())
				}
			}
		})
	}
}

// A read is under way by a path when that is avoided, and goes on by another: once it has
// ended, what the first path still brings does not reach the target, and neither path ends.
func TestWhatALeftPathBringsReachesNoTarget(t *testing.T) {
	if err := leftPath(t); err != nil {
		t.Error(err)
	}
}

func leftPath(t *testing.T) error {
	const n = 512 << 10
	m := newMemory(n)
	fill(m.data, 0x0102030405060708)
	srv := startServer(t, ServerConfig{NewSession: m.session, MaxIO: n, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cfg.Policy, cfg.QueueDepth = Preferred, 1
	cl := connect(t, cfg)
	allUp(t, cl)
	p, a := get(t, cl), newAimed(n)
	rs[0].freezeAfter(n / 2)
	p.Aim(a, 0)
	p.Submit(Read, header(0), n, a)
	eventually(t, "some data has come", func() bool { return a.taken() > 0 })
	if a.taken() > n/2 {
		t.Fatal("all has come")
	}
	rs[0].away.Store(true)
	if errno := a.wait(t); errno != 0 {
		t.Fatal(errno)
	}
	if !bytes.Equal(a.content(), m.data) {
		t.Error("the read has other data")
	}
	cl.mu.Lock()
	old, now := cl.paths[0], cl.paths[1]
	cl.mu.Unlock()
	if !bytes.Equal(now.chunks[p.ID()].buf, make([]byte, n)) {
		t.Error("data went through the memory of the path")
	}
	a.mu.Lock()
	clear(a.mem) // it is another's by now
	a.mu.Unlock()
	rs[0].setAway(false)
	eventually(t, "the path has brought the rest", func() bool { return cl.Info().Paths[0].InFlight == 0 })
	if late := a.late.Load(); late != 0 || !bytes.Equal(a.content(), make([]byte, n)) {
		return fmt.Errorf("%d bytes reached the target after the read had ended", late)
	}
	if tail := old.chunks[p.ID()].buf[n-512:]; !bytes.Equal(tail, m.data[n-512:]) {
		t.Error("the path has brought nothing late")
	}
	for _, i := range cl.Info().Paths {
		if i.State != PathConnected || i.Incarnation != 1 {
			t.Errorf("%+v", i)
		}
	}
	cl.Put(p)
	return nil
}

// A read fails for want of a path, or since the client is closed: once it has ended, what its
// path still brings, before that has ended as well, does not reach its target.
func TestFailedReadLeavesItsTarget(t *testing.T) {
	const n = 512 << 10
	for name, end := range map[string]func(cl *Client){
		"no path": func(cl *Client) { cl.SetNoPath(NoPath{Fail: true}) },
		"closed":  func(cl *Client) { go cl.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(n)
			fill(m.data, 0x0102030405060708)
			srv := startServer(t, ServerConfig{NewSession: m.session, MaxIO: n, Linger: time.Minute})
			rs, cfg := roads(t, srv, 1)
			cl := connect(t, cfg)
			p, a := get(t, cl), newAimed(n)
			rs[0].freezeAfter(n / 2)
			a.then = func(p *Permit) {
				rs[0].setAway(false)
				ch := &p.at.chunks[p.ID()]
				// The path brings the rest, or ends first.
				for ch.buf[n-1] == 0 && a.late.Load() == 0 && ch.busy.Load() {
					runtime.Gosched()
				}
			}
			p.Aim(a, 0)
			p.Submit(Read, header(0), n, a)
			eventually(t, "some data has come", func() bool { return a.taken() > 0 })
			rs[0].away.Store(true)
			end(cl)
			if errno := a.wait(t); errno == 0 {
				t.Error("it has succeeded")
			}
			if late := a.late.Load(); late != 0 {
				t.Errorf("%d bytes reached the target after the read had ended", late)
			}
			cl.Put(p)
		})
	}
}

var _ verbs.Target = (*aimed)(nil)
