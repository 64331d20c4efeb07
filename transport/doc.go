// Package transport dials and accepts what carries RDMA: TCP connections and
// SCTP associations, of the kernel or in UDP. None of them carries a byte before
// a Protector has vouched for it.
//
// A Flow (protocol, local and remote address and port) is the unit of
// protection. Dial, Listen, DialSCTP and ListenSCTP take a Protector in their
// Config and there is no way around it: without one they fail. ipsec.Manager is
// the Protector for networks; LoopbackOnly serves connections within one host;
// Plaintext is for labs; PerPeer chooses among them by the peer's address.
//
// An association of the kernel's SCTP may have several addresses at each end.
// Each of its paths is a flow of its own, and it has no address beside them.
package transport
