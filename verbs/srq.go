package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/internal/fifo"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// SRQConfig describes a shared receive queue.
type SRQConfig struct {
	// MaxRecv is how many receives may be posted and not yet delivered, including
	// those that streams have taken: 1 to 65,536. Under a model without Overcommit
	// receives count until they are polled.
	MaxRecv int
	// MaxSGE is how many elements the list of a receive may have, up to MaxSGE; 0 for DefaultSGE.
	MaxSGE int
	// MaxPerQP is how many receives one queue pair may hold, see QP.RecvHeld: 0
	// for MaxRecv. A peer whose message finds the share used up has its stream
	// ended (RFC 5042 section 6.4.3.1); the others go on. Unless the model has
	// UnlimitedSRQ, unpolled receives of the peer's ended streams count, too.
	MaxPerQP int
	// HighWater, if not 0, is how many receives a queue pair must hold to raise an
	// EventSRQHighWater, again after it has fallen below half.
	HighWater int
}

// SRQ is a shared receive queue: queue pairs of one protection domain, so of one
// ULP, take their receives from it (RFC 5042 section 6.4.3.1). By naming it
// in the QPConfig of several streams a ULP declares that they may share.
//
// With MaxRecv at least the number of streams times MaxPerQP, plus the receives
// that the consumer has been given and not yet reposted, no stream finds the
// queue empty because of what others take.
type SRQ struct {
	pd     *PD
	cfg    SRQConfig
	charge charge

	// unpolled receives are delivered but not polled. If completion queues reserve room
	// for MaxRecv of them (R22), they count against that.
	reserved bool
	unpolled atomic.Int32

	mu     sync.Mutex // guards the fields below it
	posted fifo.Queue[*rdmap.RecvBuffer]
	spare  []*rdmap.RecvBuffer
	out    int // posted or taken
	limit  int // of the next EventSRQLimit, 0: none
	// ended are streams that are over with receives not yet polled, which
	// count against the shares of their peers' next streams.
	ended  map[transport.Identity][]*QP
	users  int // queue pairs
	closed bool
}

// ErrSRQShare is in the reason of a stream whose peer sent when the stream held
// its whole share of the shared receive queue.
var ErrSRQShare = errors.New("verbs: the stream's share of the shared receive queue is used up")

// ErrSRQEmpty is in the reason of a stream whose peer sent when the shared
// receive queue was empty.
var ErrSRQEmpty = errors.New("verbs: the shared receive queue is empty: post earlier or more")

// CreateSRQ makes a shared receive queue, which is charged to the PD's ULP. It fails
// with a *QuotaError, with ErrTrust if the trust model requires a bound on what one
// stream may take, with ErrClosed if the domain is freed, and if cfg is invalid.
func (pd *PD) CreateSRQ(cfg SRQConfig) (*SRQ, error) {
	cfg.MaxPerQP = cmp.Or(cfg.MaxPerQP, cfg.MaxRecv)
	switch {
	case cfg.MaxRecv < 1 || cfg.MaxRecv > maxQueueDepth:
		return nil, fmt.Errorf("verbs: create a shared receive queue: MaxRecv %d, 1 to %d are possible", cfg.MaxRecv, maxQueueDepth)
	case cfg.MaxPerQP < 0 || cfg.MaxPerQP > cfg.MaxRecv || cfg.HighWater < 0 || cfg.HighWater > cfg.MaxPerQP:
		return nil, fmt.Errorf("verbs: create a shared receive queue: MaxPerQP %d of %d, HighWater %d: each is no more than the one before", cfg.MaxPerQP, cfg.MaxRecv, cfg.HighWater)
	}
	if cfg.MaxPerQP == cfg.MaxRecv && pd.trust.ShareStreams && !pd.trust.UnlimitedSRQ { // R21
		return nil, trustError(pd.model, "6.4.3.1", fmt.Sprintf("create a shared receive queue of which one stream may take all %d receives: set a MaxPerQP below MaxRecv", cfg.MaxRecv))
	}
	if err := checkSGEs("MaxSGE", &cfg.MaxSGE); err != nil {
		return nil, err
	}
	if err := pd.enter(); err != nil {
		return nil, err
	}
	s := &SRQ{pd: pd, cfg: cfg, charge: charge{ulp: &pd.ulp.acct}, ended: make(map[transport.Identity][]*QP)}
	s.reserved = pd.reserves()
	s.charge.n[resSRQEntries] = entries(cfg.MaxRecv, cfg.MaxSGE)
	if err := pd.ulp.dev.prm.take(&s.charge); err != nil {
		pd.leave()
		return nil, err
	}
	return s, nil
}

