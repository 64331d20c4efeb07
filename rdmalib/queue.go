package rdmalib

import (
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/ironwarp/ironwarp/verbs"
)

// WC is a completion in a Ring: struct iw_wc of c/engine.h.
type WC struct {
	ID          uint64
	Status      uint32 // enum ibv_wc_status
	Opcode      uint32 // enum ibv_wc_opcode
	Len         uint32
	Imm         uint32 // in the order of the network
	QPNum       uint32
	Flags       uint32 // enum ibv_wc_flags
	Invalidated uint32
	Seq         uint32 // of a send: how many its queue pair has taken up to it
	_           [4]uint32
}

// Ring is a completion queue in the memory of the C library: struct iw_ring of c/engine.h. The engine writes behind
// Tail, the program reads from Head on.
type Ring struct {
	Tail uint64
	_    [7]uint64
	Head uint64
	_    [7]uint64
	// Armed is 0, or Tail when it was armed, shifted by 2, and armedSolicited or armedAny.
	Armed    uint64
	FD       int32 // where an event is written to, -1: nowhere
	_        int32
	Cookie   uint64 // what is written to it
	Reported uint64 // events written
	Mask     uint64
	WC       *WC
	Sockets  [4]int32 // of streams that complete here: the descriptor and 1, 0: none
	Spins    uint64   // polls that have found nothing after several like that, which the library counts
	Quiet    uint32   // 1: the engine relies on them, and is told of the end (Engine.Sleeps)
	_        [13]uint32
}

const armedSolicited = 1

type cq struct {
	e    *Engine
	cq   *verbs.CQ
	mu   sync.Mutex // guards the fields below it; of the ring what this side writes; innermost
	ring *Ring      // nil: it is the C library's again
	wcs  []WC
	over bool // completions were lost

	watched atomic.Bool // watch is under way
	quiet   quiet
}

type srq struct{ srq *verbs.SRQ }

// onTheWay is how many completions may be on their way to a ring, of whatever size it is or becomes. They take memory as they come.
const onTheWay = 2 * MaxCQE

// CreateCQ makes a completion queue that fills a ring of Mask+1 completions, a power of two.
func (e *Engine) CreateCQ(ring *Ring) (uint32, syscall.Errno) {
	c := &cq{e: e, ring: ring, wcs: unsafe.Slice(ring.WC, ring.Mask+1)}
	q, err := e.ulp.CreateCQ(onTheWay, c, verbs.InPost)
	if err != nil {
		return 0, e.errnoOf("create a completion queue", err)
	}
	c.cq = q
	h := e.cqs.add(c)
	if h == 0 {
		q.Destroy()
		return 0, syscall.ENOMEM
	}
	return h, 0
}

// ResizeCQ gives a completion queue another ring, into which it moves what is in the old one. The C library has it alone
// then: nobody polls meanwhile.
func (e *Engine) ResizeCQ(h uint32, ring *Ring) syscall.Errno {
	c := e.cqs.get(h)
	if c == nil {
		return syscall.EINVAL
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.ring
	if old.Tail-old.Head > ring.Mask+1 {
		return syscall.EINVAL
	}
	wcs := unsafe.Slice(ring.WC, ring.Mask+1)
	for i := old.Head; i < old.Tail; i++ {
		wcs[i&ring.Mask] = c.wcs[i&old.Mask]
	}
	ring.Sockets, ring.Spins, ring.Quiet = old.Sockets, old.Spins, atomic.LoadUint32(&old.Quiet)
	ring.Head, ring.Tail, ring.Armed, ring.Reported = old.Head, old.Tail, atomic.LoadUint64(&old.Armed), old.Reported
	c.ring, c.wcs = ring, wcs
	return 0
}

// DestroyCQ fails with EBUSY while queue pairs use it. The ring is the C library's again afterwards.
func (e *Engine) DestroyCQ(h uint32) syscall.Errno {
	c := e.cqs.get(h)
	if c == nil {
		return syscall.EINVAL
	}
	if err := c.cq.Destroy(); err != nil {
		return e.errnoOf("destroy a completion queue", err)
	}
	e.cqs.remove(h)
	c.mu.Lock()
	c.ring, c.wcs = nil, nil
	c.mu.Unlock()
	return 0
}

// Completions implements verbs.CQHandler.
func (c *cq) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	tail := c.ring.Tail
	urgent := false
	for i := range wcs {
		wc := &wcs[i]
		if tail-atomic.LoadUint64(&c.ring.Head) > c.ring.Mask {
			c.overflowLocked(wc.QP)
			continue
		}
		q := wc.QP.Context().(*qp)
		if isPart(wc) {
			continue
		}
		c.wcs[tail&c.ring.Mask] = q.completion(wc)
		tail++
		urgent = urgent || wc.Solicited || wc.Err != nil
	}
	atomic.StoreUint64(&c.ring.Tail, tail)
	c.notifyLocked(urgent)
}

