package nbdtest

import (
	"context"
	"sync"
	"syscall"

	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rnbd/backing"
)

const (
	diskMaxIO   = 1 << 20
	diskSmallIO = 64 << 10 // I/Os up to this share a pool of small buffers
	diskDepth   = 512
)

// Disk is an nbd.Backend on local storage: the NBD server with nothing behind
// it but a file, to measure and try the server alone.
type Disk struct {
	queue  *backing.Queue
	places chan struct{} // one for each I/O that is out

	mu    sync.Mutex
	small *diskIO
	large *diskIO

	hooks hooks
}

// NewDisk returns a backend on st. Close it before st.
func NewDisk(st *backing.Store) *Disk {
	d := &Disk{places: make(chan struct{}, diskDepth)}
	d.queue = backing.NewQueue(st, backing.QueueConfig{AfterBatch: d.hooks.run})
	return d
}

// Close ends the workers.
func (d *Disk) Close() error { return d.queue.Close() }

// Geometry implements nbd.Backend.
func (d *Disk) Geometry() nbd.Geometry {
	st := d.queue.Store()
	return nbd.Geometry{
		Size: uint64(st.Size()), PreferredBlock: uint32(st.BlockSize()), MaxIO: diskMaxIO,
		ReadOnly: st.ReadOnly(), Rotational: st.Rotational(), CanFlush: true, CanFUA: true,
		CanTrim: st.CanDiscard(), CanWriteZeroes: true, MultiConn: true,
	}
}

// Kick implements nbd.Backend; nothing is held back.
func (d *Disk) Kick() {}

// OnBatchEnd implements nbd.Backend.
func (d *Disk) OnBatchEnd(f func()) (cancel func()) { return d.hooks.add(f) }

// Get implements nbd.Backend.
func (d *Disk) Get(ctx context.Context, op nbd.Op, off uint64, n uint32, fl nbd.Flags) (nbd.IO, error) {
	select {
	case d.places <- struct{}{}:
		return d.get(op, off, n, fl), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TryGet implements nbd.Backend.
func (d *Disk) TryGet(op nbd.Op, off uint64, n uint32, fl nbd.Flags) (nbd.IO, error) {
	select {
	case d.places <- struct{}{}:
		return d.get(op, off, n, fl), nil
	default:
		return nil, nbd.ErrBusy
	}
}

type diskIO struct {
	disk *Disk
	next *diskIO
	op   nbd.Op
	fl   nbd.Flags
	off  uint64
	n    uint32
	mem  []byte
	bufs [1][]byte
}

func (d *Disk) get(op nbd.Op, off uint64, n uint32, fl nbd.Flags) *diskIO {
	size := uint32(0)
	if op == nbd.OpRead || op == nbd.OpWrite {
		size = n
	}
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

func (io *diskIO) Submit(done nbd.Completion, _ bool) {
	var op backing.Op
	switch io.op {
	case nbd.OpRead:
		op = backing.OpRead
	case nbd.OpWrite:
		op = backing.OpWrite
	case nbd.OpFlush:
		op = backing.OpFlush
	case nbd.OpTrim:
		op = backing.OpDiscard
	case nbd.OpWriteZeroes:
		op = backing.OpWriteZeroes
	default:
		done.Complete(syscall.EINVAL)
		return
	}
	var fl backing.Flags
	if io.fl&nbd.FlagFUA != 0 {
		fl |= backing.FUA
	}
	if io.fl&nbd.FlagNoHole != 0 {
		fl |= backing.NoUnmap
	}
	io.disk.queue.Do(op, io.bufs[0], int64(io.off), int64(io.n), fl, done)
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
	mu sync.RWMutex
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
