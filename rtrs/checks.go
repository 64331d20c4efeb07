//go:build !weakened

package rtrs

import (
	"cmp"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/verbs"
)

// The checks of docs/security.md, one function each. weakened.go has the same with
// switches.

// R13, RFC 5042 section 6.2.2: a peer's access ends before anybody looks at what it wrote: the
// client's to a request, unless it is trusted, and the server's to the buffer of a read.
func (r *Request) revoke() error {
	if r.path.trusting {
		return nil
	}
	return r.mr.Invalidate()
}

func closeWindow(mr *verbs.MR) error { return mr.Invalidate() }

func divert(mr *verbs.MR) { mr.Divert() }

// R16, section 6.3.4: the window of a read is exactly as long as the read.
func (p *Permit) window() int { return int(p.n) }

// DiskShare: half of the permits is reserved for the shares, in equal parts.
func (p *permitPool) shareSizeLocked() int {
	if n := len(p.shares); n > 1 {
		return max(1, p.total/(2*n))
	}
	return 0
}

// PostingOrder: I/O is resent in the order of its posting.
func (cl *Client) orderLocked() {
	slices.SortFunc(cl.parked, func(a, b *Permit) int { return cmp.Compare(a.seq, b.seq) })
}

func (cl *Client) unparkLocked() *Permit {
	p := cl.parked[0]
	cl.parked = slices.Delete(cl.parked, 0, 1)
	return p
}

// AtMostOnce: a write that comes again is not executed again, nor one that comes late.
func (s *slot) repeatedWriteLocked(r *Request) (verdict, syscall.Errno) {
	if s.state == slotExecuting {
		return s.waitLocked(r)
	}
	return verdictAnswer, s.errno
}

func (s *slot) lateRequestLocked() (verdict, syscall.Errno) { return verdictAnswer, syscall.ESTALE }
