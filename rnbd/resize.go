package rnbd

import (
	"maps"
	"slices"
	"sync"
)

// resizeHooks are what OnResize has registered.
type resizeHooks struct {
	mu    sync.Mutex // guards the fields below it; held while hooks run
	last  int
	hooks map[int]func(size uint64)
}

// OnResize implements block.Resizer.
func (d *Disk) OnResize(f func(size uint64)) (cancel func()) {
	h := &d.resized
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hooks == nil {
		h.hooks = map[int]func(uint64){}
	}
	h.last++
	id := h.last
	h.hooks[id] = f
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.hooks, id)
	}
}

// grow notes the disk's size at the server. A disk never shrinks: what clients have been
// told stays valid.
func (d *Disk) grow(size uint64) {
	h := &d.resized
	h.mu.Lock()
	defer h.mu.Unlock()
	was := d.size.Load()
	if size <= was {
		return
	}
	d.size.Store(size)
	if was == 0 {
		return // it has just been opened
	}
	d.c.log.Info("a remote disk has grown", "export", d.name, "from", was, "bytes", size)
	for _, id := range slices.Sorted(maps.Keys(h.hooks)) {
		h.hooks[id](size)
	}
}
