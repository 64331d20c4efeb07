package rnbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/verbs"
)

func TestNothingOfAGoneClientComesLate(t *testing.T) { play(t, successionScenes) }

var successionScenes = []scene{
	// Without the check this one shows its fault by chance only: posting order holds.
	{"killed while its write waits for the path", checks.None, killedWhileParked},
	{"killed while its write is being carried out and the path is lost", checks.Succession, killedInDoubt},
	{"writes that wait for the path", checks.PostingOrder, postingOrder},
	{"a write that is sent again after a later one to its block", checks.PostingOrder, sentAgainLate},
	{"a write that is sent again while it is being carried out", checks.AtMostOnce, sentAgainMeanwhile},
}

const nbdWrite, nbdRead = 1, 0

// served is a disk on an NBD socket.
type served struct {
	*nbd.Server
	t      testing.TB
	path   string
	export string
}

func serveDisk(t testing.TB, d *Disk) *served {
	t.Helper()
	s := &served{nbd.NewServer(nbd.Config{}), t, filepath.Join(t.TempDir(), "s"), d.Export()}
	if err := s.Export(d.Export(), d, ""); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ln, err := nbd.ListenUnix(ctx, s.path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(ctx, ln); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { stop(); wg.Wait() })
	return s
}

func (s *served) client() *nbdtest.Client {
	s.t.Helper()
	nc, err := net.Dial("unix", s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { nc.Close() })
	c, err := nbdtest.Connect(nc, s.export, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *served) stats() nbd.Stats {
	st, _ := s.Stats(s.export)
	return st
}

// path has a disk on a server behind a link.
type path struct {
	srv  *testServer
	link *link
	c    *Client
	disk *Disk
	nbd  *served
}

func newPath(t testing.TB, r *ram) *path {
	srv := startServer(t, ramExport("r", r))
	l := startLink(t, srv.addr.String())
	c := connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort())
	d := openDisk(t, c, "r")
	return &path{srv, l, c, d, serveDisk(t, d)}
}

