package vhost

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// request is one of the guest's, from the ring and back to it.
type request struct {
	r      *runner
	mem    *memory
	chain  chain
	op     block.Op
	fl     block.Flags
	off    uint64   // of the disk, in bytes
	n      uint32   // bytes
	data   [][]byte // the guest's memory, of n bytes
	status []byte   // its last byte
	left   atomic.Int32
	errno  atomic.Uint32 // the first error
	next   *request
}

// piece is a part of a request at the device: the whole, but for one longer than the device
// takes.
type piece struct {
	req   *request
	io    block.IO
	at, n uint32 // of the request's data
	to    target // of a read that leaves the device's buffers out
	errno syscall.Errno
	next  *piece
}

// Complete implements block.Completion.
func (p *piece) Complete(errno syscall.Errno) {
	p.errno = errno
	p.req.r.queueCompleted(p)
}

// fail notes an error of the request, of which the first counts.
func (q *request) fail(err error) {
	var errno syscall.Errno
	if !errors.As(err, &errno) || errno == 0 {
		errno = syscall.EIO
	}
	q.errno.CompareAndSwap(0, uint32(errno))
}

// result is what the guest is told.
func (q *request) result() byte {
	switch syscall.Errno(q.errno.Load()) {
	case 0:
		return blkOK
	case syscall.EOPNOTSUPP:
		return blkUnsupported
	}
	return blkIOError
}

// bytesWritten is how many bytes of the guest's memory were written, with the status.
func (q *request) bytesWritten() uint32 {
	if q.op == block.OpRead && q.errno.Load() == 0 {
		return q.n + 1
	}
	return 1
}

// parse reads what the guest asks for. err is the request's result; fatal is an error of the
// ring: there is no room for a result.
func (q *request) parse(d *disk) (err, fatal error) {
	c := &q.chain
	if c.inLen == 0 {
		return nil, ringError("a request has no room for its result")
	}
	last := &c.in[len(c.in)-1]
	q.status = (*last)[len(*last)-1:]
	*last = (*last)[:len(*last)-1]
	c.inLen--
	var hdr [blkHdrLen]byte
	if c.outLen < blkHdrLen {
		return syscall.EINVAL, nil
	}
	gather(hdr[:], c.out, 0)
	h := parseBlkHeader(hdr[:])
	c.out, c.outLen = skip(c.out, blkHdrLen), c.outLen-blkHdrLen
	q.off = h.sector * sectorSize
	if h.sector > 1<<54 {
		return syscall.EINVAL, nil
	}
	switch h.typ {
	case blkIn:
		return q.parseTransfer(d, block.OpRead, c.in, c.inLen), nil
	case blkOut:
		return q.parseTransfer(d, block.OpWrite, c.out, c.outLen), nil
	case blkFlush:
		q.op, q.off = block.OpFlush, 0
		return d.refusal(q.op, 0, 0), nil
	case blkDiscard, blkWriteZeroes:
		return q.parseRange(d, h.typ), nil
	case blkGetID:
		q.op, q.n = block.OpRead, uint32(min(c.inLen, blkIDLen))
		var id [blkIDLen]byte
		copy(id[:], d.serial)
		scatter(c.in, 0, id[:q.n])
		return nil, nil
	}
	return syscall.EOPNOTSUPP, nil
}

// parseTransfer sets what a request with data asks for.
func (q *request) parseTransfer(d *disk, op block.Op, data [][]byte, n uint64) error {
	q.op, q.data = op, data
	if n > maxRequest {
		return syscall.EINVAL
	}
	q.n = uint32(n)
	if op == block.OpWrite && d.writeThrough.Load() {
		q.fl = block.FUA
	}
	return d.refusal(op, q.off, q.n)
}

// parseRange sets what a request about a range asks for, which its data names.
func (q *request) parseRange(d *disk, typ uint32) error {
	q.op = block.OpTrim
	if typ == blkWriteZeroes {
		q.op = block.OpWriteZeroes
	}
	if q.chain.outLen != blkRangeLen {
		return syscall.EINVAL // one range was announced as the most
	}
	var b [blkRangeLen]byte
	gather(b[:], q.chain.out, 0)
	r := parseBlkRange(b[:])
	switch {
	case r.flags&^rangeUnmap != 0, typ == blkDiscard && r.flags != 0:
		return syscall.EOPNOTSUPP
	case r.sector > 1<<54, r.sectors > maxRange/sectorSize:
		return syscall.EINVAL
	case typ == blkWriteZeroes && r.flags&rangeUnmap == 0:
		q.fl = block.NoUnmap
	}
	q.off, q.n = r.sector*sectorSize, r.sectors*sectorSize
	if d.writeThrough.Load() {
		q.fl |= block.FUA
	}
	return d.refusal(q.op, q.off, q.n)
}

// skip drops the first n bytes of segs, in place.
func skip(segs [][]byte, n uint64) [][]byte {
	i := 0
	for i < len(segs) && n >= uint64(len(segs[i])) {
		n -= uint64(len(segs[i]))
		i++
	}
	segs = segs[:copy(segs, segs[i:])]
	if len(segs) > 0 {
		segs[0] = segs[0][n:]
	}
	return segs
}

// scatter copies b to what begins at byte at of segs.
func scatter(segs [][]byte, at uint32, b []byte) { scatterFrom(cursor{}, segs, at, b) }

// cursor is a part of memory, and at which byte of all it begins.
type cursor struct{ part, begin uint32 }

// scatterFrom is scatter that looks for the place from a cursor on, which is not behind it. It
// returns one for what follows b.
func scatterFrom(c cursor, segs [][]byte, at uint32, b []byte) cursor {
	for c.part < uint32(len(segs)) {
		s := segs[c.part]
		if from := int(at - c.begin); from < len(s) {
			n := copy(s[from:], b)
			at, b = at+uint32(n), b[n:]
			if len(b) == 0 {
				break
			}
		}
		c.part, c.begin = c.part+1, c.begin+uint32(len(s))
	}
	return c
}

// gather copies what begins at byte at of segs to b.
func gather(b []byte, segs [][]byte, at uint32) {
	for _, s := range segs {
		if int(at) >= len(s) {
			at -= uint32(len(s))
			continue
		}
		if b = b[copy(b, s[at:]):]; len(b) == 0 {
			return
		}
		at = 0
	}
}
