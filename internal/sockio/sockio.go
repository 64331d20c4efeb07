package sockio

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// ErrWouldBlock is returned by Reader.TryReadv when there is nothing to read
// at the moment.
var ErrWouldBlock = errors.New("sockio: nothing to read yet")

// rawConn returns the access to c's file descriptor, or nil when it has none.
func rawConn(c net.Conn) syscall.RawConn {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	return rc
}

// opError wraps a failed system call as package net does, so that callers find net.Error,
// os.SyscallError and the errno in it.
func opError(c net.Conn, op, call string, errno syscall.Errno) error {
	e := &net.OpError{Op: op, Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: os.NewSyscallError(call, errno)}
	if e.Addr != nil {
		e.Net = e.Addr.Network()
	}
	return e
}
