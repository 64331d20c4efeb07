package verbs

import (
	"fmt"
	"slices"
)

// cqUse is a queue pair's use of a completion queue.
type cqUse struct {
	queues int // how many of its two queues complete here
	need   int // what they may have posted
}

// kept is how many entries a completion queue keeps for a queue pair and, if the
// queue is strict, how many the queue pair uses. It is guarded by CQ.mu.
type kept struct{ most, n int }

func (qp *QP) keptIn(cq *CQ) *kept {
	if qp.cfg.SendCQ == cq {
		return &qp.kept[0]
	}
	return &qp.kept[1]
}

// enter attaches one of the queues of qp, if the trust models permit: a
// completion queue is shared only among streams whose models share (R27), and has
// room for all that they may post unless every model permits less (R22).
func (cq *CQ) enter(qp *QP) error {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	if cq.closed {
		return &closedError{what: "use a destroyed completion queue"}
	}
	use := cq.users[qp]
	if use.queues == 0 {
		if err := cq.admitLocked(qp, &use); err != nil {
			return err
		}
	}
	use.queues++
	cq.users[qp] = use
	return nil
}

func (cq *CQ) admitLocked(qp *QP, use *cqUse) error {
	if qp.cfg.SendCQ == cq {
		use.need += qp.cfg.MaxSend
	}
	srq := qp.cfg.SRQ
	if qp.cfg.RecvCQ == cq && srq == nil {
		use.need += qp.cfg.MaxRecv
	}
	need, strict := use.need, qp.pd.reserves()
	most := use.need
	srqs := make(map[*SRQ]bool)
	if qp.cfg.RecvCQ == cq && srq != nil {
		srqs[srq] = true
		most += srq.cfg.MaxPerQP
	}
	for other, u := range cq.users {
		for _, pd := range []*PD{other.pd, qp.pd} {
			if pd.isForOneStream() {
				return trustError(pd.model, "7.1", "create a queue pair whose completion queue another one uses: create one of its own, or use a model that shares")
			}
		}
		need += u.need
		strict = strict || other.pd.reserves()
		if other.cfg.RecvCQ == cq && other.cfg.SRQ != nil {
			srqs[other.cfg.SRQ] = true
		}
	}
	for s := range srqs {
		need += s.cfg.MaxRecv
	}
	if strict && !cq.strict {
		cq.recountLocked()
	}
	if strict && need+cq.beyond > cq.depth {
		return trustError(SNT, "6.4.3.2", fmt.Sprintf("create a queue pair on a completion queue of depth %d, whose users may have %d work requests posted then or completed and not polled: create a deeper one or poll", cq.depth, need+cq.beyond))
	}
	qp.keptIn(cq).most = most
	cq.keeps += most
	cq.strict = strict
	return nil
}

// recountLocked recounts the entries that each stream uses.
func (cq *CQ) recountLocked() {
	at := func(i int) *kept {
		e := &cq.ring[(cq.head+i)%len(cq.ring)]
		return e.QP.keptIn(cq)
	}
	for qp := range cq.users {
		qp.keptIn(cq).n = 0
	}
	for i := range cq.n {
		at(i).n = 0
	}
	cq.beyond = 0
	for i := range cq.n {
		k := at(i)
		if k.n++; k.n > k.most {
			cq.beyond++
		}
	}
}

func (cq *CQ) leave(qp *QP) {
	cq.mu.Lock()
	defer cq.mu.Unlock()
	use := cq.users[qp]
	if use.queues--; use.queues > 0 {
		cq.users[qp] = use
		return
	}
	delete(cq.users, qp)
	if i := slices.Index(cq.live, qp); i >= 0 {
		last := len(cq.live) - 1
		cq.live[i], cq.live[last] = cq.live[last], nil
		cq.live = cq.live[:last]
	}
	k := qp.keptIn(cq)
	cq.beyond += min(k.n, k.most) // they stay until they are polled
	cq.keeps -= k.most
	k.most = 0
	for other := range cq.users {
		if !other.pd.trust.Overcommit {
			return
		}
	}
	cq.strict = false
}
