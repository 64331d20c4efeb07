// Package sockio does vectored socket I/O with few system calls and without
// allocating: a Writer that collects slices and sends them together, with a
// non-blocking and a blocking flush, and a Reader that holds no buffer while it
// waits for data.
//
// Both use the raw file descriptor of a connection that offers one
// (SyscallConn: TCP, Unix and transport.Conn), below its Read and Write
// methods; a type that embeds such a connection in order to alter its traffic
// must hide SyscallConn. Any other net.Conn (net.Pipe, crypto/tls) works with
// the same semantics, only slower. Mmsghdr and Source are for sockets of messages.
// Linux only.
package sockio
