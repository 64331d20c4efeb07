package rnbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// A disk whose server is there before its storage is waits for it.
func TestDiskWaitsForItsStorage(t *testing.T) { play(t, waitScenes) }

var waitScenes = []scene{
	{"the server boots, and its storage comes late", checks.ReadyFirst, lateStorage},
	{"a session before has not ended what it was given", checks.ReadyFirst, ghostHasIO},
}

func lateStorage(t *testing.T) error {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	l := startLink(t, srv.addr.String())
	c := connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort())
	d := openDisk(t, c, "r")
	allow := []transport.Identity{srv.rt.Sessions()[0].Peer}
	for round := range byte(2) {
		l.set(false)
		srv.stop(t)
		eventually(t, "the path is lost", func() bool { return c.Info().State == rtrs.Reconnecting })
		parked := start(t, d, block.OpWrite, filled(3*round+1), 0)
		held, err := d.Get(testContext(t), block.OpWrite, 4096, 4096, 0)
		if err != nil {
			return err
		}
		srv = startServerAt(t, srv.addr, rtrs.ServerConfig{})
		srv.Await("r", "", allow, "no such device")
		l.set(true)
		eventually(t, "the disk waits", func() bool {
			if !checks.On(checks.ReadyFirst) {
				return d.Info().Err != nil
			}
			w := d.Info().Waits
			return w != nil && errors.Is(w, ErrNotReady) && strings.Contains(w.Error(), "no such device")
		})
		if _, err := d.TryGet(block.OpRead, 0, 512, 0); !errors.Is(err, block.ErrBusy) {
			return fmt.Errorf("TryGet: %v, want ErrBusy", err)
		}
		copy(held.Buffers()[0], filled(3*round+2))
		second := newWaiter()
		held.Submit(second, false)
		third := make(chan syscall.Errno, 1)
		go func() { third <- do(t, d, block.OpWrite, filled(3*round+3), 8192, 0, 0) }()
		if err := srv.AddExport(ramExport("r", r)); err != nil {
			return err
		}
		for i, errno := range []syscall.Errno{parked.wait(t), second.wait(t), <-third} {
			if errno != 0 {
				return fmt.Errorf("write %d: %w", i, errno)
			}
		}
		held.Release()
		for i := range byte(3) {
			if got := r.at(int64(i) * 4096); got != 3*round+i+1 {
				return fmt.Errorf("block %d has %d", i, got)
			}
		}
		if i := d.Info(); i.Waits != nil || i.Err != nil || i.Stats.Errors != 0 {
			return fmt.Errorf("%+v", i)
		}
	}
	return nil
}

// ghostHasIO: another session of the same attachment has I/O at the storage when the
// disk is opened again.
func ghostHasIO(t *testing.T) error {
	r := newRAM(1 << 20)
	var hang atomic.Bool
	entered, release := make(chan struct{}), make(chan struct{})
	r.before = func(op block.Op, _, _ int64) syscall.Errno {
		if op == block.OpWrite && hang.CompareAndSwap(true, false) {
			close(entered)
			<-release
		}
		return 0
	}
	p := newPath(t, r)
	ghost, err := connectAs(t, "ghost", loopback(), p.srv.addr).Open(testContext(t), "r", OpenOptions{Claim: p.disk.Claim()})
	if err != nil {
		return err
	}
	hang.Store(true)
	old := start(t, ghost, block.OpWrite, filled(1), 0)
	<-entered
	p.lose(t)
	w := start(t, p.disk, block.OpWrite, filled(2), 0)
	p.link.set(true)
	eventually(t, "the disk says what is the matter", func() bool {
		i := p.disk.Info()
		err := i.Waits
		if !checks.On(checks.ReadyFirst) {
			err = i.Err
		}
		return errors.Is(err, syscall.EBUSY) && strings.Contains(err.Error(), "before the session was lost")
	})
	close(release)
	old.wait(t)
	if errno := w.wait(t); errno != 0 {
		return errno
	}
	if got := r.at(0); got != 2 {
		return fmt.Errorf("the block has %d", got)
	}
	return nil
}

// waiting has a disk whose server does not have its storage yet.
type waiting struct {
	*path
	ram *ram
}

func newWaiting(t *testing.T) *waiting {
	r := newRAM(1 << 20)
	p := &path{srv: startServer(t, ramExport("r", r))}
	p.link = startLink(t, p.srv.addr.String())
	p.c = connectOne(t, p.link)
	p.disk = openDisk(t, p.c, "r")
	p.nbd = serveDisk(t, p.disk)
	allow := p.srv.rt.Sessions()[0].Peer
	p.lose(t)
	eventually(t, "its session ends", func() bool { return len(p.srv.Exports()[0].Openers) == 0 })
	if err := p.srv.RemoveExport("r"); err != nil {
		t.Fatal(err)
	}
	p.srv.Await("r", "", append(ramExport("r", nil).Allow, allow), "no such device")
	return &waiting{p, r}
}

func (w *waiting) connect(t *testing.T) {
	w.link.set(true)
	eventually(t, "the disk waits", func() bool { return w.disk.Info().Waits != nil && w.c.Info().State == rtrs.Connected })
}

