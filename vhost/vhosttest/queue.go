package vhosttest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests and results of virtio-blk.
const (
	In          = 0
	Out         = 1
	Flush       = 4
	GetID       = 8
	Discard     = 11
	WriteZeroes = 13

	OK          = 0
	IOError     = 1
	Unsupported = 2
	pending     = 0xff
)

// Queue is a ring with its driver. It is for one goroutine.
type Queue struct {
	f                 *Frontend
	Index             int
	size              uint16
	Desc, Avail, Used uint64 // guest's addresses
	desc, avail, used []byte
	kick, call        int      // descriptors
	free              []uint16 // split: descriptors; packed: ids
	room              int      // packed: descriptors that are free
	next              uint16   // split: the available index; packed: where the next goes
	wrap              bool     // packed
	seen              uint16   // what was used up to here
	seenWrap          bool     // packed
	under             map[uint16]*Request
	order             atomic.Uint32
}

// Request is a guest's request.
type Request struct {
	Typ    uint32
	Sector uint64
	Data   []byte // to be written, or as long as what is to be read
	Status byte
	Len    uint32 // as the back end says
	Done   bool

	into   uint64 // guest's address of the data
	status []byte
	descs  []uint16
	n      int
}

func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "socketpair")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}

func newEvent() (fd int, err error) { return unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) }

func newQueue(f *Frontend, index int) (*Queue, error) {
	q := &Queue{f: f, Index: index, size: f.Opts.Size, under: map[uint16]*Request{}, room: int(f.Opts.Size), wrap: true, seenWrap: true}
	n := int(q.size)
	q.Desc, q.desc = f.Memory.Alloc(16 * n)
	if q.packed() {
		q.Avail, q.avail = f.Memory.Alloc(4)
		q.Used, q.used = f.Memory.Alloc(4)
	} else {
		q.Avail, q.avail = f.Memory.Alloc(6 + 2*n)
		q.Used, q.used = f.Memory.Alloc(6 + 8*n)
	}
	for i := range q.size {
		q.free = append(q.free, i)
	}
	var err, cerr error
	q.kick, err = newEvent()
	q.call, cerr = newEvent()
	return q, errors.Join(err, cerr)
}

func (q *Queue) packed() bool { return q.f.Opts.Features&FeaturePacked != 0 }

func (q *Queue) close() {
	unix.Close(q.kick)
	unix.Close(q.call)
}

func (q *Queue) state(n uint32) []byte {
	return le.AppendUint32(le.AppendUint32(nil, uint32(q.Index)), n)
}

// start has the back end start the queue, in the order of QEMU's messages.
func (q *Queue) start() error {
	base := uint32(q.seen) // what a monitor knows after the back end was killed
	if q.packed() {
		base = uint32(q.seen)
		if q.seenWrap {
			base |= 1 << 15
		}
	}
	at := le.AppendUint64(nil, uint64(q.Index))
	for _, a := range []uint64{q.Desc, q.Used, q.Avail} {
		at = le.AppendUint64(at, q.f.Memory.user(a))
	}
	at = le.AppendUint64(at, 0)
	f := q.f
	for _, err := range []error{
		f.Ack(SetVringNum, q.state(uint32(q.size))), f.Ack(SetVringBase, q.state(base)), f.Ack(SetVringAddr, at),
		f.Ack(SetVringKick, le.AppendUint64(nil, uint64(q.Index)), q.kick),
		f.Ack(SetVringCall, le.AppendUint64(nil, uint64(q.Index)), q.call),
		f.Ack(SetVringEnable, q.state(1)),
	} {
		if err != nil {
			return err
		}
	}
	return nil
}

// Stop has the back end stop the queue, and returns where it goes on. It fails if the back
// end hangs up.
func (q *Queue) Stop() (uint32, error) {
	p, err := q.f.Ask(GetVringBase, q.state(0))
	if err != nil {
		return 0, err
	}
	return le.Uint32(p[4:]), nil
}

// Restart starts the queue after Stop. It fails where the back end refuses.
func (q *Queue) Restart() error { return q.start() }

func word(b []byte, off int) *uint32 { return (*uint32)(unsafe.Pointer(&b[off])) }

func half(b []byte, off int) uint16 {
	w := atomic.LoadUint32(word(b, off&^3))
	return uint16(w >> (8 * (off & 2)))
}

type part struct {
	addr  uint64
	n     uint32
	write bool
}

