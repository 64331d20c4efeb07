// Package ksctp gives the kernel's SCTP (RFC 9260, by the socket API of RFC 6458)
// the face of an assoc.Association, as DDP needs it (RFC 5043): the Adaptation
// Layer Indication sent and demanded, unordered messages of one DATA chunk each,
// nothing fragmented, several addresses at each end.
//
// Sockets are one-to-one, one per association, non-blocking and on Go's poller.
// github.com/ishidawataru/sctp gives constants and addresses as bindx and connectx
// take them. Its connections are not used, since they block, lose MSG_EOR and hand
// notifications over as data; nor are its socket options, since it gives the kernel
// pointers into stacks that may move before the kernel writes there.
// The kernel owns the protocol: handshake, retransmission, congestion control,
// heartbeats. Here messages go to it and come from it in batches, its
// notifications become events, and what it cannot do is made up for: messages
// that may not be refused wait here, and a Barrier is one of them.
//
// # Protection
//
// An association that Dial or Accept returns is established, and nothing of what
// the peer sends is looked at until Start. Between the two its owner judges it:
// every address of both ends, as LocalAddrs and PeerAddrs give them, belongs to
// it. No address is ever added to it afterwards (RFC 5061 is off), and a
// socket that was given no address binds to the one that routes to the peer
// instead of to all the host has.
//
// # What the kernel does otherwise
//
// It joins fragments itself, so that a peer that breaks RFC 5043 section 9 shows
// only when a fragment is late. It sends an ABORT without the user's reason, which
// it takes on one-to-many sockets only. It resends by its timers alone: Kick makes
// it probe the paths, and Hurry is what keeps those timers short. After a restart by
// the peer (RFC 9260 section 5.2) it does not say what the peer now indicates: the
// association ends and the peer is to dial again.
package ksctp
