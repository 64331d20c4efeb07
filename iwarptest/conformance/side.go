package conformance

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"
)

// patience bounds each wait of the suite. Only a failure takes that long.
const patience = 60 * time.Second

// side is one end as the cases use it. It checks each completion against what
// was posted: operations complete in the order of posting (RFC 5040 section 5.5
// rule 15), receives likewise, each once, and after one that failed none
// succeeds.
type side struct {
	Endpoint
	t    testing.TB
	name string
	lim  Limits

	id      uint64
	sends   posted
	recvs   posted
	seed    byte
	bufs    []*buffer
	end     *End
	drained bool
}

// posted is a queue of work: what has been posted and not completed, and the
// completions that no case has asked for yet.
type posted struct {
	waiting []WR
	done    []WC
	failed  bool // a completion was not OK
}

func newSide(t testing.TB, name string, e Endpoint) *side {
	return &side{Endpoint: e, t: t, name: name, lim: e.Limits()}
}

func (s *side) check(what string, err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("end %s: %s: %v", s.name, what, err)
	}
}

// post posts an operation; its ID is the suite's.
func (s *side) post(wr WR) uint64 {
	s.t.Helper()
	s.id++
	wr.ID = s.id
	s.sends.waiting = append(s.sends.waiting, wr)
	s.check("post a "+wr.Op.String(), s.PostSend(wr))
	return wr.ID
}

// tryPost posts an operation on a stream that may have ended, which the end may
// refuse.
func (s *side) tryPost(wr WR) {
	s.id++
	wr.ID = s.id
	s.sends.waiting = append(s.sends.waiting, wr)
	if s.PostSend(wr) != nil {
		s.sends.waiting = s.sends.waiting[:len(s.sends.waiting)-1]
	}
}

// status returns the status of an operation whose completion no case has taken.
func (s *side) status(id uint64) Status {
	s.t.Helper()
	for _, wc := range s.sends.done {
		if wc.ID == id {
			return wc.Status
		}
	}
	s.t.Errorf("end %s: operation %d has not completed", s.name, id)
	return OK
}

// recv posts a receive.
func (s *side) recv(sgl ...SGE) {
	s.t.Helper()
	s.id++
	s.recvs.waiting = append(s.recvs.waiting, WR{ID: s.id, Op: OpRecv})
	s.check("post a receive", s.PostRecv(s.id, sgl))
}

// recvNothing posts n receives without memory.
func (s *side) recvNothing(n int) {
	s.t.Helper()
	for range n {
		s.recv()
	}
}

// take waits for one completion and records it. It returns false if the stream has ended
// and there are no more.
func (s *side) take() bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	wc, err := s.Completion(ctx)
	if errors.Is(err, io.EOF) {
		return false
	}
	s.check("wait for a completion", err)
	q := &s.sends
	if len(s.recvs.waiting) > 0 && s.recvs.waiting[0].ID == wc.ID {
		q = &s.recvs
	}
	if !q.accept(wc, s.Can(InOrder)) {
		s.t.Fatalf("end %s: completion %+v out of turn; operations that wait: %v; receives: %v", s.name, wc, ids(s.sends.waiting), ids(s.recvs.waiting))
	}
	if q.failed && wc.Status == OK && s.Can(InOrder) {
		s.t.Errorf("end %s: completion %+v succeeds behind one that failed", s.name, wc)
	}
	q.failed = q.failed || wc.Status != OK
	q.done = append(q.done, wc)
	return true
}

// accept takes what wc ends off the queue, with the unsignaled operations before
// it: when they succeed they have no completion. Without inOrder, Reads and
// Atomics are a sequence of their own.
func (p *posted) accept(wc WC, inOrder bool) bool {
	i := slices.IndexFunc(p.waiting, func(wr WR) bool { return wr.ID == wc.ID })
	if i < 0 || p.waiting[i].silent() && wc.Status == OK {
		return false
	}
	beside := func(wr WR) bool { return !inOrder && wr.answered() != p.waiting[i].answered() }
	var keep []WR
	for _, wr := range p.waiting[:i] {
		switch {
		case beside(wr):
			keep = append(keep, wr)
		case !wr.silent():
			return false
		}
	}
	p.waiting = append(keep, p.waiting[i+1:]...)
	return true
}

// silent reports whether the operation has no completion if it succeeds.
func (wr WR) silent() bool { return wr.Op != OpRecv && wr.Flags&Signaled == 0 }

