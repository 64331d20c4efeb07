package rtrs

import (
	"bytes"
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
