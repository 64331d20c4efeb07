//go:build weakened

package rtrs

import (
	"cmp"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/verbs"
)

func (r *Request) revoke() error {
	if r.path.trusting || !checks.On(checks.RevokeFirst) {
		return nil
	}
	return r.mr.Invalidate()
}

func closeWindow(mr *verbs.MR) error {
	if !checks.On(checks.RevokeFirst) {
		return nil
	}
	return mr.Invalidate()
}

func divert(mr *verbs.MR) {
	if !checks.On(checks.Diversion) {
		return
	}
	mr.Divert()
}

func (p *Permit) window() int {
	if !checks.On(checks.ExactWindow) {
		return p.cl.maxIO
	}
	return int(p.n)
}

func (p *permitPool) shareSizeLocked() int {
	if n := len(p.shares); n > 1 && checks.On(checks.DiskShare) {
		return max(1, p.total/(2*n))
	}
	return 0
}

func (cl *Client) orderLocked() {
	if !checks.On(checks.PostingOrder) {
		return
	}
	slices.SortFunc(cl.parked, func(a, b *Permit) int { return cmp.Compare(a.seq, b.seq) })
}

func (cl *Client) unparkLocked() *Permit {
	if !checks.On(checks.PostingOrder) {
		last := len(cl.parked) - 1
		p := cl.parked[last]
		cl.parked = cl.parked[:last]
		return p
	}
	p := cl.parked[0]
	cl.parked = slices.Delete(cl.parked, 0, 1)
	return p
}

func (s *slot) repeatedWriteLocked(r *Request) (verdict, syscall.Errno) {
	if !checks.On(checks.AtMostOnce) {
		return verdictExecute, 0
	}
	if s.state == slotExecuting {
		return s.waitLocked(r)
	}
	return verdictAnswer, s.errno
}

func (s *slot) lateRequestLocked() (verdict, syscall.Errno) {
	if !checks.On(checks.AtMostOnce) {
		return verdictExecute, 0
	}
	return verdictAnswer, syscall.ESTALE
}
