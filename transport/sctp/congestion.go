package sctp

import "time"

// window is how much may be in flight on a path, in bytes of DATA chunks with headers and
// padding (RFC 9260 section 7.2). A controller adjusts it.
type window struct {
	pmdcs          int // Path Maximum DATA Chunk Size
	cwnd, ssthresh int
}

// controller is the congestion control algorithm: that of RFC 9260 section 7.2, or
// another (RFC 9438, for instance). It has neither a clock nor I/O, and does not track
// what is in flight or lost. It is told of SACKs and losses, never of packets.
type controller interface {
	// acked handles a SACK that acknowledges something new, outside Fast Recovery.
	acked(w *window, p progress)
	// lost handles a loss found without a timeout, once for each Fast Recovery.
	lost(w *window)
	// timedOut handles an expiry of T3-rtx.
	timedOut(w *window)
	// idle is called if nothing was sent for an RTO.
	idle(w *window)
}

// progress is what a SACK reports to a controller.
type progress struct {
	now          time.Duration
	rtt          time.Duration // smoothed, 0 if unknown
	n            int           // newly acknowledged bytes
	flight, left int           // outstanding bytes before the SACK, and now
}

// initial sets the window of a new association (RFC 9260 section 7.2.1).
func (w *window) initial(pmdcs int, v6 bool) {
	*w = window{pmdcs: pmdcs, cwnd: initialWindow(pmdcs, v6), ssthresh: 1 << 30}
}

// resize follows a change of the path's MTU. If solo, only one packet may be in flight.
func (w *window) resize(pmdcs int, v6, solo bool) {
	w.pmdcs = pmdcs
	w.cwnd = max(w.cwnd, initialWindow(pmdcs, v6))
	if solo {
		w.cwnd = pmdcs
	}
}

func initialWindow(pmdcs int, v6 bool) int {
	least := 4404
	if v6 {
		least = 4344
	}
	return min(4*pmdcs, max(2*pmdcs, least))
}

// standard is the controller of RFC 9260 section 7.2.
type standard struct {
	partial int // partial_bytes_acked
}

func newStandard() controller { return new(standard) }

// acked is slow start (section 7.2.1) and congestion avoidance (section 7.2.2).
func (c *standard) acked(w *window, p progress) {
	switch full := p.flight >= w.cwnd; {
	case w.cwnd <= w.ssthresh:
		if full {
			w.cwnd += min(p.n, slowStartL*w.pmdcs)
		}
	default:
		c.partial += p.n
		if c.partial >= w.cwnd {
			if full {
				c.partial -= w.cwnd
				w.cwnd += w.pmdcs
			}
			c.partial = min(c.partial, w.cwnd)
		}
	}
	if p.left == 0 {
		c.partial = 0
	}
}

// lost halves the window (sections 7.2.3 and 7.2.4).
func (c *standard) lost(w *window) {
	w.ssthresh = max(w.cwnd/2, 4*w.pmdcs)
	w.cwnd = w.ssthresh
	c.partial = 0
}

// timedOut leaves one packet (section 7.2.3).
func (c *standard) timedOut(w *window) {
	c.lost(w)
	w.cwnd = w.pmdcs
}

// idle shrinks the window of a path that has not been used (section 7.2.1).
func (c *standard) idle(w *window) {
	w.ssthresh = max(w.ssthresh, w.cwnd)
	w.cwnd = min(w.cwnd, max(w.cwnd/2, 4*w.pmdcs))
}