// Post makes a request available without a kick. It panics if the ring is full.
func (q *Queue) Post(r *Request) {
	m := q.f.Memory
	hdr, b := m.Alloc(16)
	clear(b)
	le.PutUint32(b, r.Typ)
	le.PutUint64(b[8:], r.Sector)
	parts := []part{{hdr, 16, false}}
	var data []byte
	r.into, data = m.Alloc(len(r.Data) + 1)
	writes := r.Typ == In || r.Typ == GetID
	if !writes && !q.f.Opts.InPlace {
		copy(data, r.Data)
	}
	step := len(r.Data)
	if q.f.Opts.Segment > 0 {
		step = q.f.Opts.Segment
	}
	for at := 0; at < len(r.Data); at += step {
		parts = append(parts, part{r.into + uint64(at), uint32(min(step, len(r.Data)-at)), writes})
	}
	var st uint64
	st, r.status = m.Alloc(1)
	r.status[0] = pending
	q.PostParts(r, append(parts, part{st, 1, true})...)
}

// Rewind frees the memory of all requests.
func (q *Queue) Rewind(at int64) { q.f.Memory.next = at }

// Mark is what Rewind goes back to.
func (q *Queue) Mark() int64 { return q.f.Memory.next }

// PostParts makes a request of any parts available.
func (q *Queue) PostParts(r *Request, parts ...part) {
	if q.f.Opts.Indirect {
		at, b := q.f.Memory.Alloc(16 * len(parts))
		for i, p := range parts {
			q.put(b[16*i:], p, i < len(parts)-1 && !q.packed(), 0, uint16(i+1))
		}
		parts = []part{{at, uint32(len(b)), false}}
		q.post(r, parts, 4)
		return
	}
	q.post(r, parts, 0)
}

// put writes a descriptor. In a packed ring next is the id.
func (q *Queue) put(b []byte, p part, chained bool, flags, next uint16) {
	le.PutUint64(b, p.addr)
	le.PutUint32(b[8:], p.n)
	if p.write {
		flags |= 2
	}
	if chained {
		flags |= 1
	}
	w := uint32(flags) | uint32(next)<<16
	if q.packed() {
		w = uint32(next) | uint32(flags)<<16
	}
	atomic.StoreUint32(word(b, 12), w)
}

func (q *Queue) post(r *Request, parts []part, flags uint16) {
	if q.packed() {
		q.postPacked(r, parts, flags)
		return
	}
	r.descs = append([]uint16(nil), q.free[:len(parts)]...)
	q.free = q.free[len(parts):]
	for i, p := range parts {
		next := uint16(0)
		if i+1 < len(parts) {
			next = r.descs[i+1]
		}
		q.put(q.desc[16*int(r.descs[i]):], p, i+1 < len(parts), flags, next)
	}
	q.under[r.descs[0]] = r
	le.PutUint16(q.avail[4+2*int(q.next%q.size):], r.descs[0])
	q.next++
}

func (q *Queue) postPacked(r *Request, parts []part, flags uint16) {
	id := q.free[0]
	q.free = q.free[1:]
	r.n = len(parts)
	if q.room -= r.n; q.room < 0 {
		panic("the ring is full")
	}
	q.under[id] = r
	type slot struct {
		at    int
		flags uint16
	}
	var slots []slot
	for range parts {
		fl := flags
		if q.wrap {
			fl |= 1 << 7
		} else {
			fl |= 1 << 15
		}
		slots = append(slots, slot{int(q.next), fl})
		if q.next++; q.next == q.size {
			q.next, q.wrap = 0, !q.wrap
		}
	}
	for i := len(parts) - 1; i >= 0; i-- { // the first one makes it available
		q.put(q.desc[16*slots[i].at:], parts[i], i+1 < len(parts), slots[i].flags, id)
	}
}

// Announce makes what was posted available and wakes the back end. It fails if that cannot
// be woken.
func (q *Queue) Announce() error {
	if !q.packed() {
		return q.SetAvailable(q.next)
	}
	return q.Kick()
}

// Poll takes what was used, and returns how many.
func (q *Queue) Poll() (n int) {
	if q.packed() {
		return q.pollPacked()
	}
	now := half(q.used, 2)
	for ; q.seen != now; n++ {
		at := 4 + 8*int(q.seen%q.size)
		q.seen++
		id := uint16(atomic.LoadUint32(word(q.used, at)))
		r := q.under[id]
		if r == nil {
			panic(fmt.Sprintf("descriptor %d is used and was not under way", id))
		}
		delete(q.under, id)
		r.end(q.f, atomic.LoadUint32(word(q.used, at+4)))
		q.free = append(q.free, r.descs...)
	}
	le.PutUint16(q.avail[4+2*int(q.size):], q.seen) // used_event
	return n
}