// overflowLocked ends a stream whose completion has no room: the program has made the queue too small.
func (c *cq) overflowLocked(q *verbs.QP) {
	q.Abort(verbs.ErrCQOverflow)
	if c.over || c.e.async == nil {
		return
	}
	c.over = true
	if h, ok := c.e.cqs.find(func(x *cq) bool { return x == c }); ok {
		c.e.async(eventCQError, h)
	}
}

// notifyLocked writes an event if the queue is armed for what was completed since: programs rely on there being none
// for a completion that was there before.
func (c *cq) notifyLocked(urgent bool) {
	r := c.ring
	armed := atomic.LoadUint64(&r.Armed)
	if armed == 0 || armed&3 == armedSolicited && !urgent || r.Tail <= armed>>2 || !atomic.CompareAndSwapUint64(&r.Armed, armed, 0) {
		return
	}
	if r.FD >= 0 {
		atomic.AddUint64(&r.Reported, 1)
		syscall.Write(int(r.FD), unsafe.Slice((*byte)(unsafe.Pointer(&r.Cookie)), 8))
	}
}

// CreateSRQ makes a shared receive queue for n receives with lists of up to most elements.
func (e *Engine) CreateSRQ(domain, n, most uint32) (uint32, syscall.Errno) {
	p := e.pds.get(domain)
	if p == nil || n == 0 || n > MaxWR || most > verbs.MaxSGE {
		return 0, syscall.EINVAL
	}
	s, err := p.pd.CreateSRQ(verbs.SRQConfig{MaxRecv: int(n), MaxSGE: sges(most)})
	if err != nil {
		return 0, e.errnoOf("create a shared receive queue", err)
	}
	h := e.srqs.add(&srq{s})
	if h == 0 {
		s.Destroy()
		return 0, syscall.ENOMEM
	}
	return h, 0
}

// ArmSRQ asks for an event when fewer than limit receives are left.
func (e *Engine) ArmSRQ(h, limit uint32) syscall.Errno {
	s := e.srqs.get(h)
	if s == nil {
		return syscall.EINVAL
	}
	return e.errnoOf("arm a shared receive queue", s.srq.Arm(int(min(limit, 1<<30))))
}

// DestroySRQ fails with EBUSY while queue pairs use it.
func (e *Engine) DestroySRQ(h uint32) syscall.Errno {
	s := e.srqs.get(h)
	if s == nil {
		return syscall.EINVAL
	}
	if err := s.srq.Destroy(); err != nil {
		return e.errnoOf("destroy a shared receive queue", err)
	}
	e.srqs.remove(h)
	return 0
}

// PostSRQRecv posts a receive to a shared queue.
func (e *Engine) PostSRQRecv(h uint32, id uint64, sg *SGE, n uint32) syscall.Errno {
	s := e.srqs.get(h)
	if s == nil {
		return syscall.EINVAL
	}
	if n > verbs.DefaultSGE {
		return e.postLongSRQRecv(s, id, sg, n)
	}
	var room [verbs.DefaultSGE]verbs.SGE
	l, errno := e.list(room[:0], sg, n)
	if errno != 0 {
		return errno
	}
	return e.postErrno(s.srq.PostRecv(verbs.RecvWR{ID: id, SGL: l}))
}

func (e *Engine) postLongSRQRecv(s *srq, id uint64, sg *SGE, n uint32) syscall.Errno {
	var room [verbs.MaxSGE]verbs.SGE
	l, errno := e.list(room[:0], sg, n)
	if errno != 0 {
		return errno
	}
	return e.postErrno(s.srq.PostRecv(verbs.RecvWR{ID: id, SGL: l}))
}

// postErrno is errnoOf for what is asked often.
func (e *Engine) postErrno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	return e.errnoOf("post a work request", err)
}
