package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/rdmap"
)

// SlowCounts counts how often the peer of a stream, without breaking a rule, has made
// the stream cost more than the data it moved justifies (RFC 5042 section 6.4.4).
type SlowCounts struct {
	Tiny       uint64 // segments with little payload that do not end their message
	Empty      uint64 // RDMA Writes of nothing
	EmptyReads uint64 // RDMA Reads of nothing
	OutOfOrder uint64 // times that segments came out of order; over SCTP
	Dribbled   uint64 // times that the connection brought a few bytes but no whole segment; over TCP
	Stalls     uint64 // times that the peer took none of what was to be sent
	Strays     uint64 // chunks of the stream's SCTP association that belong to no session
}

// Each yields the counts by name.
func (c SlowCounts) Each() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		_ = yield("tiny", c.Tiny) && yield("empty", c.Empty) && yield("empty reads", c.EmptyReads) &&
			yield("out of order", c.OutOfOrder) && yield("dribbled", c.Dribbled) && yield("stalls", c.Stalls) && yield("strays", c.Strays)
	}
}

// Charged is how many of them count against the stream's SlowPolicy: all but Stalls,
// which hold up nobody but the peer, and Strays, which count against the
// association's.
func (c SlowCounts) Charged() uint64 {
	return c.Tiny + c.Empty + c.EmptyReads + c.OutOfOrder + c.Dribbled
}

// SlowPolicy limits how often the peer of a stream may make it take a slow path, and
// send on an SCTP association what belongs to no session. The zero value ends no
// stream. Networks that lose, reorder or fragment packets make honest peers do that some
// hundred times a second.
type SlowPolicy struct {
	PerSecond int // in the long run, 0: without limit
	Burst     int // at once, 0: PerSecond
}

func (p *SlowPolicy) limit() rate.Limit {
	return rate.Limit{PerSecond: float64(p.PerSecond), Burst: float64(cmp.Or(p.Burst, p.PerSecond))}
}

// ErrSlowPath is in the reason of a stream whose peer made it take slow paths more
// often than the SlowPolicy permits.
var ErrSlowPath = errors.New("verbs: the peer drives slow paths more often than the policy permits")

// slowPath counts the slow paths of a stream and meters them.
type slowPath struct {
	counts [rdmap.SlowPaths]atomic.Uint64

	// Of the receiving goroutine.
	bucket rate.Bucket
	over   bool // the policy is exceeded
	ready  bool // a ready-to-receive message, which is empty, is still to come (RFC 6581 section 9.2)
}

// SetSlowPolicy changes how often peers may drive slow paths, including
// existing streams. It fails if a number is invalid.
func (d *Device) SetSlowPolicy(p SlowPolicy) error {
	if p.PerSecond < 0 || p.Burst < 0 || p.PerSecond == 0 && p.Burst > 0 {
		return fmt.Errorf("verbs: set the slow-path policy to %d per second and %d at once: neither can be negative, and a burst needs a rate", p.PerSecond, p.Burst)
	}
	d.slow.Store(&p)
	return nil
}

// SlowPath counts how often the peer has made the stream take slow paths.
func (qp *QP) SlowPath() SlowCounts {
	n := func(k rdmap.SlowPath) uint64 { return qp.slow.counts[k].Load() }
	c := SlowCounts{Tiny: n(rdmap.SlowTiny), Empty: n(rdmap.SlowEmpty), EmptyReads: n(rdmap.SlowRead), OutOfOrder: n(rdmap.SlowEarly), Dribbled: n(rdmap.SlowDribble)}
	if s := qp.stream.Load(); s != nil {
		c.Stalls = s.Stalls()
	}
	if s, ok := qp.link().(*session); ok {
		c.Strays = s.a.strays.n.Load()
	}
	return c
}

// strays counts and meters what an SCTP association receives that belongs to no session.
type strays struct {
	dev  *Device
	n    atomic.Uint64
	over atomic.Bool

	bucket rate.Bucket // of the goroutine that delivers
}

// take counts one more and reports whether the association may go on.
func (s *strays) take() bool {
	s.n.Add(1)
	p := s.dev.slow.Load()
	if p.allows(&s.bucket) {
		return true
	}
	s.over.Store(true)
	return false
}

// Slow implements rdmap.Upper.
func (u *upper) Slow(k rdmap.SlowPath) error {
	if u.slow.ready && (k == rdmap.SlowEmpty || k == rdmap.SlowRead) {
		u.slow.ready = false
		return nil
	}
	u.slow.counts[k].Add(1)
	p := u.pd.ulp.dev.slow.Load()
	if p.allows(&u.slow.bucket) {
		return nil
	}
	u.slow.over = true
	return ddp.Faultf(ddp.LayerRDMA, rdmap.TypeRemoteOperation, rdmap.CodeCatastrophicStream, nil,
		"%v, and the like, more than %d times a second", k, p.PerSecond)
}
