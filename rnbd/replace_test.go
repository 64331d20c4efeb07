package rnbd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block"
)

// Storage that is closed and opened again while a disk is in use is nothing that its
// users notice, if it is the same disk in a life that has all that was acknowledged.
// Else all I/O fails, what was under way included.
func TestStorageIsOpenedAgainUnderADisk(t *testing.T) {
	for _, tc := range []struct {
		name  string
		next  func(was *ram) *ram
		fails error
	}{
		{"the same life", func(r *ram) *ram { return r }, nil},
		{"a life that keeps all", func(r *ram) *ram { return nextLife(r, append(slices.Clone(r.kept), r.identity.Life)...) }, nil},
		{"a life that may have lost writes", func(r *ram) *ram { return nextLife(r) }, ErrWritesLost},
		{"another disk", func(r *ram) *ram { return newRAM(r.size) }, ErrOtherDisk},
	} {
		t.Run(tc.name, func(t *testing.T) { reopenUnder(t, tc.next, tc.fails) })
	}
}

// An export that is replaced while it is away stays one that comes back: I/O of those who
// have it open goes on to wait.
func TestReplacedWhileItIsAway(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	for _, why := range []string{"it is being opened again", "the daemon is ending"} {
		if err := srv.ReplaceExport("r", why); err != nil {
			t.Fatal(err)
		}
	}
	result := make(chan syscall.Errno)
	go func() { result <- do(t, d, block.OpWrite, filled(1), 0, 0, 0) }()
	eventually(t, "I/O waits for the second", func() bool {
		why := d.Info().Waits
		return why != nil && strings.Contains(why.Error(), "the daemon is ending")
	})
	if err := srv.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	if errno := <-result; errno != 0 {
		t.Error(errno)
	}
}

// nextLife is the same disk in another life, which keeps those before that it names.
func nextLife(r *ram, kept ...block.ID) *ram {
	return &ram{size: r.size, data: r.data, flushed: r.flushed, kept: kept, identity: block.Identity{Disk: r.identity.Disk, Life: block.NewID()}}
}

func reopenUnder(t *testing.T, next func(*ram) *ram, fails error) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r))
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	write(t, d, filled(9), 512<<10)
	const users = 4
	var wg sync.WaitGroup
	var rounds [users]int
	var ends [users]error
	ctx, stop := context.WithCancel(t.Context())
	for u := range users {
		off, p := uint64(u)*8192, make([]byte, 4096)
		wg.Go(func() {
			for ; ctx.Err() == nil && ends[u] == nil; rounds[u]++ {
				want := byte(rounds[u])
				for i := range p {
					p[i] = want
				}
				if errno := do(t, d, block.OpWrite, p, off, 0, 0); errno != 0 {
					ends[u] = fmt.Errorf("write %d: %w", rounds[u], errno)
					return
				}
				if errno := do(t, d, block.OpRead, p, off, 0, 0); errno != 0 || p[0] != want || p[4095] != want {
					ends[u] = fmt.Errorf("read %d: %d: %w", rounds[u], p[0], errno)
				}
			}
		})
	}
	for range 20 {
		if err := srv.ReplaceExport("r", "it is being opened again"); err != nil {
			t.Fatal(err)
		}
		r = next(r)
		if err := srv.AddExport(ramExport("r", r)); err != nil {
			t.Fatal(err)
		}
		if fails != nil {
			break
		}
		eventually(t, "the disk is open", func() bool { return d.Info().Waits == nil })
	}
	if fails == nil {
		stop()
	}
	wg.Wait()
	stop()
	for u := range users {
		switch {
		case fails == nil && ends[u] != nil:
			t.Errorf("user %d: %v", u, ends[u])
		case fails != nil && !errors.Is(ends[u], syscall.EIO):
			t.Errorf("user %d: %v, want EIO", u, ends[u])
		}
	}
	if i := d.Info(); !errors.Is(i.Err, fails) || i.Waits != nil || (i.Stats.Errors == 0) != (fails == nil) {
		t.Errorf("%+v", i)
	}
	if errno := do(t, d, block.OpFlush, nil, 0, 0, 0); (errno == 0) != (fails == nil) {
		t.Errorf("flush: %v", errno)
	}
}

