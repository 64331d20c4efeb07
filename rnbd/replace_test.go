package rnbd

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
