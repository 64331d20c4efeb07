// Package oversctp tests whole RDMA streams over SCTP between two hosts of a lab: it
// runs the conformance suite over the kernel's SCTP and over IronWarp's SCTP in UDP, on
// a good wire and on bad ones.
//
// What needs the kernel's SCTP or a wire that netem impairs runs in the virtual
// machine of make interop.
package oversctp
