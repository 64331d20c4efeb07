package rnbd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// diskIO is one I/O of a Disk, with one permit or as many as its bytes need. It
// implements block.IO.
type diskIO struct {
	d    *Disk
	op   block.Op
	fl   block.Flags
	off  uint64
	n    uint32
	at   time.Time // when it was submitted
	done block.Completion
	to   block.Target // takes the data of a read; nil: the buffers do

	permits []*rtrs.Permit
	bufs    [][]byte
	hdr     [ioLen]byte
	left    atomic.Int32  // parts in flight
	errno   atomic.Uint32 // the first error
	acked   uint64        // acknowledged writes when it was submitted

	next *diskIO // the next one in the pool, or in the list that writeOrder.endWrite returns
}

// ioPool keeps diskIOs for reuse. There are never more than the session has permits, as
// each I/O has at least one.
type ioPool struct {
	mu   sync.Mutex // guards the fields below it
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

// Get implements block.Device. An I/O takes all its permits at once, so two large ones
// cannot deadlock.
func (d *Disk) Get(ctx context.Context, op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	return d.get(ctx, d.anyone, op, off, n, fl)
}

// TryGet implements block.Device.
func (d *Disk) TryGet(op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	return d.tryGet(d.anyone, op, off, n, fl)
}

func (d *Disk) get(ctx context.Context, u *diskUser, op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	if d.hasFailed() {
		d.reopenFailed(ctx)
	}
	if d.waiting.Load() {
		if err := d.waitUntilOpen(ctx); err != nil {
			return nil, err
		}
	}
	io, err := d.prepare(op, off, n, fl)
	if err != nil {
		return nil, err
	}
	if err := d.share.GetN(ctx, io.permits); err != nil {
		d.freeIO(io)
		return nil, ioError(err)
	}
	io.takeBuffers(u)
	return io, nil
}

func (d *Disk) tryGet(u *diskUser, op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	if d.hasFailed() || d.waiting.Load() {
		return nil, block.ErrBusy // Get may open it again, or wait
	}
	io, err := d.prepare(op, off, n, fl)
	if err != nil {
		return nil, err
	}
	if ok, err := d.share.TryGetN(io.permits); !ok {
		d.freeIO(io)
		if err != nil {
			return nil, ioError(err)
		}
		return nil, block.ErrBusy
	}
	io.takeBuffers(u)
	return io, nil
}

func ioError(err error) error {
	switch {
	case errors.Is(err, rtrs.ErrClosed):
		return syscall.ESHUTDOWN
	case errors.Is(err, rtrs.ErrNoPath):
		return fmt.Errorf("%w: %w", err, syscall.EIO)
	}
	return err
}

// prepare checks an I/O and makes room for its permits.
func (d *Disk) prepare(op block.Op, off uint64, n uint32, fl block.Flags) (*diskIO, error) {
	g := &d.geometry
	if op >= block.NumOps {
		return nil, syscall.EOPNOTSUPP
	}
	if op == block.OpFlush {
		off, n = 0, 0
	}
	switch {
	case d.hasFailed():
		return nil, d.failure()
	case g.ReadOnly && op.Writes():
		return nil, syscall.EPERM
	case (off|uint64(n))%SectorSize != 0, op.HasData() && n > g.MaxIO:
		return nil, syscall.EINVAL
	}
	if size := d.size.Load(); off > size || uint64(n) > size-off {
		return nil, syscall.EINVAL
	}
	io := d.c.free.get()
	io.d, io.op, io.fl, io.off, io.n = d, op, fl, off, n
	parts := 1
	if size, maxIO := op.BufferLen(n), uint32(d.c.rt.MaxIO()); size > maxIO {
		parts = int((size + maxIO - 1) / maxIO)
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
	return fmt.Errorf("%w: %w", d.err, errnoOfFailure(d.err))
}

// freeIO frees an I/O without permits.
func (d *Disk) freeIO(io *diskIO) {
	clear(io.permits)
	io.permits, io.bufs, io.d = io.permits[:0], io.bufs[:0], nil
	d.c.free.put(io)
}

// takeBuffers takes over the permits' buffers for the I/O.
func (io *diskIO) takeBuffers(u *diskUser) {
	left := io.op.BufferLen(io.n)
	for _, p := range io.permits {
		if was, _ := p.User.(*diskUser); was != u {
			p.User = u
		}
		if left == 0 {
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

// Buffers implements block.IO.
func (io *diskIO) Buffers() [][]byte { return io.bufs }

// Kick implements block.Device.
func (d *Disk) Kick() { d.c.rt.Flush() }

// SubmitTo implements block.TargetIO.
func (io *diskIO) SubmitTo(to block.Target, done block.Completion, more bool) {
	io.to = to
	io.Submit(done, more)
}

// Submit implements block.IO.
func (io *diskIO) Submit(done block.Completion, more bool) {
	d := io.d
	io.done, io.at = done, time.Now()
	d.inFlight.Add(1)
	io.acked = d.writes.acked.Load()
	if !io.op.Writes() || d.order.beginWrite(io) {
		io.send(more)
		return
	}
	d.failHeld() // I/O may have begun to fail without this one
}

// send sends the I/O. It returns false if the I/O has failed instead.
func (io *diskIO) send(more bool) bool {
	d := io.d
	switch u, _ := io.permits[0].User.(*diskUser); {
	case d.hasFailed():
		io.finish(d.errno())
		return false
	case u.gone.Load():
		io.finish(syscall.ECANCELED)
		return false
	}
	parts := len(io.permits)
	io.errno.Store(0)
	io.left.Store(int32(parts))
	m := ioMsg{Device: d.id, Sector: io.off / SectorSize, RW: rwOf(io.op, io.fl), Size: io.n}
	for i := range parts {
		n := 0
		if len(io.bufs) > 0 {
			n = len(io.bufs[i])
		}
		if io.op.HasData() {
			m.Size = uint32(n)
		}
		m.Put(&io.hdr)
		io.permits[i].Aim(io.to, m.Sector*SectorSize-io.off)
		// When the last of these returns, the I/O may have ended and been reused.
		if i < parts-1 || more {
			io.permits[i].SubmitMore(direction(io.op), io.hdr[:], n, io)
		} else {
			io.permits[i].Submit(direction(io.op), io.hdr[:], n, io)
		}
		m.Sector += uint64(n) / SectorSize
	}
	return true
}

// Complete implements rtrs.Completion, for each part.
func (io *diskIO) Complete(p *rtrs.Permit, errno syscall.Errno) {
	switch errno {
	case syscall.ENODEV:
		io.d.noteLost()
		errno = syscall.EIO
	case errReplaced:
		io.d.noteReopening()
		if errno = onResend(p); errno == 0 {
			p.SubmitAgain(io)
			return
		}
	case errFenced:
		io.d.noteFenced()
	case syscall.ENOTCONN:
		errno = syscall.EIO
	}
	switch {
	case errno != 0:
		io.errno.CompareAndSwap(0, uint32(errno))
	case io.op.Writes() && io.fl&block.FUA == 0:
		// Each part is at risk until a flush: it is not resent with the others.
		io.d.writes.acked.Add(1)
	}
	if io.left.Add(-1) == 0 {
		io.finish(syscall.Errno(io.errno.Load()))
	}
}

func (io *diskIO) finish(errno syscall.Errno) {
	if io.op.Answers() {
		// A part that has gone on by another path has its data in other memory.
		for i, b := range io.bufs {
			io.bufs[i] = io.permits[i].Buffer()[:len(b)]
		}
	}
	if errno == syscall.EOPNOTSUPP {
		errno = io.withoutServer()
	}
	if errno == 0 && io.op == block.OpFlush {
		io.d.writes.noteFlush(io.acked)
	}
	io.d.inFlight.Add(-1)
	io.d.counters.took(io.op, uint64(io.n), errno, io.at)
	done, d := io.done, io.d
	var next *diskIO
	if io.op.Writes() {
		next = io.endOrdered(errno)
	}
	io.done, io.to = nil, nil
	done.Complete(errno)
	d.sendHeld(next)
}

// endOrdered ends the write's place in the order: now, or when what failed without an answer
// cannot be executed any more. It returns what may be sent.
func (io *diskIO) endOrdered(errno syscall.Errno) (ready *diskIO) {
	d := io.d
	if mustSettle(errno) {
		late := &diskIO{d: d, op: io.op, off: io.off, n: io.n}
		for _, p := range io.permits {
			if p.OnSettled(late.settled) {
				late.left.Add(1)
			}
		}
		if late.left.Load() > 0 {
			d.order.substitute(io, late)
			return nil
		}
	}
	return d.order.endWrite(io)
}

// settled is called for each part of a write that failed without an answer.
func (io *diskIO) settled() {
	if io.left.Add(-1) == 0 {
		io.d.sendHeld(io.d.order.endWrite(io))
	}
}

// sendHeld sends writes that waited for others.
func (d *Disk) sendHeld(next *diskIO) {
	ended := false
	for w := next; w != nil; w = next {
		next, w.next = w.next, nil
		ended = !w.send(false) || ended
	}
	if ended { // the I/Os that ended may be another user's than the caller's
		d.c.rt.EndBatch()
	}
}

// withoutServer returns the result of an operation that the server, which is older, or its
// storage does not know.
func (io *diskIO) withoutServer() syscall.Errno {
	switch io.op {
	case block.OpCache:
		return 0
	case block.OpStatus:
		block.PutExtents(io.bufs[0], []block.Extent{{Length: io.n}})
		return 0
	}
	return syscall.EOPNOTSUPP
}

// Release implements block.IO.
func (io *diskIO) Release() {
	d := io.d
	d.c.rt.Put(io.permits...)
	d.freeIO(io)
}
