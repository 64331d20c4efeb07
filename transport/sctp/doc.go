// Package sctp is an SCTP endpoint (RFC 9260) encapsulated in UDP (RFC 6951), for hosts
// whose kernel has no SCTP. It implements what DDP needs of SCTP (RFC 5043), completely:
// unordered messages of one DATA chunk each, sent without fragmentation, on top of the
// four-way handshake with a stateless State Cookie, Verification Tags, selective
// acknowledgement, retransmission, congestion control, heartbeats, restart, shutdown and
// abort.
//
// It omits several addresses per association (an Endpoint is one UDP socket), sending
// ordered or fragmented messages, and extensions that change the wire format. A peer's
// ordered messages and fragments are passed on chunk by chunk as they arrive, with their
// flags, for the user to judge.
//
// # RFC 9260 and its extensions
//
//   - Sections 3 and 6.8, wire*.go: all chunks, parameters and causes; unknown ones are
//     handled by their high bits.
//   - Sections 5.1 to 5.4, associate.go, demux.go, cookie.go: the handshake with a
//     signed, stateless cookie, collisions, restart, stale cookies. A host name is
//     refused (5.1.2).
//   - Section 6.1, transmit.go: congestion and receive windows, zero window probes,
//     bundling.
//   - Sections 6.2 and 6.7, received.go, input.go: SACKs with gaps and duplicates. A SACK
//     for no more than a few packets waits for the user's answer or for SACK.Delay.
//   - Section 6.3, path.go, sendqueue.go: RTO and T3-rtx.
//   - Sections 6.4, 6.5, 6.9: one address for each end, streams as negotiated, no
//     fragmentation except by IP after the path's MTU has shrunk.
//   - Section 7.2, congestion.go: slow start and congestion avoidance, behind a seam for
//     other controllers; recovery.go, sack.go: Fast Retransmit and Fast Recovery. Losses
//     are found by packets that were sent later instead of by counting SACKs, so that
//     lost retransmissions are found, too, and one tail loss probe (kick.go) precedes a
//     timeout.
//   - Section 7.3 and RFC 8899, pmtu.go: path MTU discovery.
//   - Section 8, tcb.go, transmit.go, demux.go: heartbeats, failure of the path and the
//     peer, out-of-the-blue packets, Verification Tags.
//   - Section 9, shutdown.go: shutdown and abort with causes.
//   - RFC 6951, socket.go, demux.go: the encapsulation; a peer's UDP port may change
//     (5.4), unless the association has a socket of its own (own.go).
//   - RFC 5061 section 4.2.6: the Adaptation Layer Indication. RFC 7053: the I bit.
//     RFC 4820: padding, in probes.
//
// # Layers
//
// The codec (wire*.go, cookie.go) has neither I/O nor state. The Transmission Control
// Block (tcb.go and the files with its methods) is the association's state machine: it
// takes packets and the time and returns packets, and never uses a clock or a socket.
// Endpoint finds the association of a packet, answers packets that have none, and moves
// batches of packets between associations and the socket.
//
// # Protection
//
// The owner of the UDP socket decides in Config.Admit with which addresses packets are
// exchanged at all; others get no answer.
package sctp
