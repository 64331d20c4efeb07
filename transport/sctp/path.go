package sctp

import "time"

// path is a destination transport address: its round-trip time, its congestion window
// and whether it works.
type path struct {
	roundTrip
	window
	control controller
	flight  int // bytes outstanding, as the window counts them

	errors int  // unanswered packets since the peer was last heard on it
	down   bool // RFC 9260 section 8.2
}

// roundTrip is the measured round-trip time (RFC 9260 section 6.3).
type roundTrip struct {
	srtt, rttvar, rto time.Duration
	measured          bool
	least             time.Duration // the least measurement

	timing  bool // TSN timed is being measured
	timed   uint32
	timedAt time.Duration
}

// reset puts the path into the state of a new association.
func (p *path) reset(pmdcs int, v6 bool, rto time.Duration, control controller) {
	*p = path{control: control}
	p.rto = rto
	p.window.initial(pmdcs, v6)
}

// rtt adds a measurement (RFC 9260 section 6.3.1, C2 to C7).
func (p *roundTrip) rtt(r time.Duration, least, most time.Duration) {
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
	p.setRTO(least, most)
}

// setRTO sets the RTO from the measurements (C3).
func (p *roundTrip) setRTO(least, most time.Duration) {
	if p.measured {
		p.rto = min(max(p.srtt+4*max(p.rttvar, clockGranularity), least), most)
	}
}

// backOff doubles the RTO (E2).
func (p *roundTrip) backOff(most time.Duration) { p.rto = min(2*p.rto, most) }
