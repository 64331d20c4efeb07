package rtrs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// arena is anonymous memory outside the Go heap, divided into slots of equal,
// page-aligned size. Pages are allocated when they are first touched.
type arena struct {
	mem    []byte
	stride int
}

func newArena(slots, size int) (*arena, error) {
	page := unix.Getpagesize()
	stride := (size + page - 1) / page * page
	mem, err := unix.Mmap(-1, 0, slots*stride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("rtrs: reserve %d buffers of %d bytes: mmap: %w", slots, stride, err)
	}
	return &arena{mem: mem, stride: stride}, nil
}

// slot returns the first n bytes of slot i.
func (a *arena) slot(i, n int) []byte { return a.mem[i*a.stride : i*a.stride+n : i*a.stride+n] }

// free unmaps the memory. Nobody may use a slice of it any more.
func (a *arena) free() {
	if a != nil && a.mem != nil {
		unix.Munmap(a.mem)
		a.mem = nil
	}
}
