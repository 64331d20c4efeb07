// Package mpa is Marker PDU Aligned framing for TCP (RFC 5044) with enhanced
// connection establishment (RFC 6581): it turns a byte stream into the
// lower layer of DDP.
//
// Client and Server run the start-up on any net.Conn, at any point of its
// stream, as crypto/tls does; afterwards Conn implements ddp.LLP. Connections
// with a file descriptor (TCP, Unix, transport.Conn) are served with vectored,
// non-blocking system calls; others (net.Pipe) work, more slowly.
package mpa
