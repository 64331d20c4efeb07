package simulation

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

const (
	sectorSize = 512
	sectors    = 6
)

// fill writes a sector as write number n has it.
func fill(p []byte, sector int, n uint64) {
	for i := 0; i < len(p); i += 16 {
		binary.LittleEndian.PutUint64(p[i:], n)
		binary.LittleEndian.PutUint64(p[i+8:], uint64(sector))
	}
}

// number returns whose write a sector's content is. It returns false for what is no
// sector of this place, or parts of several.
func number(p []byte, sector int) (uint64, bool) {
	n := binary.LittleEndian.Uint64(p)
	for i := 0; i < len(p); i += 16 {
		if binary.LittleEndian.Uint64(p[i:]) != n || binary.LittleEndian.Uint64(p[i+8:]) != uint64(sector) {
			return 0, n == 0 && allZero(p)
		}
	}
	return n, true
}

func allZero(p []byte) bool { return !slices.ContainsFunc(p, func(b byte) bool { return b != 0 }) }

// disk is storage with a volatile cache: a power cut leaves of each sector the durable
// value, or any that was written since.
type disk struct {
	w *world

	mu      sync.Mutex // guards the fields below it
	rnd     *rand.Rand
	id      block.Identity
	size    uint64
	fault   string
	sectors [sectors]sector
	slow    int             // I/Os take so many times longer
	failing int             // the next so many writes and flushes fail
	failed  map[uint64]bool // writes that have
	damaged bool            // a flush has
}

type sector struct {
	durable uint64
	since   []uint64 // written after that, the last is what is read
	changes []change
}

// change is when a sector took a value.
type change struct {
	at    int64
	value uint64
	cut   bool     // the power
	lost  []uint64 // by that: what was newer
}

func (s *sector) now() uint64 {
	if n := len(s.since); n > 0 {
		return s.since[n-1]
	}
	return s.durable
}

func newDisk(w *world) *disk {
	d := &disk{w: w, rnd: w.rand("disk"), id: block.Identity{Disk: block.NewID(), Life: block.NewID()}, size: sectors * sectorSize, failed: make(map[uint64]bool)}
	for i := range d.sectors {
		d.sectors[i].changes = []change{{}}
	}
	return d
}

// lose is what becomes of the cache without power.
func (d *disk) lose() {
	d.mu.Lock()
	defer d.mu.Unlock()
	at := d.w.now()
	d.id.Life, d.fault, d.failing = block.NewID(), "", 0
	for i := range d.sectors {
		s := &d.sectors[i]
		keep := d.rnd.IntN(len(s.since) + 1)
		if d.rnd.IntN(2) == 0 {
			keep = 0
		}
		if keep > 0 {
			s.durable = s.since[keep-1]
		}
		s.changes = append(s.changes, change{at, s.durable, true, slices.Clone(s.since[keep:])})
		s.since = nil
	}
}

// handle is the disk as one process of the server has it open. It is a block.Storage.
type handle struct {
	*disk
	dead bool // guarded by disk.mu
}

// kill ends the process: nothing that it has begun has an effect any more.
func (h *handle) kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.dead = true
}

func (h *handle) Geometry() block.Geometry {
	h.mu.Lock()
	defer h.mu.Unlock()
	return block.Geometry{Size: h.size, PreferredBlock: 4096, CanFlush: true, CanFUA: true, CanStatus: true}
}

func (h *handle) Identity() block.Identity {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.id
}

func (h *handle) Keeps(block.ID) bool { return false }

func (h *handle) Fault() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fault
}

func (h *handle) NewQueue(afterBatch func()) block.Queue {
	return &queue{handle: h, afterBatch: afterBatch}
}

type queue struct {
	*handle
	afterBatch func()
	running    sync.WaitGroup
	closed     bool // guarded by disk.mu
}

// Do implements block.Queue. An I/O takes effect at some time before it is complete.
func (q *queue) Do(op block.Op, buf []byte, off, n int64, fl block.Flags, done block.Completion) bool {
	q.mu.Lock()
	closed, before, after := q.closed, q.latencyLocked(), q.latencyLocked()
	if !closed {
		q.running.Add(1)
	}
	q.mu.Unlock()
	if closed {
		done.Complete(syscall.ESHUTDOWN)
		return true
	}
	if before == 0 && after == 0 {
		errno := q.apply(op, buf, off, n, fl)
		q.running.Done()
		done.Complete(errno)
		return true
	}
	go func() {
		sleep(before)
		errno := q.apply(op, buf, off, n, fl)
		sleep(after)
		done.Complete(errno)
		q.afterBatch()
		q.running.Done()
	}()
	return false
}

func (q *queue) latencyLocked() time.Duration {
	if q.rnd.IntN(3) == 0 {
		return 0
	}
	return logTime(q.rnd, 10*time.Microsecond, 5*time.Millisecond) * time.Duration(max(q.slow, 1))
}

// apply carries out an operation.
func (q *queue) apply(op block.Op, buf []byte, off, n int64, fl block.Flags) syscall.Errno {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return syscall.EIO
	}
	errno := syscall.Errno(0)
	if (op == block.OpWrite || op == block.OpFlush) && q.failing > 0 {
		q.failing--
		errno = syscall.EIO
	}
	first := int(off / sectorSize)
	count := int(n) / sectorSize
	if op.HasData() {
		count = len(buf) / sectorSize
	}
	switch op {
	case block.OpRead:
		for i := range count {
			b, v := buf[i*sectorSize:][:sectorSize], q.disk.sectors[first+i].now()
			if clear(b); v != 0 {
				fill(b, first+i, v)
			}
		}
	case block.OpStatus:
		var all []block.Extent
		for i := range int(n) / sectorSize {
			e := block.Extent{Length: sectorSize}
			if q.disk.sectors[first+i].now() == 0 {
				e.State = block.Hole | block.Zero
			}
			all = append(all, e)
		}
		block.PutExtents(buf, all)
	case block.OpFlush:
		if errno != 0 {
			q.fault, q.damaged = "a flush has failed", true
		}
		if q.fault != "" {
			return syscall.EIO
		}
		for i := range q.disk.sectors {
			q.disk.sectors[i].flush()
		}
	case block.OpWrite:
		at := q.w.now()
		if errno != 0 {
			n, _ := number(buf[:sectorSize], first)
			q.failed[n] = true
			count = q.rnd.IntN(count + 1) // a short write
		}
		for i := range count {
			s := &q.disk.sectors[first+i]
			v, ok := number(buf[i*sectorSize:][:sectorSize], first+i)
			if !ok {
				q.w.wrong("the server writes to sector %d what belongs elsewhere", first+i)
			}
			s.since = append(s.since, v)
			s.changes = append(s.changes, change{at: at, value: v})
			if fl&block.FUA != 0 && errno == 0 {
				s.flush()
			}
		}
	default:
		return syscall.EOPNOTSUPP
	}
	return errno
}

// flush makes what is in the cache durable.
func (s *sector) flush() { s.durable, s.since = s.now(), nil }

// Close implements block.Queue.
func (q *queue) Close() error {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.running.Wait()
	return nil
}
