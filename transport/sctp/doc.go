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
// # Layers
//
// The codec (wire*.go, cookie.go) has neither I/O nor state. The Transmission
// Control Block (tcb*.go) is the association's state machine: it takes packets
// and the time and gives packets; it never looks at a clock or a socket.
// Endpoint finds the association of a packet, answers those that have none, and
// moves batches of packets between the associations and the socket.
//
// # Protection
//
// The owner of the UDP socket says by Config.Admit with which addresses packets
// are exchanged at all; nothing is answered or sent to others.
package sctp
