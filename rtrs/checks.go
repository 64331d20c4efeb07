//go:build !weakened

package rtrs

import (
	"cmp"
	"slices"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R13, RFC 5042 section 6.2.2: a peer's access ends before anybody looks at what it wrote: the
// client's to a request, unless it is trusted, and the server's to the buffer of a read.
func (r *Request) revoke() error {
	if r.sess.trusting {
		return nil
	}
	return r.mr.Invalidate()
}

func (p *Permit) closeWindow() error {
	if p.dir != Read || p.n == 0 {
		return nil
	}
	return p.mr.Invalidate()
}

// R16, section 6.3.4: a read opens as much of the buffer as is read.
func (p *Permit) window() int { return int(p.n) }

// DiskShare: half of the permits is kept for those who have a share, in equal parts.
func (p *permitPool) partLocked() int {
	if n := len(p.shares); n > 1 {
		return max(1, p.total/(2*n))
	}
	return 0
}

// PostingOrder: what is sent again goes in the order of its posting.
func (cl *Client) orderLocked() {
	slices.SortFunc(cl.parked, func(a, b *Permit) int { return cmp.Compare(a.seq, b.seq) })
}

func (cl *Client) unparkLocked() *Permit {
	p := cl.parked[0]
	cl.parked = slices.Delete(cl.parked, 0, 1)
	return p
}
