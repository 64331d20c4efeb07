package delegate

import (
	"math"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

const (
	// reportEvery is how often a program looks at its associations for what is new, and
	// pausedEvery while one of them has no SA: the daemon waits for data to bring that up.
	reportEvery = time.Second
	pausedEvery = 100 * time.Millisecond
	// silenceDrift is by how much what a daemon assumes of a silence may be wrong.
	silenceDrift = 2 * time.Second
	// maxReports of a message.
	maxReports = 24
)

// association is what Admit needs of a flow of SCTP in UDP; a *transport.Assoc is one.
type association interface {
	transport.Monitored
	Kick() (stuck bool)
	LimitRTO(rtoMax time.Duration)
	Stats() assoc.Stats
	Abort(reason string)
	AbortPacket() []byte
}

// reporter is what was reported of an association. Its user has a lock.
type reporter struct {
	last report
	at   time.Time // zero: nothing, to the daemon that there is now
}

// next returns what is to be reported at a time, if anything is.
func (r *reporter) next(now time.Time, id uint64, a association) (report, bool) {
	n, err := a.Outq()
	if err != nil {
		return report{}, false // it has ended
	}
	s := a.Stats()
	out := s.BytesOut - min(s.BytesOut, uint64(n))
	is := report{ID: id, Outq: uint32(min(max(n, 0), math.MaxInt32)), In: s.BytesIn, Out: out, Silent: milliseconds(s.Silent), Idle: milliseconds(s.Idle), Unanswered: uint16(min(max(s.Unanswered, 0), 1<<15))}
	assumed := time.Duration(r.last.Silent)*time.Millisecond + now.Sub(r.at)
	same := is
	same.Silent, same.Idle = r.last.Silent, r.last.Idle
	if !r.at.IsZero() && same == r.last && (assumed-s.Silent).Abs() < silenceDrift {
		return report{}, false
	}
	r.last, r.at = is, now
	return is, true
}

func milliseconds(d time.Duration) uint32 { return uint32(min(max(d.Milliseconds(), 0), 1<<31)) }

// report tells the daemon of associations, as long as there is a Client.
func (c *Client) report() {
	timer := time.NewTimer(reportEvery)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.wake:
		case <-c.ctx.Done():
			return
		}
		timer.Reset(c.reportAll())
	}
}

// reportAll reports what is new, and returns when to look again.
func (c *Client) reportAll() time.Duration {
	every := reportEvery
	now := time.Now()
	c.mu.Lock()
	l := c.link
	var news []report
	for id, p := range c.flows {
		if p.assoc == nil {
			continue
		}
		if p.Paused() {
			every = pausedEvery
		}
		if l == nil {
			continue
		}
		if r, ok := p.reporter.next(now, id, p.assoc); ok {
			news = append(news, r)
		}
	}
	c.mu.Unlock()
	for len(news) > 0 {
		n := min(len(news), maxReports)
		if l.send(&message{Op: opReport, Reports: news[:n]}, -1) != nil {
			break // the next daemon is told everything
		}
		news = news[n:]
	}
	return every
}

// lookNow has the associations looked at soon.
func (c *Client) lookNow() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// direct does what the daemon asks about an association.
func (p *protection) direct(do *lane) {
	limit := time.Duration(min(max(do.LimitMS, 0), time.Hour.Milliseconds())) * time.Millisecond
	if p.limit.Swap(int64(limit)) != int64(limit) {
		p.assoc.LimitRTO(limit)
		p.c.lookNow()
	}
	if do.Kick {
		p.assoc.Kick()
	}
}
