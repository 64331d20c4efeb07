package sctp

// recovery detects losses and bounds the reaction to them (RFC 9260 section 7.2.4). That
// section counts SACKs that report a TSN as missing, once for each TSN. Here one SACK may
// stand for many packets, so packets are counted (as in RFC 9002 section 6.1.1), and
// retransmissions that are lost again are found in the same way, without a timeout.
type recovery struct {
	packets uint32 // number of the last packet begun
	top     uint32 // the highest number of a packet known to have arrived

	fast bool   // in Fast Recovery: the window was reduced for losses
	exit uint32 // ... until this TSN is acknowledged
	once bool   // one packet of a Fast Retransmit may exceed the window
	solo bool   // after a timeout: one packet in flight until something is acknowledged

	front int // losses of the first outstanding chunk, resent and not acknowledged
}

// arrived records that the peer has received a packet.
func (r *recovery) arrived(packet uint32) {
	if before(r.top, packet) {
		r.top = packet
	}
}

// overtaken reports whether a packet is lost: one that was sent at least three packets
// later has arrived.
func (r *recovery) overtaken(packet uint32) bool { return int32(r.top-packet) >= 3 }

// enter enters Fast Recovery. It returns false if that was already done for the same
// loss. exit is the highest outstanding TSN.
func (r *recovery) enter(exit uint32) bool {
	if r.fast {
		return false
	}
	r.fast, r.exit = true, exit
	return true
}

// leave leaves Fast Recovery when everything that was outstanding then is acknowledged
// (rule 6).
func (r *recovery) leave(cum uint32) {
	if r.fast && !before(cum, r.exit) {
		r.fast = false
	}
}
