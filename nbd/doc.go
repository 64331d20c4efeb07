// Package nbd is a server of the NBD protocol: it offers disks to the Linux
// kernel's nbd driver, QEMU, libnbd, fio and other clients of this machine,
// usually on a Unix socket (ListenUnix).
//
// A disk is anything that implements block.Device. The server speaks the fixed
// newstyle handshake, simple and structured replies, extended headers, and the
// metadata context base:allocation; it has requests of a client under way side
// by side and answers them in the order in which they complete. A read of
// zeroes is answered by a hole where the client understands that. An error of
// the device is the result of one request and never ends a connection. There is
// no TLS: on anything but a Unix socket or loopback the caller has to protect
// the connection.
//
// The protocol is described in doc/proto.md of the NetworkBlockDevice project, extended
// headers in that of its branch extension-ext-header; comments cite sections by name.
package nbd
