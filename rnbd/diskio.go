package rnbd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/rtrs"
)

// diskIO is one I/O of a Disk: one permit, or as many as its bytes need. It
// implements nbd.IO.
type diskIO struct {
	d    *Disk
	op   uint32 // with flags
	off  uint64
	n    uint32
	done nbd.Completion

	permits []*rtrs.Permit
	bufs    [][]byte
	hdr     [ioLen]byte
	left    atomic.Int32  // parts in flight
	errno   atomic.Uint32 // the first error
	acked   uint64        // writes that were acknowledged when it was submitted

	next *diskIO // in the pool
}

// ioPool keeps diskIOs for their next use. There are never more than the
// session has permits, each I/O having one at least.
type ioPool struct {
	mu   sync.Mutex
	free *diskIO
}

func (p *ioPool) get() *diskIO {
	p.mu.Lock()
	io := p.free
	if io != nil {
		p.free, io.next = io.next, nil
	}
	p.mu.Unlock()
	if io == nil {
		io = &diskIO{permits: make([]*rtrs.Permit, 0, 1), bufs: make([][]byte, 0, 1)}
	}
	return io
}

func (p *ioPool) put(io *diskIO) {
	p.mu.Lock()
	io.next, p.free = p.free, io
	p.mu.Unlock()
}

var rnbdOps = [...]uint32{nbd.OpRead: opRead, nbd.OpWrite: opWrite, nbd.OpFlush: opFlush, nbd.OpTrim: opDiscard, nbd.OpWriteZeroes: opWriteZeroes}

// Get implements nbd.Backend. An I/O takes all its permits at once, so two
// large ones cannot wait for each other.
func (d *Disk) Get(ctx context.Context, op nbd.Op, off uint64, n uint32, fl nbd.Flags) (nbd.IO, error) {
	return d.get(ctx, d.anyone, op, off, n, fl)
}

// TryGet implements nbd.Backend.
func (d *Disk) TryGet(op nbd.Op, off uint64, n uint32, fl nbd.Flags) (nbd.IO, error) {
	return d.tryGet(d.anyone, op, off, n, fl)
}

func (d *Disk) get(ctx context.Context, u *diskUser, op nbd.Op, off uint64, n uint32, fl nbd.Flags) (nbd.IO, error) {
	if d.failed.Load() {
		d.revive(ctx)
	}
	if d.waiting.Load() {
		if err := d.wait(ctx); err != nil {
			return nil, err
		}
	}
	io, err := d.prepare(op, off, n, fl)
	if err != nil {
		return nil, err
	}
	if err := d.share.GetN(ctx, io.permits); err != nil {
		d.drop(io)
		return nil, ioError(err)
	}
	io.dress(u)
	return io, nil
}

func (d *Disk) tryGet(u *diskUser, op nbd.Op, off uint64, n uint32, fl nbd.Flags) (nbd.IO, error) {
	if d.failed.Load() || d.waiting.Load() {
		return nil, nbd.ErrBusy // Get may open it again, or wait
	}
	io, err := d.prepare(op, off, n, fl)
	if err != nil {
		return nil, err
	}
	if ok, err := d.share.TryGetN(io.permits); !ok {
		d.drop(io)
		if err != nil {
			return nil, ioError(err)
		}
		return nil, nbd.ErrBusy
	}
	io.dress(u)
	return io, nil
}

func ioError(err error) error {
	if errors.Is(err, rtrs.ErrClosed) {
		return syscall.ESHUTDOWN
	}
	return err
}