// PostRecv posts a receive. It fails with ErrQueueFull when MaxRecv receives are posted
// and not yet delivered, with ErrClosed after Destroy, and if the work request is
// invalid.
func (s *SRQ) PostRecv(wr RecvWR) error {
	total, err := s.pd.checkSGL(wr.SGL, s.cfg.MaxSGE, true)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return &closedError{what: "post a receive to a destroyed queue"}
	case s.out+int(s.unpolled.Load()) >= s.cfg.MaxRecv:
		return ErrQueueFull
	}
	var r *rdmap.RecvBuffer
	if n := len(s.spare); n > 0 {
		r = s.spare[n-1]
	} else {
		r = rdmap.NewRecvBuffer(s.cfg.MaxSGE)
		s.spare = append(s.spare, r)
	}
	if err := fillRecv(r, &wr, total); err != nil {
		return err
	}
	s.spare = s.spare[:len(s.spare)-1]
	s.posted.Push(r)
	s.out++
	return nil
}

// Len is how many receives are posted and not yet taken by a stream.
func (s *SRQ) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.posted.Len()
}

// Arm asks for one EventSRQLimit, the low-water notification of RFC 5042 section
// 6.4.3.1: when fewer than limit receives are left, at once if that is already
// so. 0 cancels it. It fails with ErrClosed after Destroy, and if the
// queue can't hold limit receives.
func (s *SRQ) Arm(limit int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return &closedError{what: "arm a destroyed shared receive queue"}
	case limit < 0 || limit > s.cfg.MaxRecv:
		return fmt.Errorf("verbs: arm a shared receive queue of %d for a limit of %d", s.cfg.MaxRecv, limit)
	}
	s.limit = limit
	s.checkLimitLocked()
	return nil
}

func (s *SRQ) checkLimitLocked() {
	if s.posted.Len() < s.limit {
		s.limit = 0
		s.pd.ulp.dev.events.emit(Event{Kind: EventSRQLimit, SRQ: s})
	}
}

// Destroy frees the queue with the receives that are still posted, which end
// without completions. It fails with ErrInUse while queue pairs use it.
func (s *SRQ) Destroy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil
	case s.users > 0:
		return fmt.Errorf("verbs: destroy a shared receive queue that %d queue pairs use: %w", s.users, ErrInUse)
	}
	s.closed = true
	for s.posted.Len() > 0 {
		r := s.posted.Pop()
		forget(r)
	}
	s.spare = nil
	s.pd.ulp.dev.prm.give(&s.charge)
	s.pd.leave()
	return nil
}

func (s *SRQ) enter(qp *QP) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return &closedError{what: "use a destroyed shared receive queue"}
	}
	s.users++
	s.meetLocked(qp)
	return nil
}

// meet has the receives that earlier streams of its peer still hold count against a queue pair.
func (s *SRQ) meet(qp *QP) {
	s.mu.Lock()
	s.meetLocked(qp)
	s.mu.Unlock()
}

func (s *SRQ) meetLocked(qp *QP) {
	if !s.pd.trust.UnlimitedSRQ {
		qp.share.owed = owing(s.ended[qp.charge.peer])
	}
}

// owing returns those of qps that still hold receives.
func owing(qps []*QP) (still []*QP) {
	for _, qp := range qps {
		if qp.held.Load() > 0 {
			still = append(still, qp)
		}
	}
	return still
}

func (s *SRQ) leave() {
	s.mu.Lock()
	s.users--
	s.mu.Unlock()
}

// take hands out the oldest receive; why there is none is the queue pair's fault then.
func (s *SRQ) take(u *upper) *rdmap.RecvBuffer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.posted.Len() == 0 {
		u.share.fault = ErrSRQEmpty
		return nil
	}
	r := s.posted.Pop()
	s.checkLimitLocked()
	u.share.taken.Push(r)
	u.held.Add(1)
	if isWithdrawn(r) { // it stays taken, and is not filled
		u.share.fault = ErrWithdrawn
		u.share.spoilt = true
		return nil
	}
	return r
}

