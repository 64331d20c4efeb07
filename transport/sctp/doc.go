// Package sctp is an SCTP endpoint (RFC 9260) encapsulated in UDP (RFC 6951),
// for hosts whose kernel has no SCTP. It has what DDP needs of SCTP (RFC 5043)
// and that in whole: unordered messages of one DATA chunk each, sent without
// fragmentation, and all of the association's machinery below them: the
// four-way handshake with a State Cookie that keeps no state, Verification Tags,
// selective acknowledgement, retransmission, congestion control, heartbeats,
// restart, shutdown and abort.
//
// What it leaves out: several addresses per association (an Endpoint is one UDP
// socket), sending of ordered and of fragmented messages, and extensions that
// change what is on the wire. A peer's ordered messages and fragments are handed
// over chunk by chunk as they come, with their flags, for the user to judge.
//
// # What is here of RFC 9260 and its extensions
//
//   - Sections 3 and 6.8, wire*.go: all chunks, parameters and causes; unknown ones
//     by their high bits.
//   - Sections 5.1 to 5.4, associate.go, demux.go, cookie.go: the handshake, with
//     a cookie that is signed and keeps no state, collisions, restart, stale
//     cookies. A host name is refused (5.1.2).
//   - Section 6.1, transmit.go: congestion and receive windows, probes of a closed
//     one, bundling.
//   - Sections 6.2 and 6.7, received.go, input.go: SACKs with gaps and duplicates.
//     One that is due for no more than a few packets waits for the user's answer or
//     for SACK.Delay.
//   - Section 6.3, path.go, sendqueue.go: RTO and T3-rtx.
//   - Sections 6.4, 6.5, 6.9: one address for each end, streams as they were
//     negotiated; nothing is fragmented but, where the path's MTU has shrunk, by IP.
//   - Section 7.2, congestion.go: slow start and congestion avoidance, behind a seam
//     that another controller fits; recovery.go, sack.go: Fast Retransmit and Fast
//     Recovery. Losses are found by packets that left later instead of counting SACKs,
//     so that lost retransmissions are found, too, and one probe of the tail (kick.go)
//     precedes a timeout.
//   - Section 7.3 and RFC 8899, pmtu.go: discovery of the path's MTU.
//   - Section 8, tcb.go, transmit.go, demux.go: heartbeats, failure of path and
//     peer, out-of-the-blue packets, Verification Tags.
//   - Section 9, shutdown.go: shutdown and abort with causes.
//   - RFC 6951, socket.go, demux.go: the encapsulation; a peer's UDP port may change
//     (5.4).
//   - RFC 5061 section 4.2.6: the Adaptation Layer Indication. RFC 7053: the I bit.
//     RFC 4820: padding, in probes.
//
// # Layers
//
// The codec (wire*.go, cookie.go) has neither I/O nor state. The Transmission
// Control Block (tcb.go and those with its methods) is the association's state machine: it takes packets
// and the time and gives packets; it never looks at a clock or a socket.
// Endpoint finds the association of a packet, answers those that have none, and
// moves batches of packets between the associations and the socket.
//
// # Protection
//
// The owner of the UDP socket says by Config.Admit with which addresses packets
// are exchanged at all; nothing is answered or sent to others.
package sctp