// prepare checks an I/O and makes place for its permits.
func (d *Disk) prepare(op nbd.Op, off uint64, n uint32, fl nbd.Flags) (*diskIO, error) {
	g := &d.geometry
	if int(op) >= len(rnbdOps) || fl&nbd.FlagFastZero != 0 {
		return nil, syscall.EOPNOTSUPP
	}
	if op == nbd.OpFlush {
		off, n = 0, 0
	}
	data := op == nbd.OpRead || op == nbd.OpWrite
	switch {
	case d.failed.Load():
		return nil, d.failure()
	case g.ReadOnly && op != nbd.OpRead && op != nbd.OpFlush:
		return nil, syscall.EPERM
	case (off|uint64(n))%SectorSize != 0, off > g.Size, uint64(n) > g.Size-off, data && n > g.MaxIO:
		return nil, syscall.EINVAL
	}
	io := d.c.free.get()
	io.d, io.op, io.off, io.n = d, rnbdOps[op], off, n
	if fl&nbd.FlagFUA != 0 {
		io.op |= fFUA
	}
	if fl&nbd.FlagNoHole != 0 {
		io.op |= fNoUnmap
	}
	parts := 1
	if maxIO := uint32(d.c.rt.MaxIO()); data && n > maxIO {
		parts = int((n + maxIO - 1) / maxIO)
	}
	if cap(io.permits) < parts {
		io.permits = make([]*rtrs.Permit, parts)
	}
	io.permits = io.permits[:parts]
	return io, nil
}

func (d *Disk) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return fmt.Errorf("%w: %w", d.err, syscall.EIO)
}

// drop gives up an I/O that has no permits.
func (d *Disk) drop(io *diskIO) {
	clear(io.permits)
	io.permits, io.bufs, io.d = io.permits[:0], io.bufs[:0], nil
	d.c.free.put(io)
}

// dress hands the permits' buffers out.
func (io *diskIO) dress(u *diskUser) {
	left := io.n
	data := io.op&opMask <= opWrite
	for _, p := range io.permits {
		if was, _ := p.User.(*diskUser); was != u {
			p.User = u
		}
		if !data || left == 0 {
			continue
		}
		b := p.Buffer()
		if uint32(len(b)) > left {
			b = b[:left]
		}
		io.bufs = append(io.bufs, b)
		left -= uint32(len(b))
	}
}

// Buffers implements nbd.IO.
func (io *diskIO) Buffers() [][]byte { return io.bufs }

// Kick implements nbd.Backend.
func (d *Disk) Kick() { d.c.rt.Flush() }

// Submit implements nbd.IO.
func (io *diskIO) Submit(done nbd.Completion, more bool) {
	d := io.d
	io.done = done
	d.flying.Add(1)
	io.acked = d.writes.acked.Load()
	if d.failed.Load() {
		io.finish(syscall.EIO)
		return
	}
	dir := rtrs.Write
	if io.op&opMask == opRead {
		dir = rtrs.Read
	}
	parts := len(io.permits)
	io.errno.Store(0)
	io.left.Store(int32(parts))
	m := ioMsg{Device: d.id, Sector: io.off / SectorSize, RW: io.op, Size: io.n}
	for i := range parts {
		n := 0
		if len(io.bufs) > 0 {
			n = len(io.bufs[i])
			m.Size = uint32(n)
		}
		m.Put(&io.hdr)
		// The I/O may have ended, and be another's, when the last of these returns.
		if i < parts-1 || more {
			io.permits[i].SubmitMore(dir, io.hdr[:], n, io)
		} else {
			io.permits[i].Submit(dir, io.hdr[:], n, io)
		}
		m.Sector += uint64(n) / SectorSize
	}
}

// Complete implements rtrs.Completion, for each part.
func (io *diskIO) Complete(p *rtrs.Permit, errno syscall.Errno) {
	switch errno {
	case syscall.ENODEV:
		io.d.lose()
		errno = syscall.EIO
	case errReplaced:
		io.d.await()
		if onResend(p) == 0 {
			p.SubmitAgain(io)
			return
		}
		errno = syscall.EIO
	}
	if errno != 0 {
		io.errno.CompareAndSwap(0, uint32(errno))
	}
	if io.left.Add(-1) == 0 {
		io.finish(syscall.Errno(io.errno.Load()))
	}
}

func (io *diskIO) finish(errno syscall.Errno) {
	switch op := io.op & opMask; {
	case errno != 0 || op == opRead:
	case op == opFlush:
		io.d.writes.cover(io.acked)
	case io.op&fFUA == 0:
		io.d.writes.acked.Add(1)
	}
	io.d.flying.Add(-1)
	io.d.counters.count(io.op&opMask, uint64(io.n), errno)
	done := io.done
	io.done = nil
	done.Complete(errno)
}

// Release implements nbd.IO.
func (io *diskIO) Release() {
	d := io.d
	d.c.rt.Put(io.permits...)
	d.drop(io)
}
