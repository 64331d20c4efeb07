package nbdtest

import (
	"context"
	"slices"
	"sync"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
)

// Memory is a block.Device in memory whose results and timing a test commands.
// Its fields are set before it is used.
type Memory struct {
	Geo block.Geometry
	// Depth is how many I/Os there are; 0 means no limit.
	Depth int
	// GetError, if set, is asked whether Get fails, and how.
	GetError func(op block.Op, off uint64, n uint32) error
	// Errno, if set, decides an operation's result; it is not done unless 0.
	Errno func(op block.Op, off uint64, n uint32, fl block.Flags) syscall.Errno
	// Skip: operations are not carried out, so that the disk may be larger than its memory.
	Skip bool
	// Hold, if set, decides which operations complete only at Let.
	Hold func(op block.Op, off uint64) bool

	hooks hooks

	mu      sync.Mutex // guards the fields below it
	change  *sync.Cond
	data    []byte
	live    int
	held    []*memIO
	waiting []*memIO // for Kick
	log     []Call
}

// Call is an operation that was submitted.
type Call struct {
	Op     block.Op
	Offset uint64
	Length uint32
	Flags  block.Flags
}

// NewMemory returns a disk of size bytes of zeroes that can do everything.
func NewMemory(size int) *Memory {
	m := &Memory{
		Geo: block.Geometry{
			Size: uint64(size), MaxIO: 1 << 20, CanFlush: true, CanFUA: true, CanTrim: true,
			CanWriteZeroes: true, CanFastZero: true, CanCache: true, CanStatus: true, MultiConn: true,
		},
		data: make([]byte, size),
	}
	m.change = sync.NewCond(&m.mu)
	return m
}

// Data calls f with the disk's content.
func (m *Memory) Data(f func(data []byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f(m.data)
}

// Calls returns the operations that were submitted so far.
func (m *Memory) Calls() []Call {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Call(nil), m.log...)
}

// WaitCalls waits until n operations were submitted.
func (m *Memory) WaitCalls(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.log) < n {
		m.change.Wait()
	}
}

// WaitHeld waits until n operations are held.
func (m *Memory) WaitHeld(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(m.held) < n {
		m.change.Wait()
	}
}

// WaitLive waits until exactly n I/Os are out.
func (m *Memory) WaitLive(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for m.live != n {
		m.change.Wait()
	}
}

// Live is the number of I/Os between Get and Release.
func (m *Memory) Live() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.live
}

// Let completes the held operation at off that was submitted first, and ends
// the batch.
func (m *Memory) Let(off uint64) {
	m.mu.Lock()
	i := slices.IndexFunc(m.held, func(io *memIO) bool { return io.call.Offset == off })
	if i < 0 {
		m.mu.Unlock()
		panic("nbdtest: no operation is held at this offset")
	}
	io := m.held[i]
	m.held = slices.Delete(m.held, i, i+1)
	m.mu.Unlock()
	io.run()
	m.hooks.run()
}

// LetAll completes all held operations as one batch.
func (m *Memory) LetAll() {
	m.mu.Lock()
	held := m.held
	m.held = nil
	m.mu.Unlock()
	for _, io := range held {
		io.run()
	}
	m.hooks.run()
}

// Geometry implements block.Device.
func (m *Memory) Geometry() block.Geometry { return m.Geo }

// Kick implements block.Device. Everything that was submitted with more waits
// for it. It is a batch: what completes may be another connection's, which
// hears of it only by the batch's end.
func (m *Memory) Kick() {
	m.mu.Lock()
	ios := m.waiting
	m.waiting = nil
	m.mu.Unlock()
	for _, io := range ios {
		io.start()
	}
	m.hooks.run()
}

// OnBatchEnd implements block.Device.
func (m *Memory) OnBatchEnd(f func()) (cancel func()) { return m.hooks.add(f) }

// Get implements block.Device.
func (m *Memory) Get(ctx context.Context, op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	defer context.AfterFunc(ctx, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.change.Broadcast()
	})()
	for {
		io, err := m.TryGet(op, off, n, fl)
		if err != block.ErrBusy {
			return io, err
		}
		m.mu.Lock()
		for m.live >= m.Depth && ctx.Err() == nil {
			m.change.Wait()
		}
		m.mu.Unlock()
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
}

// TryGet implements block.Device.
func (m *Memory) TryGet(op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	if m.GetError != nil {
		if err := m.GetError(op, off, n); err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.Depth > 0 && m.live >= m.Depth {
		return nil, block.ErrBusy
	}
	m.live++
	m.change.Broadcast()
	io := &memIO{m: m, call: Call{op, off, n, fl}}
	if op == block.OpStatus {
		io.bufs = [][]byte{make([]byte, block.StatusLen)}
	}
	if op.HasData() {
		// In pieces of uneven size, so that a server has to mind them.
		mem := make([]byte, n)
		for k := 1000; len(mem) > k; k *= 3 {
			io.bufs = append(io.bufs, mem[:k])
			mem = mem[k:]
		}
		io.bufs = append(io.bufs, mem)
	}
	return io, nil
}

type memIO struct {
	m        *Memory
	call     Call
	bufs     [][]byte
	done     block.Completion
	released bool
}

func (io *memIO) Buffers() [][]byte { return io.bufs }

func (io *memIO) Submit(done block.Completion, more bool) {
	io.done = done
	if !more {
		io.start()
		return
	}
	m := io.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.waiting = append(m.waiting, io)
}

func (io *memIO) start() {
	m := io.m
	m.mu.Lock()
	m.log = append(m.log, io.call)
	hold := m.Hold != nil && m.Hold(io.call.Op, io.call.Offset)
	if hold {
		m.held = append(m.held, io)
	}
	m.change.Broadcast()
	m.mu.Unlock()
	if !hold {
		io.run()
	}
}

func (io *memIO) run() {
	m, c := io.m, io.call
	if m.Errno != nil {
		if errno := m.Errno(c.Op, c.Offset, c.Length, c.Flags); errno != 0 {
			io.done.Complete(errno)
			return
		}
	}
	if m.Skip {
		io.done.Complete(0)
		return
	}
	m.mu.Lock()
	p := m.data[c.Offset : c.Offset+uint64(c.Length)]
	switch c.Op {
	case block.OpStatus:
		block.PutExtents(io.bufs[0], extents(p))
	case block.OpTrim, block.OpWriteZeroes:
		clear(p)
	case block.OpRead, block.OpWrite:
		for _, b := range io.bufs {
			if c.Op == block.OpRead {
				copy(b, p)
			} else {
				copy(p, b)
			}
			p = p[len(b):]
		}
	}
	m.mu.Unlock()
	io.done.Complete(0)
}

// extents has whole sectors of zeroes as holes.
func extents(p []byte) (all []block.Extent) {
	for len(p) > 0 && len(all) < block.MaxExtents {
		n, e := min(len(p), 512), block.Extent{State: block.Hole | block.Zero}
		if slices.ContainsFunc(p[:n], func(b byte) bool { return b != 0 }) {
			e.State = 0
		}
		if last := len(all) - 1; last >= 0 && all[last].State == e.State {
			all[last].Length += uint32(n)
		} else {
			e.Length = uint32(n)
			all = append(all, e)
		}
		p = p[n:]
	}
	return all
}

func (io *memIO) Release() {
	m := io.m
	m.mu.Lock()
	defer m.mu.Unlock()
	if io.released {
		panic("nbdtest: an I/O was released twice")
	}
	io.released = true
	for _, b := range io.bufs {
		clear(b) // whoever still reads it gets caught
	}
	m.live--
	m.change.Broadcast()
}
