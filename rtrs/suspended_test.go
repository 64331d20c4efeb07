package rtrs

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// An I/O that a server may be executing is not refused when its share resumes: nobody would
// know when it ends, and its permit would do something else meanwhile.
func TestIOThatIsBeingExecutedIsNotRefused(t *testing.T) {
	m := newMemory(4096)
	entered, release := make(chan struct{}, 8), make(chan struct{})
	m.gate = func(r *Request) {
		if r.Dir == Write && binary.LittleEndian.Uint64(r.Header) == 0 {
			entered <- struct{}{}
			<-release
		}
	}
	srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 1)
	var refused atomic.Int32
	cfg.OnResend = func(*Permit) syscall.Errno { refused.Add(1); return syscall.EIO }
	cl := connect(t, cfg)
	share := cl.NewShare()
	var one [1]*Permit
	if err := share.GetN(testContext(t), one[:]); err != nil {
		t.Fatal(err)
	}
	p, w := one[0], newWaiter()
	copy(p.Buffer(), bytes.Repeat([]byte{1}, 512))
	p.Submit(Write, header(0), 512, w)
	<-entered
	share.Suspend()
	rs[0].cut()
	eventually(t, "the path is back", func() bool { return cl.Info().Reconnects == 1 })
	if n := share.InFlight(); n != 1 {
		t.Errorf("%d I/Os of the share are in flight", n)
	}
	cl.DropParked(func(*Permit) syscall.Errno { return syscall.ECANCELED })
	share.Resume()
	select {
	case e := <-w.ch:
		t.Errorf("the write ended (%v) while it was being executed", e)
	default:
	}
	close(release)
	if e := w.wait(t); e != 0 {
		t.Error(e)
	}
	cl.Put(p)
	if n := refused.Load(); n != 0 {
		t.Errorf("%d I/Os were asked about", n)
	}
}

// A write that its path still has in a socket is not executed after a later one, whatever
// becomes of its share meanwhile.
func TestWriteOfASuspendedShareDoesNotComeLate(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	rs, cfg := roads(t, srv, 2)
	cfg.Policy = Preferred
	cfg.OnResend = func(*Permit) syscall.Errno { return syscall.EIO }
	cl := connect(t, cfg)
	allUp(t, cl)
	share := cl.NewShare()
	rs[0].setAway(true)
	var one [1]*Permit
	if err := share.GetN(testContext(t), one[:]); err != nil {
		t.Fatal(err)
	}
	p, w := one[0], newWaiter()
	fill(p.Buffer()[:512], 1)
	p.Submit(Write, header(1), 512, w)
	share.Suspend()
	eventually(t, "the path is avoided, and what it has goes by the other", func() bool {
		i := cl.Info().Paths[0]
		return i.Avoided && i.Moved == 1
	})
	share.Resume()
	if e := w.wait(t); e != 0 && j.executions(1) != 0 {
		t.Errorf("%v, and it was executed", e)
	}
	if e := j.put(t, cl, 65, 512); e != 0 {
		t.Fatal(e)
	}
	rs[0].setAway(false) // what was held back arrives
	eventually(t, "the path is used again", func() bool { i := cl.Info().Paths[0]; return !i.Avoided && i.InFlight == 0 })
	cl.Put(p)
	if j.last[1] != 65 {
		t.Errorf("the place has %d", j.last[1])
	}
}

// A session that was introduced to a server is known there, also where the path is lost before
// it has sent all that waited: what it has sent is being executed, and is not asked about again.
func TestPathIsLostWhileItSendsWhatWaited(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session})
	rs, cfg := roads(t, srv, 1)
	m := newMemory(2 * sendAtOnce)
	entered, release := make(chan struct{}, 8), make(chan struct{})
	m.gate = func(r *Request) {
		if r.Dir == Write && binary.LittleEndian.Uint64(r.Header) == 0 {
			entered <- struct{}{}
			<-release
		}
	}
	var greeted, asked atomic.Int32
	cfg.OnConnect = func(context.Context, *Client) error { greeted.Add(1); return nil }
	cfg.OnResend = func(p *Permit) syscall.Errno {
		switch asked.Add(1) {
		case 1:
			return 0
		case 2:
			<-entered // the first is being executed
			rs[0].cut()
			eventually(t, "the path is lost", func() bool { return !p.cl.HasPath() })
			return 0
		}
		return syscall.EIO
	}
	cl := connect(t, cfg)
	rs[0].freeze(true)
	first, w1 := get(t, cl), newWaiter()
	first.Submit(Write, header(0), sendAtOnce, w1) // does not wait to be sent with the other
	second, w2 := submit(t, cl, sendAtOnce)
	rs[0].setDown(true)
	rs[0].cut()
	rs[0].freeze(false)
	srv.stop(t)
	startServerAt(t, srv.addr, ServerConfig{NewSession: m.session, Linger: time.Minute})
	rs[0].setDown(false)
	if e := w2.wait(t); e != 0 {
		t.Error(e)
	}
	select {
	case e := <-w1.ch:
		t.Errorf("the write ended (%v) while it was being executed", e)
	default:
	}
	close(release)
	if e := w1.wait(t); e != 0 {
		t.Error(e)
	}
	cl.Put(first, second)
	if g, a := greeted.Load(), asked.Load(); g != 2 || a != 2 {
		t.Errorf("introduced %d times, and %d I/Os asked about", g, a)
	}
}

