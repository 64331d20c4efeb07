package nbdtest

import (
	"context"
	"sync"

	"github.com/ironwarp/ironwarp/block"
)

const (
	diskMaxIO   = 1 << 20
	diskSmallIO = 64 << 10 // I/Os up to this share a pool of small buffers
	diskDepth   = 512
)

// Disk is a block.Device on local storage: the NBD server with nothing behind
// it but a file, to measure and try the server alone.
type Disk struct {
	st     block.Storage
	queue  block.Queue
	places chan struct{} // one for each I/O that is out

	mu    sync.Mutex // guards the fields below it
	small *diskIO
	large *diskIO

	hooks hooks
}

// NewDisk returns a device on st. Close it before st.
func NewDisk(st block.Storage) *Disk {
	d := &Disk{st: st, places: make(chan struct{}, diskDepth)}
	d.queue = st.NewQueue(d.hooks.run)
	return d
}

// Close ends the workers.
func (d *Disk) Close() error { return d.queue.Close() }

// Geometry implements block.Device.
func (d *Disk) Geometry() block.Geometry {
	g := d.st.Geometry()
	g.MaxIO = diskMaxIO
	return g
}

// Kick implements block.Device; nothing is held back.
func (d *Disk) Kick() {}

// OnBatchEnd implements block.Device.
func (d *Disk) OnBatchEnd(f func()) (cancel func()) { return d.hooks.add(f) }

// Get implements block.Device.
func (d *Disk) Get(ctx context.Context, op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	select {
	case d.places <- struct{}{}:
		return d.get(op, off, n, fl), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TryGet implements block.Device.
func (d *Disk) TryGet(op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	select {
	case d.places <- struct{}{}:
		return d.get(op, off, n, fl), nil
	default:
		return nil, block.ErrBusy
	}
}

type diskIO struct {
	disk *Disk
	next *diskIO
	op   block.Op
	fl   block.Flags
	off  uint64
	n    uint32
	mem  []byte
	bufs [1][]byte
}

func (d *Disk) get(op block.Op, off uint64, n uint32, fl block.Flags) *diskIO {
	size := op.BufferLen(n)
	pool, room := &d.small, uint32(diskSmallIO)
	if size > diskSmallIO {
		pool, room = &d.large, diskMaxIO
	}
	d.mu.Lock()
	io := *pool
	if io != nil {
		*pool = io.next
	}
	d.mu.Unlock()
	if io == nil {
		io = &diskIO{disk: d, mem: make([]byte, room)}
	}
	io.op, io.off, io.n, io.fl = op, off, n, fl
	io.bufs[0] = io.mem[:size]
	return io
}

func (io *diskIO) Buffers() [][]byte { return io.bufs[:] }

func (io *diskIO) Submit(done block.Completion, _ bool) {
	io.disk.queue.Do(io.op, io.bufs[0], int64(io.off), int64(io.n), io.fl, done)
}

func (io *diskIO) Release() {
	d := io.disk
	pool := &d.small
	if len(io.mem) > diskSmallIO {
		pool = &d.large
	}
	d.mu.Lock()
	io.next = *pool
	*pool = io
	d.mu.Unlock()
	<-d.places
}

// hooks are the functions to call at a batch's end.
type hooks struct {
	mu sync.RWMutex // guards the fields below it
	fs []*func()
}

func (h *hooks) add(f func()) (cancel func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fs = append(h.fs, &f)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for i, g := range h.fs {
			if g == &f {
				h.fs = append(h.fs[:i], h.fs[i+1:]...)
				return
			}
		}
	}
}

func (h *hooks) run() {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for _, f := range h.fs {
		(*f)()
	}
}
