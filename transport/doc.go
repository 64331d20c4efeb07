// Package transport dials and accepts the carriers of RDMA: TCP connections and SCTP
// associations, the kernel's or in UDP. None of them carries a byte before a Protector
// has vouched for it.
//
// A Flow (protocol, local and remote address and port) is the unit of protection. Dial,
// Listen, DialSCTP and ListenSCTP take a Protector in their Config and fail without one.
// ipsec.Manager is the Protector for networks; LoopbackOnly serves connections within one
// host; Plaintext is for labs; PerPeer chooses among them by the peer's address.
//
// An association of the kernel's SCTP may have several addresses at each end. Each of its
// paths is a separate flow, and it uses no other addresses.
package transport