// A share that is suspended again while it resumes stays so, and what has not been sent waits.
func TestShareIsSuspendedAgainWhileItResumes(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Minute})
	_, cfg := roads(t, srv, 1)
	var share *Share
	var asked atomic.Int32
	cfg.OnResend = func(*Permit) syscall.Errno {
		if asked.Add(1) == 1 {
			share.Suspend()
		}
		return 0
	}
	cl := connect(t, cfg)
	share = cl.NewShare()
	share.Suspend()
	var ps [3]*Permit
	if err := share.GetN(testContext(t), ps[:]); err != nil {
		t.Fatal(err)
	}
	var ws [3]*waiter
	begin := func(i int) {
		ws[i] = newWaiter()
		fill(ps[i].Buffer()[:512], uint64(i))
		ps[i].Submit(Write, header(i), 512, ws[i])
	}
	begin(0)
	begin(1)
	share.Resume()
	if e := ws[0].wait(t); e != 0 {
		t.Error(e)
	}
	begin(2)
	if e := j.put(t, cl, 64, 512); e != 0 { // by which the server would have had the others
		t.Fatal(e)
	}
	if a, b, c := j.executions(0), j.executions(1), j.executions(2); a != 1 || b+c != 0 || asked.Load() != 1 {
		t.Errorf("executions: %d, %d, %d; asked about: %d", a, b, c, asked.Load())
	}
	share.Resume()
	for _, w := range ws[1:] {
		if e := w.wait(t); e != 0 {
			t.Error(e)
		}
	}
	cl.Put(ps[:]...)
}

// What hangs at the handler holds up nothing else, however often its path is lost.
func TestHungRequestHoldsUpNoPath(t *testing.T) {
	for _, dir := range []Dir{Write, Read} {
		t.Run(dir.String(), func(t *testing.T) {
			m := newMemory(4096)
			entered, release := make(chan struct{}, 8), make(chan struct{})
			m.gate = func(r *Request) {
				if r.Dir == dir && binary.LittleEndian.Uint64(r.Header) == 0 {
					entered <- struct{}{}
					<-release
				}
			}
			srv := startServer(t, ServerConfig{NewSession: m.session, Linger: time.Minute})
			rs, cfg := roads(t, srv, 1)
			cl := connect(t, cfg)
			p, w := get(t, cl), newWaiter()
			copy(p.Buffer(), bytes.Repeat([]byte{7}, 512))
			p.Submit(dir, header(0), 512, w)
			<-entered
			for n := range 3 * maxDying {
				rs[0].cut()
				q, beside := submit(t, cl, uint64(1024+n))
				select {
				case e := <-beside.ch:
					if e != 0 {
						t.Error(e)
					}
				case <-time.After(testTimeout / 4):
					t.Fatalf("after %d losses of the path nothing passes: %v", n+1, cl.Info().LastError)
				}
				cl.Put(q)
			}
			if dir == Read {
				m.mu.Lock()
				copy(m.data, bytes.Repeat([]byte{7}, 512))
				m.mu.Unlock()
			}
			if len(entered) > 0 {
				t.Error("it is executed twice at once")
			}
			close(release)
			if e := w.wait(t); e != 0 || !bytes.Equal(p.Buffer()[:512], bytes.Repeat([]byte{7}, 512)) {
				t.Errorf("%v, %d", e, p.Buffer()[0])
			}
			cl.Put(p)
			if dir == Write && len(entered) > 0 { // a read that comes after the end is executed again
				t.Error("it was executed again")
			}
		})
	}
}