// A long write is several requests. One whose first part was carried out in a life that a
// crash has ended is not acknowledged in the next, which lacks that part.
func TestLongWriteIsNotAcknowledgedByHalves(t *testing.T) {
	r := newRAM(1 << 20)
	export := ramExport("r", r)
	srv := startServer(t, export)
	c := connect(t, srv.addr)
	d := openDisk(t, c, "r")
	part, begun, crashed := int64(c.rt.MaxIO()), make(chan struct{}, 2), make(chan struct{})
	r.before = func(op block.Op, off, _ int64) syscall.Errno {
		begun <- struct{}{}
		if op == block.OpWrite && off >= part {
			<-crashed
			return syscall.EBADF // it is closed
		}
		return 0
	}
	p := bytes.Repeat([]byte{7}, int(2*part))
	io, err := d.Get(testContext(t), block.OpWrite, 0, uint32(len(p)), 0)
	if err != nil {
		t.Fatal(err)
	}
	rest := p
	for _, b := range io.Buffers() {
		rest = rest[copy(b, rest):]
	}
	written := newWaiter()
	io.Submit(written, false)
	for range 2 {
		<-begun
	}
	eventually(t, "the first part is written", func() bool { return d.share.InFlight() == 1 })

	srv.mu.Lock()
	was := srv.exports["r"]
	srv.mu.Unlock()
	replaced := make(chan error, 1)
	go func() { replaced <- srv.ReplaceExport("r", "its host has crashed") }()
	eventually(t, "the export is away", was.removed.Load)
	close(crashed)
	if err := <-replaced; err != nil {
		t.Fatal(err)
	}
	next := nextLife(r)
	next.data = slices.Clone(r.flushed)
	if err := srv.AddExport(ramExport("r", next)); err != nil {
		t.Fatal(err)
	}
	errno := written.wait(t)
	io.Release()
	next.mu.Lock()
	defer next.mu.Unlock()
	if errno == 0 && !bytes.Equal(next.data[:len(p)], p) {
		t.Errorf("a write of %d bytes was acknowledged; the disk has %d of its first byte, %d of its last", len(p), next.data[0], next.data[len(p)-1])
	}
}

// Whoever may open an export waits while its storage is away, also where everybody may.
func TestEverybodyWaitsForStorageThatIsAway(t *testing.T) {
	r := newRAM(1 << 20)
	srv := startServer(t, ramExport("r", r)) // everybody may
	d := openDisk(t, connect(t, srv.addr), "r")
	if err := srv.ReplaceExport("r", "it is looked at"); err != nil {
		t.Fatal(err)
	}
	written := make(chan syscall.Errno, 1)
	go func() { written <- do(t, d, block.OpWrite, filled(1), 0, 0, 0) }()
	eventually(t, "the server has been asked for the disk", func() bool {
		i := d.Info()
		return i.Err != nil || i.Waits != nil && strings.Contains(i.Waits.Error(), "it is looked at")
	})
	if err := srv.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	if errno := <-written; errno != 0 {
		t.Errorf("written: %v, %v", errno, d.Info().Err)
	}
}

// What storage says of itself is the result of one I/O, and says nothing of the export.
func TestErrorsOfStorageAreNotThoseOfItsExport(t *testing.T) {
	for _, said := range []syscall.Errno{syscall.ENODEV, syscall.ESHUTDOWN, syscall.EBADF, syscall.EAGAIN} {
		r := newRAM(1 << 20)
		r.before = func(op block.Op, off, _ int64) syscall.Errno {
			if op == block.OpWrite && off == 0 {
				return said
			}
			return 0
		}
		d := openDisk(t, connect(t, startServer(t, ramExport("r", r)).addr), "r")
		if errno := do(t, d, block.OpWrite, filled(1), 0, 0, 0); errno != syscall.EIO {
			t.Errorf("%v: the write ends with %v", said, errno)
		}
		if i := d.Info(); i.Err != nil || i.Waits != nil {
			t.Errorf("%v: %v, %v", said, i.Err, i.Waits)
		}
		if errno := do(t, d, block.OpWrite, filled(1), 4096, 0, 0); errno != 0 {
			t.Errorf("%v: another write ends with %v", said, errno)
		}
	}
}

// TestDiskIsNotExportedWhileItsEarlierExportWrites: a disk whose export was taken out is not exported anew, under
// whatever name, before the writes that have begun have ended. A fence would not wait for them, and they could
// overwrite what was written since.
func TestDiskIsNotExportedWhileItsEarlierExportWrites(t *testing.T) {
	r := newRAM(1 << 20)
	entered, release, _ := r.holdFirstWrite()
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	result := make(chan syscall.Errno)
	go func() { result <- do(t, d, block.OpWrite, filled(1), 0, 0, 0) }()
	<-entered
	end, err := srv.BeginReplace("r", "it is opened again")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"r", "another"} {
		if err := srv.AddExport(ramExport(name, r)); !errors.Is(err, ErrEnding) {
			t.Errorf("%s: %v, want %v", name, err, ErrEnding)
		}
	}
	if err := srv.AddExport(ramExport("else", newRAM(1<<20))); err != nil {
		t.Errorf("another disk: %v", err)
	}
	close(release)
	for range 2 {
		if err := end(); err != nil {
			t.Fatal(err)
		}
	}
	if err := srv.AddExport(ramExport("r", r)); err != nil {
		t.Fatal(err)
	}
	if errno := <-result; errno != 0 {
		t.Error(errno)
	}
}
