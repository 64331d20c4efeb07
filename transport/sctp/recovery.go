package sctp

// recovery finds out what is lost, and bounds what is done about it (RFC 9260 section
// 7.2.4). That section counts SACKs that report a TSN as missing, and does so once for
// each TSN. Here one SACK may stand for many packets, so the packets are counted (as RFC
// 9002 section 6.1.1 does), and what was sent again and gets lost again is found in the
// same way, without a timeout.
type recovery struct {
	packets uint32 // number of the last packet that was begun
	top     uint32 // the highest number of a packet that has arrived, as far as known

	fast bool   // Fast Recovery: the window was reduced for what is lost
	exit uint32 // ... up to this TSN
	once bool   // one packet of a Fast Retransmit may exceed the window
	solo bool   // after a timeout: one packet in flight until something is acknowledged

	front int // losses of the first outstanding chunk, sent again and not answered
}

// arrived notes that the peer has got a packet.
func (r *recovery) arrived(packet uint32) {
	if before(r.top, packet) {
		r.top = packet
	}
}

// overtaken tells whether a packet is lost: one that left three packets later, or more,
// has arrived.
func (r *recovery) overtaken(packet uint32) bool { return int32(r.top-packet) >= 3 }

// enter enters Fast Recovery. It is false where that was done for the same loss. exit is
// the highest TSN outstanding.
func (r *recovery) enter(exit uint32) bool {
	if r.fast {
		return false
	}
	r.fast, r.exit = true, exit
	return true
}

// leave leaves Fast Recovery when all is acknowledged that was outstanding then (rule 6).
func (r *recovery) leave(cum uint32) {
	if r.fast && !before(cum, r.exit) {
		r.fast = false
	}
}
