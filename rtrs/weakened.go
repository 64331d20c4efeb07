//go:build weakened

package rtrs

import (
	"cmp"
	"slices"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func (r *Request) revoke() error {
	if r.sess.trusting || !checks.On(checks.RevokeFirst) {
		return nil
	}
	return r.mr.Invalidate()
}

func (p *Permit) closeWindow() error {
	if p.dir != Read || p.n == 0 || !checks.On(checks.RevokeFirst) {
		return nil
	}
	return p.mr.Invalidate()
}

func (p *Permit) window() int {
	if !checks.On(checks.ExactWindow) {
		return len(p.buf)
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