func TestCloseEndsTheWaiting(t *testing.T) {
	for name, up := range map[string]bool{"with a path": true, "without one": false} {
		t.Run(name, func(t *testing.T) {
			w := newWaiting(t)
			parked := start(t, w.disk, block.OpWrite, filled(1), 0)
			w.connect(t)
			if !up {
				w.lose(t)
			}
			got := make(chan error, 1)
			go func() {
				_, err := w.disk.Get(context.Background(), block.OpRead, 0, 512, 0)
				got <- err
			}()
			if err := w.disk.Close(); err != nil {
				t.Error(err)
			}
			if errno := parked.wait(t); errno != syscall.ESHUTDOWN {
				t.Errorf("the write that waited: %v, want ESHUTDOWN", errno)
			}
			if err := <-got; !errors.Is(err, ErrClosed) {
				t.Errorf("the read that waited: %v, want ErrClosed", err)
			}
			w.link.set(true)
			if err := w.srv.AddExport(ramExport("r", w.ram)); err != nil {
				t.Fatal(err)
			}
			write(t, openDisk(t, w.c, "r"), filled(2), 4096)
			if w.ram.at(0) != 0 {
				t.Error("the write of the closed disk was carried out")
			}
		})
	}
}

func TestCloseOfTheClientEndsTheWaiting(t *testing.T) {
	w := newWaiting(t)
	w.connect(t)
	ctx := testContext(t)
	got := make(chan error, 1)
	go func() {
		_, err := w.disk.Get(ctx, block.OpRead, 0, 512, 0)
		got <- err
	}()
	if err := w.c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("the read that waited: %v, want ESHUTDOWN", err)
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	w := newWaiting(t)
	w.connect(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := w.disk.Get(ctx, block.OpRead, 0, 512, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRefusalEndsTheWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		then func(w *waiting) error
		want error
	}{
		"another disk": {func(w *waiting) error { return w.srv.AddExport(ramExport("r", newRAM(1<<20))) }, ErrOtherDisk},
		"none":         {func(w *waiting) error { return w.srv.RemoveExport("r") }, ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaiting(t)
			parked := start(t, w.disk, block.OpWrite, filled(1), 0)
			w.connect(t)
			got := make(chan error, 1)
			go func() {
				_, err := w.disk.Get(context.Background(), block.OpRead, 0, 512, 0)
				got <- err
			}()
			if err := c.then(w); err != nil {
				t.Fatal(err)
			}
			if errno := parked.wait(t); errno != syscall.EIO {
				t.Errorf("the write that waited: %v, want EIO", errno)
			}
			if err := <-got; !errors.Is(err, c.want) || errnoOf(t, err) != syscall.EIO {
				t.Errorf("the read that waited: %v, want %v", err, c.want)
			}
			if err := w.disk.Info().Err; !errors.Is(err, c.want) {
				t.Errorf("state %v", err)
			}
		})
	}
}

// A write of an NBD client that is killed while the disk waits is not carried out, and
// its successor's is.
func TestNothingOfAGoneClientOutlivesTheWaiting(t *testing.T) {
	w := newWaiting(t)
	first := w.nbd.client()
	if err := first.Send(0, nbdWrite, 1, 0, 4096, filled(1)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the write waits", func() bool { return parked(w.c) == 1 })
	w.connect(t)
	first.Close()
	second := w.nbd.client()
	if err := second.Send(0, nbdRead, 2, 0, 4096, nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the first write is dropped", func() bool { return parked(w.c) == 0 })
	if err := w.srv.AddExport(ramExport("r", w.ram)); err != nil {
		t.Fatal(err)
	}
	a, err := second.Receive(func(uint64) int { return 4096 })
	if err != nil || a.Error != 0 || a.Data[0] != 0 {
		t.Errorf("%+v, %v", a, err)
	}
}

// What waits keeps its order over the loss of further paths.
func TestWaitingKeepsTheOrderOfPosting(t *testing.T) {
	w := newWaiting(t)
	var early []block.IO
	for range 3 {
		io, err := w.disk.Get(testContext(t), block.OpWrite, 0, 4096, 0)
		if err != nil {
			t.Fatal(err)
		}
		early = append(early, io)
	}
	all := []*waiter{start(t, w.disk, block.OpWrite, filled(1), 0)}
	for i, io := range early {
		w.connect(t)
		copy(io.Buffers()[0], filled(byte(i+2)))
		inner := newWaiter()
		io.Submit(inner, false)
		all = append(all, inner)
		w.lose(t)
	}
	if err := w.srv.AddExport(ramExport("r", w.ram)); err != nil {
		t.Fatal(err)
	}
	w.link.set(true)
	for i, x := range all {
		if errno := x.wait(t); errno != 0 {
			t.Errorf("write %d: %v", i, errno)
		}
	}
	for _, io := range early {
		io.Release()
	}
	if got := w.ram.at(0); got != 4 {
		t.Errorf("the write that came last is number %d, want 4", got)
	}
}

// Neighbours of a disk that waits notice nothing.
func TestNeighbourOfADiskThatWaits(t *testing.T) {
	r, fine := newRAM(1<<20), newRAM(1<<20)
	srv := startServer(t, ramExport("r", r), ramExport("fine", fine))
	l := startLink(t, srv.addr.String())
	c := connect(t, l.ln.Addr().(*net.TCPAddr).AddrPort())
	d, df := openDisk(t, c, "r"), openDisk(t, c, "fine")
	peer := srv.rt.Sessions()[0].Peer
	l.set(false)
	eventually(t, "the path is lost", func() bool { return c.Info().State == rtrs.Reconnecting })
	w := start(t, d, block.OpWrite, filled(1), 0)
	if err := srv.RemoveExport("r"); err != nil {
		t.Fatal(err)
	}
	srv.Await("r", "", append(ramExport("r", nil).Allow, peer), "no such device")
	l.set(true)
	eventually(t, "the disk waits", func() bool { return d.Info().Waits != nil })
	for range 100 {
		write(t, df, filled(3), 0)
	}
	if err := srv.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	if errno := w.wait(t); errno != 0 {
		t.Error(errno)
	}
}