// answered reports whether the peer answers the operation.
func (wr WR) answered() bool { return wr.Op == OpRead || wr.Op == OpFetchAdd || wr.Op == OpCmpSwap }

func ids(wrs []WR) []uint64 {
	var out []uint64
	for _, wr := range wrs {
		out = append(out, wr.ID)
	}
	return out
}

// next waits for the next completion of a queue for which fit returns true.
func (s *side) next(q *posted, what string, fit func(WC) bool) WC {
	s.t.Helper()
	for {
		if i := slices.IndexFunc(q.done, fit); i >= 0 {
			wc := q.done[i]
			q.done = slices.Delete(q.done, i, i+1)
			return wc
		}
		if !s.take() {
			s.t.Fatalf("end %s: the stream is over, %s", s.name, what)
		}
	}
}

func anyWC(WC) bool { return true }

// sent waits for the next completion of a posted operation, which must succeed.
func (s *side) sent(op Op) WC {
	s.t.Helper()
	fit := anyWC
	if !s.Can(InOrder) {
		fit = func(wc WC) bool { return wc.Op == op || wc.Status != OK }
	}
	wc := s.next(&s.sends, "no "+op.String()+" has completed", fit)
	if wc.Status != OK || wc.Op != op {
		s.t.Fatalf("end %s: completion %v of operation %d, %v; want %v, success", s.name, wc.Op, wc.ID, wc.Status, op)
	}
	return wc
}

// received waits for the next receive, which must succeed.
func (s *side) received(op Op) WC {
	s.t.Helper()
	wc := s.next(&s.recvs, "nothing was received", anyWC)
	if wc.Status != OK || wc.Op != op {
		s.t.Fatalf("end %s: completion %v of receive %d, %v; want %v, success", s.name, wc.Op, wc.ID, wc.Status, op)
	}
	return wc
}

// message waits for the next receive, which must be of a Send of n bytes.
func (s *side) message(n int) WC {
	s.t.Helper()
	wc := s.received(OpRecv)
	if wc.Len != n {
		s.t.Fatalf("end %s: received %d bytes, want %d", s.name, wc.Len, n)
	}
	return wc
}

// wantSolicited checks whether a receive is marked as solicited.
func (s *side) wantSolicited(wc WC, want bool) {
	s.t.Helper()
	if s.Can(ReportsSolicited) && wc.Solicited != want {
		s.t.Errorf("end %s: receive %d is solicited: %v, want %v", s.name, wc.ID, wc.Solicited, want)
	}
}

// wantInvalidated checks which STag a receive reports as invalidated.
func (s *side) wantInvalidated(wc WC, stag uint32) {
	s.t.Helper()
	if s.Can(ReportsInvalidated) && wc.Invalidated != stag {
		s.t.Errorf("end %s: receive %d invalidated %#x, want %#x", s.name, wc.ID, wc.Invalidated, stag)
	}
}

// ending waits for the end of the stream and takes all completions.
func (s *side) ending() End {
	s.t.Helper()
	if s.end == nil {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		e, err := s.Endpoint.End(ctx)
		s.check("wait for the stream's end", err)
		s.end = &e
	}
	for !s.drained {
		s.drained = !s.take()
	}
	return *s.end
}

// wantEnd waits for an end that must have come in one of these ways.
func (s *side) wantEnd(ways ...How) {
	s.t.Helper()
	got := s.ending()
	if !s.Can(ReportsEnd) {
		return
	}
	for _, w := range ways {
		if got.How == w {
			return
		}
	}
	s.t.Errorf("end %s: the stream ended %v, want: %v", s.name, got, ways)
}

// settled ends the side's part of a case: everything that was posted must have
// completed, and memory must hold what it should and nothing else.
func (s *side) settled() {
	s.t.Helper()
	s.ending()
	for _, wr := range s.recvs.waiting {
		if !s.Can(FlushesReceives) {
			break
		}
		s.t.Errorf("end %s: receive %d never completed", s.name, wr.ID)
	}
	for _, wr := range s.sends.waiting {
		if !wr.silent() || s.sends.failed && s.Can(InOrder) {
			s.t.Errorf("end %s: %v %d never completed", s.name, wr.Op, wr.ID)
		}
	}
	for _, b := range s.bufs {
		b.check()
	}
}