func (q *Queue) pollPacked() (n int) {
	for {
		at := 16 * int(q.seen)
		w := atomic.LoadUint32(word(q.desc, at+12))
		avail, used := w>>16&(1<<7) != 0, w>>16&(1<<15) != 0
		if avail != q.seenWrap || used != q.seenWrap {
			break
		}
		id := uint16(w)
		r := q.under[id]
		if r == nil {
			panic(fmt.Sprintf("id %d is used and was not under way", id))
		}
		delete(q.under, id)
		q.free = append(q.free, id)
		q.room += r.n
		r.end(q.f, le.Uint32(q.desc[at+8:]))
		if q.seen += uint16(r.n); q.seen >= q.size {
			q.seen, q.seenWrap = q.seen-q.size, !q.seenWrap
		}
		n++
	}
	if q.f.Opts.Features&FeatureEventIndex != 0 {
		v := uint32(q.seen) | 2<<16
		if q.seenWrap {
			v |= 1 << 15
		}
		atomic.StoreUint32(word(q.avail, 0), v)
	}
	return n
}

func (r *Request) end(f *Frontend, n uint32) {
	r.Done, r.Len, r.Status = true, n, r.status[0]
	if (r.Typ == In || r.Typ == GetID) && !f.Opts.InPlace {
		copy(r.Data, f.Memory.At(r.into, len(r.Data)))
	}
}

// Wait waits until all of them are done, for at most a time. It fails when that is over.
func (q *Queue) Wait(within time.Duration, all ...*Request) error {
	deadline := time.Now().Add(within)
	q.Poll()
	for {
		left := 0
		for _, r := range all {
			if !r.Done {
				left++
			}
		}
		if left == 0 {
			return nil
		}
		if err := q.Next(deadline); err != nil {
			return fmt.Errorf("%d of %d requests are under way: %w", left, len(all), err)
		}
	}
}

// Next waits until requests are done, and takes them. It fails at the deadline.
func (q *Queue) Next(deadline time.Time) error {
	for {
		q.order.Add(1) // what is wanted is seen before what is there is looked at
		if q.Poll() > 0 {
			return nil
		}
		if err := q.called(deadline); err != nil {
			return err
		}
	}
}

// called waits for the back end's call.
func (q *Queue) called(deadline time.Time) error {
	for {
		var b [8]byte
		_, err := unix.Read(q.call, b[:])
		if err == nil {
			return nil
		}
		if err != unix.EAGAIN && err != unix.EINTR {
			return err
		}
		left := time.Until(deadline)
		if left <= 0 {
			return os.ErrDeadlineExceeded
		}
		p := []unix.PollFd{{Fd: int32(q.call), Events: unix.POLLIN}}
		if _, err := unix.Poll(p, int(left/time.Millisecond)+1); err != nil && err != unix.EINTR {
			return err
		}
	}
}

// Do carries out one request within ten seconds. It fails if that takes longer.
func (q *Queue) Do(typ uint32, sector uint64, data []byte) (status byte, err error) {
	mark := q.Mark()
	defer q.Rewind(mark)
	r := &Request{Typ: typ, Sector: sector, Data: data}
	q.Post(r)
	if err := q.Announce(); err != nil {
		return 0, err
	}
	return r.Status, q.waitOne(r)
}

func (q *Queue) waitOne(r *Request) error { return q.Wait(10*time.Second, r) }

// What follows breaks rules.

// PutIn writes a descriptor anywhere, as the queue's kind has it.
func (q *Queue) PutIn(b []byte, addr uint64, n uint32, flags, next uint16) {
	q.put(b, part{addr, n, false}, false, flags, next)
}

// PutDesc writes descriptor i of the ring, of a packed one as available.
func (q *Queue) PutDesc(i int, addr uint64, n uint32, flags, next uint16) {
	if q.packed() {
		flags |= 1 << 7
	}
	q.PutIn(q.desc[16*i:], addr, n, flags, next)
}

// Expose makes a descriptor available, and kicks. It fails if the back end cannot be woken.
func (q *Queue) Expose(i uint16) error {
	if !q.packed() {
		le.PutUint16(q.avail[4:], i)
		return q.SetAvailable(1)
	}
	return q.Kick()
}

// SetAvailable sets a split ring's available index, and kicks. It fails if the back end
// cannot be woken.
func (q *Queue) SetAvailable(index uint16) error {
	atomic.StoreUint32(word(q.avail, 0), uint32(index)<<16)
	return q.Kick()
}

// Kick wakes the back end. It fails if that cannot be woken.
func (q *Queue) Kick() error {
	var b [8]byte
	b[0] = 1
	_, err := unix.Write(q.kick, b[:])
	return err
}

// FillCall fills the counter by which the back end wakes the guest, and has it wait for room.
// It fails if the kernel refuses that.
func (q *Queue) FillCall() error {
	q.drainCall()
	_, err := unix.Write(q.call, le.AppendUint64(nil, 1<<64-2))
	return errors.Join(err, unix.SetNonblock(q.call, false))
}

func (q *Queue) drainCall() {
	var b [8]byte
	_, _ = unix.Read(q.call, b[:])
}
