// Package oversctp has tests of whole RDMA streams over SCTP between two hosts of
// a lab: the conformance suite over either carrier, the kernel's SCTP and the SCTP
// in UDP that IronWarp brings, on a good wire and on bad ones.
//
// What needs the kernel's SCTP or a wire that netem impairs runs in the virtual
// machine of make interop.
package oversctp