// connectOne connects over a single connection, on which I/O keeps its order.
func connectOne(t testing.TB, l *link) *Client {
	t.Helper()
	_, ulp := newULP(t)
	c, err := Connect(testContext(t), ClientConfig{RTRS: rtrs.ClientConfig{ULP: ulp, Name: t.Name(), Conns: 1,
		Paths: []rtrs.PathConfig{{Remote: l.ln.Addr().(*net.TCPAddr).AddrPort(), Transport: loopback()}}, Setup: verbs.Setup{LargeFPDU: verbs.MaxLargeFPDU}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func (p *path) lose(t testing.TB) {
	p.link.set(false)
	eventually(t, "the path is lost", func() bool { return p.c.Info().State == rtrs.Reconnecting })
}

func filled(b byte) []byte { return bytes.Repeat([]byte{b}, 4096) }

// parked is how many I/Os wait for the path.
func parked(c *Client) (n int) {
	c.rt.DropParked(func(*rtrs.Permit) syscall.Errno { n++; return 0 })
	return n
}

// killedWhileParked: the path is down, a client writes 1 and is killed, another writes
// 2. The disk then has 2, and was never given the 1.
func killedWhileParked(t *testing.T) error {
	r := newRAM(1 << 20)
	var writes atomic.Int32
	r.before = func(op block.Op, _, _ int64) syscall.Errno {
		if op == block.OpWrite {
			writes.Add(1)
		}
		return 0
	}
	p := newPath(t, r)
	p.lose(t)
	first := p.nbd.client()
	if err := first.Send(0, nbdWrite, 1, 0, 4096, filled(1)); err != nil {
		return err
	}
	eventually(t, "the write waits for the path", func() bool { return parked(p.c) == 1 })
	first.Close()
	second := p.nbd.client()
	if err := second.Send(0, nbdWrite, 2, 0, 4096, filled(2)); err != nil {
		return err
	}
	want := 1
	if !checks.On(checks.Succession) {
		want = 2
	}
	eventually(t, "the second write waits for the path", func() bool {
		st := p.nbd.stats()
		return parked(p.c) == want && (want == 2 || st.Clients == 1 && st.Waiting == 0)
	})
	p.link.set(true)
	if a, err := second.Receive(func(uint64) int { return 0 }); err != nil || a.Error != 0 {
		return fmt.Errorf("%+v, %w", a, err)
	}
	return errors.Join(expect(second, 2), count(writes.Load(), 1))
}

func expect(c *nbdtest.Client, b byte) error {
	a, err := c.Do(0, nbdRead, 0, 4096, nil)
	if err == nil && (a.Error != 0 || !bytes.Equal(a.Data, filled(b))) {
		err = fmt.Errorf("the block has %d, error %d; %d was acknowledged", a.Data[0], a.Error, b)
	}
	return err
}

func count(got, want int32) error {
	if got != want {
		return fmt.Errorf("%d writes were carried out, want %d", got, want)
	}
	return nil
}

// killedInDoubt: a write is being carried out when the path is lost and its client is
// killed. What its successor does begins when that write has ended, and it is not sent
// again.
func killedInDoubt(t *testing.T) error {
	r := newRAM(1 << 20)
	entered, release, writes := r.holdFirstWrite()
	p := newPath(t, r)
	first := p.nbd.client()
	if err := first.Send(0, nbdWrite, 1, 0, 4096, filled(1)); err != nil {
		return err
	}
	<-entered
	p.lose(t)
	first.Close()
	second := p.nbd.client()
	if err := second.Send(0, nbdWrite, 2, 0, 4096, filled(2)); err != nil {
		return err
	}
	if checks.On(checks.Succession) {
		eventually(t, "the second client waits", func() bool { return p.nbd.stats().Waiting == 1 })
	}
	p.link.set(true)
	eventually(t, "the server lets nobody in while it carries the write out", func() bool {
		return errors.Is(p.c.Info().LastError, syscall.EBUSY)
	})
	close(release)
	if a, err := second.Receive(func(uint64) int { return 0 }); err != nil || a.Error != 0 {
		return fmt.Errorf("%+v, %w", a, err)
	}
	if !checks.On(checks.Succession) {
		eventually(t, "the dead client's write is sent again", func() bool { return writes.Load() == 3 })
	}
	return errors.Join(expect(second, 2), count(writes.Load(), 2))
}

// postingOrder: writes that wait for the path leave in the order in which they were
// submitted, and do so when they are sent once more after another loss.
func postingOrder(t *testing.T) error {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	l := startLink(t, srv.addr.String())
	c := connectOne(t, l)
	d := openDisk(t, c, "r")
	for round := range byte(3) {
		l.set(false)
		eventually(t, "the path is lost", func() bool { return c.Info().State == rtrs.Reconnecting })
		var all []*waiter
		for i := range byte(20) {
			all = append(all, start(t, d, block.OpWrite, filled(round*20+i+1), 0))
		}
		l.set(true)
		for _, w := range all {
			if errno := w.wait(t); errno != 0 {
				return errno
			}
		}
		if got := r.at(0); got != round*20+20 {
			return fmt.Errorf("the write that came last is number %d, not %d", got, round*20+20)
		}
	}
	return nil
}

// sentAgainLate: a write is being carried out, and another to the same block is
// submitted, when the path is lost. The first is sent again, and the block has the other.
func sentAgainLate(t *testing.T) error {
	r := newRAM(1 << 20)
	entered, release := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	r.before = func(op block.Op, off, _ int64) syscall.Errno {
		if op == block.OpWrite && off == 0 && first.CompareAndSwap(false, true) {
			close(entered)
			<-release
		}
		return 0
	}
	p := newPath(t, r)
	one := start(t, p.disk, block.OpWrite, filled(1), 0)
	<-entered
	two := start(t, p.disk, block.OpWrite, filled(2), 0)
	if errno := start(t, p.disk, block.OpWrite, filled(3), 8192).wait(t); errno != 0 {
		return fmt.Errorf("a write to another block: %w", errno)
	}
	if !checks.On(checks.PostingOrder) {
		if errno := two.wait(t); errno != 0 {
			return errno
		}
	}
	p.lose(t)
	close(release)
	p.link.set(true)
	if errno := one.wait(t); errno != 0 {
		return errno
	}
	if checks.On(checks.PostingOrder) {
		if errno := two.wait(t); errno != 0 {
			return errno
		}
	}
	if got := r.at(0); got != 2 {
		return fmt.Errorf("the block has %d, and 2 was acknowledged after it had been submitted last", got)
	}
	return nil
}

// TestClosedDiskTakesItsParkedIOAlong: neither the disk nor the next one gets it.
func TestClosedDiskTakesItsParkedIOAlong(t *testing.T) {
	a, b := newRAM(1<<20), newRAM(1<<20)
	srv := startServer(t, ramExport("a", a), ramExport("b", b))
	l := startLink(t, srv.addr.String())
	c := connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort())
	da, db := openDisk(t, c, "a"), openDisk(t, c, "b")
	l.set(false)
	eventually(t, "the path is lost", func() bool { return c.Info().State == rtrs.Reconnecting })
	gone, stays := start(t, da, block.OpWrite, filled(1), 0), start(t, db, block.OpWrite, filled(2), 0)
	if err := da.Close(); err != nil {
		t.Fatal(err)
	}
	if errno := gone.wait(t); errno != syscall.ESHUTDOWN {
		t.Errorf("the write of the closed disk: %v, want ESHUTDOWN while the path is still down", errno)
	}
	l.set(true)
	if errno := stays.wait(t); errno != 0 {
		t.Error(errno)
	}
	if a.at(0) != 0 || b.at(0) != 2 {
		t.Errorf("disk a has %d, disk b %d", a.at(0), b.at(0))
	}
}

// TestNeighboursOfAStuckDisk: what one disk of a session has under way, for as long as it
// likes, leaves the other disks their part.
func TestNeighboursOfAStuckDisk(t *testing.T) { play(t, neighbourScenes) }

var neighbourScenes = []scene{{"storage that hangs", checks.DiskShare, neighbourOfHungStorage}}

func neighbourOfHungStorage(t *testing.T) error {
	hung, fine := newRAM(1<<20), newRAM(8<<20)
	release := make(chan struct{})
	hung.before = func(block.Op, int64, int64) syscall.Errno { <-release; return 0 }
	srv := startServerAt(t, anyPort, rtrs.ServerConfig{QueueDepth: 16, MaxIO: 64 << 10}, ramExport("hung", hung), ramExport("fine", fine))
	c := connect(t, srv.addr)
	dh, df := openDisk(t, c, "hung"), openDisk(t, c, "fine")
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(release)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	under := func() int { return c.Info().InFlight }
	for range 64 {
		wg.Go(func() {
			io, err := dh.Get(ctx, block.OpWrite, 0, 4096, 0)
			if err != nil {
				return // the test is over
			}
			defer io.Release()
			w := newWaiter()
			io.Submit(w, false)
			<-w.ch
		})
	}
	eventually(t, "the hung disk has all it can get", func() bool {
		ok, err := dh.share.TryGetN(make([]*rtrs.Permit, 1))
		return err == nil && !ok
	})
	for i := range 32 {
		io, err := df.TryGet(block.OpWrite, uint64(i)<<16, 64<<10, 0)
		if err != nil {
			return fmt.Errorf("an I/O of the disk that is fine, while %d of %d permits are out: %w", under(), 16, err)
		}
		w := newWaiter()
		io.Submit(w, false)
		errno := w.wait(t)
		io.Release()
		if errno != 0 {
			return errno
		}
	}
	return nil
}

// sentAgainMeanwhile: the path is lost while the storage carries out a write, and the
// client is back before that has ended. The write is not carried out once more: the second
// time could come after another's write to the same block.
func sentAgainMeanwhile(t *testing.T) error {
	a := newRAM(1 << 20)
	var executions atomic.Int32
	begun, goOn := make(chan struct{}), make(chan struct{})
	a.before = func(op block.Op, off, _ int64) syscall.Errno {
		if op == block.OpWrite && off == 0 && executions.Add(1) == 1 {
			close(begun)
			<-goOn
		}
		return 0
	}
	srv := startServerWith(t, rtrs.ServerConfig{Linger: time.Minute}, ramExport("a", a))
	l := startLink(t, srv.addr.String())
	d := openDisk(t, connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort()), "a")
	written := start(t, d, block.OpWrite, bytes.Repeat([]byte{1}, 4096), 0)
	<-begun
	l.cut()
	write(t, d, make([]byte, 4096), 8192) // comes after what is sent again
	close(goOn)
	if errno := written.wait(t); errno != 0 {
		return errno
	}
	if n := executions.Load(); n != 1 {
		return fmt.Errorf("the write was carried out %d times", n)
	}
	return nil
}