// isFilling reports whether a receive that a queue pair has taken has a piece of a region.
func (s *SRQ) isFilling(qp *QP, mr *MR) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range qp.share.taken.Len() {
		if names(*qp.share.taken.At(i), mr) {
			return true
		}
	}
	return false
}

// used recycles the oldest receive that a stream has taken, which has been delivered.
func (s *SRQ) used(u *upper) {
	s.mu.Lock()
	r := u.share.taken.Pop()
	forget(r)
	s.spare = append(s.spare, r)
	s.out--
	if s.reserved {
		s.unpolled.Add(1)
	}
	s.mu.Unlock()
}

// polled records that the consumer has been given a completion of qp, or never
// will be.
func (s *SRQ) polled(qp *QP) {
	qp.held.Add(-1)
	if s.reserved {
		s.unpolled.Add(-1)
	}
}

// untake reposts the oldest receive that a stream took but did not deliver. It returns false if there is none, or none
// but one that is withdrawn.
func (s *SRQ) untake(u *upper) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := u.share.taken.Len(); n == 0 || n == 1 && u.share.spoilt {
		return false
	}
	s.posted.Push(u.share.taken.Pop())
	return true
}

// spoilt is the ID of the withdrawn receive that a stream has taken.
func (s *SRQ) spoilt(u *upper) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return (*u.share.taken.At(0)).ID
}

// share is a queue pair's part in a shared receive queue. Unlike QP.held it belongs
// to the receiving goroutine.
type share struct {
	taken fifo.Queue[*rdmap.RecvBuffer] // not delivered, in the order of taking; guarded by SRQ.mu

	spoilt bool  // the last of them is withdrawn
	high   bool  // EventSRQHighWater has been raised
	fault  error // why there was no receive
	owed   []*QP // earlier streams of the peer, see SRQ.ended
}

// debt is how many receives the peer holds through streams that are over.
func (sh *share) debt() (n int) {
	if len(sh.owed) == 0 {
		return 0
	}
	for _, qp := range sh.owed {
		n += int(qp.held.Load())
	}
	if n == 0 {
		sh.owed = nil
	}
	return n
}

// RecvHeld is how many receives of the shared queue count against the queue
// pair's share: taken for a message, and the consumer has not been given
// the completion yet.
func (qp *QP) RecvHeld() int { return int(qp.held.Load()) }

// nextShared takes a receive of the shared queue.
func (u *upper) nextShared() *rdmap.RecvBuffer {
	srq, sh := u.cfg.SRQ, &u.share
	held := int(u.held.Load())
	if srq.isShare(held + sh.debt()) {
		sh.fault = ErrSRQShare
		return nil
	}
	r := srq.take(u)
	if r == nil {
		return nil
	}
	if high := srq.cfg.HighWater; high > 0 {
		if 2*held < high {
			sh.high = false
		}
		if held+1 >= high && !sh.high {
			sh.high = true
			e := (*QP)(u).event(EventSRQHighWater, nil)
			e.SRQ = srq
			u.pd.ulp.dev.events.emit(e)
		}
	}
	return r
}

// giveBack returns what the ended stream took but did not deliver.
func (u *upper) giveBack() {
	s := u.cfg.SRQ
	for s != nil && s.untake(u) {
		u.held.Add(-1)
	}
	if u.share.spoilt {
		wc := WC{ID: s.spoilt(u), QP: (*QP)(u), Op: WCRecv, Err: &flushError{cause: ErrWithdrawn}, shared: true}
		s.used(u)
		u.cfg.RecvCQ.push(wc)
	}
	if s != nil && !s.pd.trust.UnlimitedSRQ && u.held.Load() > 0 {
		s.outlived((*QP)(u))
	}
}

// outlived records that a stream is over whose completions are not all polled.
func (s *SRQ) outlived(qp *QP) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for peer, qps := range s.ended {
		if s.ended[peer] = owing(qps); len(s.ended[peer]) == 0 {
			delete(s.ended, peer)
		}
	}
	s.ended[qp.charge.peer] = append(s.ended[qp.charge.peer], qp)
}
