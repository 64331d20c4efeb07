package verbs

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/rdmap"
)

// ErrWithdrawn is in the reason of a stream whose peer sent to a receive whose memory was withdrawn, or that
// was using memory when it was.
var ErrWithdrawn = errors.New("verbs: the memory was withdrawn while work requests named it")

// Withdraw is Deregister of memory that posted work requests may name. When it returns, nothing reads or
// changes the memory any more, whatever peers do: streams that were about to send from it or to receive into it
// are ended, with ErrWithdrawn. A receive that nothing has come for stays posted, and ends its
// stream if its turn comes. It waits for such streams to end, so a handler must not call it. It fails with ErrInUse
// while memory windows are bound to the region.
func (mr *MR) Withdraw() error {
	w := &mr.win
	first, err := w.withdraw(mr)
	if err != nil || !first {
		if mr.over != nil {
			<-mr.over
		}
		return err
	}
	for _, qp := range w.pd.usersOf(mr) {
		qp.Abort(ErrWithdrawn)
		<-qp.done
	}
	mr.giveBack()
	close(mr.over)
	return nil
}

// withdraw marks a region as gone, and ends access through its STag. It returns false if it is gone already.
func (w *window) withdraw(mr *MR) (first bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.state == windowGone:
		return false, nil
	case w.next.stag != 0:
		return false, fmt.Errorf("verbs: withdraw memory whose registration is posted: %w", ErrInUse)
	}
	for { // nobody sees a region marked that then stays, and a bind that comes later sees the mark
		refs := mr.refs.Load()
		if refs >= oneWindow {
			return false, fmt.Errorf("verbs: withdraw memory that memory windows open: %w", ErrInUse)
		}
		if mr.refs.CompareAndSwap(refs, refs+gone) {
			break
		}
	}
	w.closeLocked()
	w.state = windowGone
	mr.over = make(chan struct{})
	return true, nil
}

// usersOf are the queue pairs of a protection domain that send from a region that is marked as gone, or receive
// into it. Those that begin later see the mark.
func (pd *PD) usersOf(mr *MR) (users []*QP) {
	d := pd.ulp.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, qp := range d.qps {
		if qp.pd == pd && qp.uses(mr) {
			users = append(users, qp)
		}
	}
	return users
}

// uses reports whether a send of the queue pair that has not ended names a region, or a receive that is being filled.
func (qp *QP) uses(mr *MR) bool {
	if s := qp.stream.Load(); s != nil && s.Holds((*ref)(mr)) {
		return true
	}
	if qp.cfg.SRQ != nil {
		return qp.cfg.SRQ.isFilling(qp, mr)
	}
	q := &qp.rq
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := q.head; i < q.next; i++ {
		if names(q.slots[i%uint64(len(q.slots))], mr) {
			return true
		}
	}
	return false
}

// names reports whether a receive has a piece of a region.
func names(r *rdmap.RecvBuffer, mr *MR) bool {
	for _, p := range r.Ref {
		if p == rdmap.Pin((*ref)(mr)) {
			return true
		}
	}
	return false
}

// isWithdrawn reports whether memory of a receive is gone.
func isWithdrawn(r *rdmap.RecvBuffer) bool {
	for _, p := range r.Ref {
		if p.(*ref).refs.Load() < 0 {
			return true
		}
	}
	return false
}
