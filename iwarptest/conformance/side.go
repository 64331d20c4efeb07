package conformance

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"
)

// patience bounds each wait of the suite. Nothing waits that long but what has
// failed.
const patience = 60 * time.Second

// side is one end as the cases use it. It holds each completion against what
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

// status is how an operation ended whose completion no case has asked for.
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
func (s *side) recv(sgl ...SGE) uint64 {
	s.t.Helper()
	s.id++
	s.recvs.waiting = append(s.recvs.waiting, WR{ID: s.id, Op: OpRecv})
	s.check("post a receive", s.PostRecv(s.id, sgl))
	return s.id
}

// recvNothing posts n receives without memory.
func (s *side) recvNothing(n int) {
	s.t.Helper()
	for range n {
		s.recv()
	}
}

// take waits for one completion and files it; false: the stream is over and
// there are no more.
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
	if !q.accept(wc) {
		s.t.Fatalf("end %s: completion %+v out of turn; operations that wait: %v; receives: %v", s.name, wc, ids(s.sends.waiting), ids(s.recvs.waiting))
	}
	if q.failed && wc.Status == OK {
		s.t.Errorf("end %s: completion %+v succeeds behind one that failed", s.name, wc)
	}
	q.failed = q.failed || wc.Status != OK
	q.done = append(q.done, wc)
	return true
}

// accept takes what wc ends off the queue. Unsignaled operations that succeed
// have no completion.
func (p *posted) accept(wc WC) bool {
	for i, wr := range p.waiting {
		if wr.ID == wc.ID {
			if wr.Op != OpRecv && wr.Flags&Signaled == 0 && wc.Status == OK {
				return false
			}
			p.waiting = p.waiting[i+1:]
			return true
		}
		if wr.Op == OpRecv || wr.Flags&Signaled != 0 {
			return false
		}
	}
	return false
}

func ids(wrs []WR) []uint64 {
	var out []uint64
	for _, wr := range wrs {
		out = append(out, wr.ID)
	}
	return out
}

// next is the next completion of a queue, which must come.
func (s *side) next(q *posted, what string) WC {
	s.t.Helper()
	for len(q.done) == 0 {
		if !s.take() {
			s.t.Fatalf("end %s: the stream is over, %s", s.name, what)
		}
	}
	wc := q.done[0]
	q.done = q.done[1:]
	return wc
}

// sent waits for the next completion of a posted operation, which must succeed.
func (s *side) sent(op Op) WC {
	s.t.Helper()
	wc := s.next(&s.sends, "no "+op.String()+" has completed")
	if wc.Status != OK || wc.Op != op {
		s.t.Fatalf("end %s: completion %v of operation %d, %v; want %v, success", s.name, wc.Op, wc.ID, wc.Status, op)
	}
	return wc
}

// received waits for the next receive, which must succeed.
func (s *side) received(op Op) WC {
	s.t.Helper()
	wc := s.next(&s.recvs, "nothing was received")
	if wc.Status != OK || wc.Op != op {
		s.t.Fatalf("end %s: completion %v of receive %d, %v; want %v, success", s.name, wc.Op, wc.ID, wc.Status, op)
	}
	return wc
}

// message waits for the next receive, which must be of n bytes.
func (s *side) message(n int) WC {
	s.t.Helper()
	wc := s.received(OpRecv)
	if wc.Len != n {
		s.t.Fatalf("end %s: received %d bytes, want %d", s.name, wc.Len, n)
	}
	return wc
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
	if !s.Can(TellsEnd) {
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
		s.t.Errorf("end %s: receive %d never completed", s.name, wr.ID)
	}
	for _, wr := range s.sends.waiting {
		if wr.Flags&Signaled != 0 || s.sends.failed {
			s.t.Errorf("end %s: %v %d never completed", s.name, wr.Op, wr.ID)
		}
	}
	for _, b := range s.bufs {
		b.check()
	}
}
