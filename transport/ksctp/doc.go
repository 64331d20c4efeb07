// Package ksctp implements assoc.Association with the kernel's SCTP (RFC 9260, by the
// socket API of RFC 6458), as DDP needs it (RFC 5043): the Adaptation Layer Indication
// sent and required, unordered messages of one DATA chunk each, no fragmentation, several
// addresses at each end.
//
// Sockets are one-to-one, one per association, non-blocking and on Go's poller.
// github.com/ishidawataru/sctp provides constants, and addresses as bindx and connectx
// take them. Its connections are not used: they block, lose MSG_EOR and pass
// notifications on as data. Nor are its socket options: they give the kernel pointers
// into stacks that may move before the kernel writes there. The kernel owns the protocol:
// handshake, retransmission, congestion control, heartbeats. This package moves messages
// to and from it in batches, turns its notifications into events, and makes up for what
// it cannot do: messages that may not be refused, and those behind a Barrier, wait here.
//
// # Protection
//
// An association that Dial or Accept returns is established, and nothing that the peer
// sends is looked at until Start. In between its owner judges it by all addresses of both
// ends, as LocalAddrs and PeerAddrs return them. No address is ever added afterwards (RFC
// 5061 is off), and a socket without a configured address binds to the one that routes to
// the peer instead of to all of the host.
//
// # Differences from package sctp
//
// The kernel joins fragments itself, so that a peer that breaks RFC 5043 section 9 shows
// only when a fragment is late. It sends an ABORT without the user's reason, which it
// accepts only on one-to-many sockets. It resends by its timers alone: Kick makes it
// probe the paths, and LimitRTO keeps those timers short. After a restart by the peer
// (RFC 9260 section 5.2) it does not report the peer's new indication: the association
// ends and the peer must dial again.
package ksctp
