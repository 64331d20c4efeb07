// Package transport dials and accepts the byte streams that carry RDMA, and
// lets none of them carry a byte before a Protector has vouched for it.
//
// A Flow (protocol, local and remote address and port) is the unit of
// protection. Dial and Listen take a Protector in their Config and there is no
// way around it: without one they fail. ipsec.Manager is the Protector for
// networks; LoopbackOnly serves connections within one host; Plaintext is for
// labs; PerPeer chooses among them by the peer's address.
package transport
