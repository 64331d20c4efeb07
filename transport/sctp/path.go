package sctp

import "time"

// path is a destination transport address: its round-trip time and congestion
// window (RFC 9260 sections 6.3 and 7). Sizes are in bytes and count DATA chunks
// with their headers and padding.
type path struct {
	pmdcs int // Path Maximum DATA Chunk Size

	srtt, rttvar, rto time.Duration
	measured          bool
	least             time.Duration // of all measurements

	cwnd, ssthresh int
	flight         int // bytes outstanding
	partial        int // partial_bytes_acked
	recovering     bool
	exit           uint32 // Fast Recovery exit point

	errors int  // since the peer was last heard of on it
	down   bool // RFC 9260 section 8.2
}

// reset brings the path into the state of a new association (RFC 9260 section
// 7.2.1).
func (p *path) reset(pmdcs int, v6 bool, rto time.Duration) {
	*p = path{
		pmdcs:    pmdcs,
		rto:      rto,
		cwnd:     initialWindow(pmdcs, v6),
		ssthresh: 1 << 30,
	}
}

func initialWindow(pmdcs int, v6 bool) int {
	least := 4404
	if v6 {
		least = 4344
	}
	return min(4*pmdcs, max(2*pmdcs, least))
}

// rtt takes a measurement (RFC 9260 section 6.3.1, C2 to C7).
func (p *path) rtt(r time.Duration, least, most time.Duration) {
	if !p.measured {
		p.srtt, p.rttvar, p.measured, p.least = r, r/2, true, r
	} else {
		d := p.srtt - r
		if d < 0 {
			d = -d
		}
		p.rttvar = (3*p.rttvar + d) / 4
		p.srtt = (7*p.srtt + r) / 8
		p.least = min(p.least, r)
	}
	p.calm(least, most)
}

// calm sets the RTO to what was measured (C3).
func (p *path) calm(least, most time.Duration) {
	if p.measured {
		p.rto = min(max(p.srtt+4*max(p.rttvar, clockGranularity), least), most)
	}
}

// backOff doubles the RTO (E2).
func (p *path) backOff(most time.Duration) { p.rto = min(2*p.rto, most) }

// acked adjusts the window to a SACK that newly acknowledges n bytes, before
// which flight bytes were outstanding (RFC 9260 sections 7.2.1 and 7.2.2).
func (p *path) acked(n, flight int) {
	if n == 0 {
		return
	}
	switch full := flight >= p.cwnd; {
	case p.recovering:
	case p.cwnd <= p.ssthresh:
		if full {
			p.cwnd += min(n, slowStartL*p.pmdcs)
		}
	default:
		p.partial += n
		if p.partial >= p.cwnd {
			if full {
				p.partial -= p.cwnd
				p.cwnd += p.pmdcs
			}
			p.partial = min(p.partial, p.cwnd)
		}
	}
	if p.flight == 0 {
		p.partial = 0
	}
}

// fastRetransmit halves the window unless that was done for the same loss
// (RFC 9260 sections 7.2.3 and 7.2.4). exit is the highest TSN outstanding.
func (p *path) fastRetransmit(exit uint32) {
	if p.recovering {
		return
	}
	p.recovering, p.exit = true, exit
	p.ssthresh = max(p.cwnd/2, 4*p.pmdcs)
	p.cwnd = p.ssthresh
	p.partial = 0
}

// timedOut is what T3-rtx does to the window (RFC 9260 section 7.2.3).
func (p *path) timedOut() {
	p.ssthresh = max(p.cwnd/2, 4*p.pmdcs)
	p.cwnd = p.pmdcs
	p.partial = 0
	p.recovering = false
}

// idle shrinks the window of a path that has not been used for an RTO (RFC 9260
// section 7.2.1).
func (p *path) idle() {
	p.ssthresh = max(p.ssthresh, p.cwnd)
	p.cwnd = min(p.cwnd, max(p.cwnd/2, 4*p.pmdcs))
}
