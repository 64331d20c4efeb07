package nbd_test

import (
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// growing is a disk that has grown from its Geo to size.
type growing struct {
	*nbdtest.Memory
	size uint64

	mu    sync.Mutex // guards the fields below it
	grown bool
	hooks []func(uint64)
}

func (g *growing) Geometry() block.Geometry {
	geo := g.Memory.Geometry()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.grown {
		geo.Size = g.size
	}
	return geo
}

func (g *growing) OnResize(f func(uint64)) (cancel func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hooks = append(g.hooks, f)
	return func() {}
}

func (g *growing) grow() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.grown = true
	for _, f := range g.hooks {
		f(g.size)
	}
}

// A disk that has grown is used to its new end: by clients that are connected, whose
// kernel may have been told, and by those that connect.
func TestGrownDeviceIsUsedToItsEnd(t *testing.T) {
	m := nbdtest.NewMemory(1 << 21)
	m.Geo.Size = 1 << 20
	g := &growing{Memory: m, size: 1 << 21}
	s := serve(t, g, nbd.Config{})
	c := s.connect(true)
	want(t, c, "before it has grown", 0, cmdWrite, 1<<20, 512, make([]byte, 512), 28)
	g.grow()
	want(t, c, "after it has grown", 0, cmdWrite, 1<<20, 512, make([]byte, 512), 0)
	want(t, c, "across the old end", 0, cmdRead, 1<<20-512, 1024, nil, 0)
	want(t, c, "beyond the new end", 0, cmdWrite, 1<<21, 512, make([]byte, 512), 28)
	late := s.connect(true)
	if late.Size != 1<<21 {
		t.Errorf("a new client sees %d bytes", late.Size)
	}
	want(t, late, "of a new client", 0, cmdRead, 1<<21-512, 512, nil, 0)
}
