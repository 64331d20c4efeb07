// Package probe measures a link: RDMA round trips and short benchmarks against
// a small service at the peer, which also answers which carriers the peer has for
// streams.
//
// # Protocol
//
// All numbers are big-endian. The private data of the request and of the
// answer:
//
//	request:  0 "IWpg" | 4 u8 version 1 | 5 u8 kind | 6 zero[2]
//	answer:   0 "IWpg" | 4 u8 version 1 | 5 u8 0 | 6 u16 window |
//	          8 u32 largest message in bytes | 12 u32 STag | 16 u32 length
//	refusal:  0 "IWpg" | 4 u8 version 1 | 5 u8 reason | 6 zero[2]
//	hello:    0 "IWpg" | 4 u8 version 1 | 5 u8 4 | 6 u8 carriers | 7 u8 0
//
// A request of kind 0 is for a measurement. One of kind 1 is a hello: it asks which
// carriers the peer has for the asking host, and is rejected with them: bit 0 for
// TCP, 1 for the kernel's SCTP, 2 for SCTP in UDP.
//
// STag and length are of a region that the client may read and write. The
// server keeps window receives posted. A message whose first byte is 'E' is
// sent back as it is; any other is counted, and after each quarter of the
// window the server sends 'A' and the count so far as u32. The client never has
// more than window messages that were neither echoed nor counted, so neither
// side runs out of receives.
package probe
