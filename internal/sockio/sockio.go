package sockio

import (
	"errors"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
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

// SetLowWater sets how many bytes have to be there before the kernel wakes who waits for the connection
// (SO_RCVLOWAT); the end of the stream does so, too. Reads that do not wait are not affected. It returns how many wait,
// of which it wakes at once if they are enough. On a connection without a file descriptor it does nothing; it fails on
// one that is closed, or is of no kind that counts in bytes.
func SetLowWater(c net.Conn, bytes int) (waiting int, err error) {
	raw := rawConn(c)
	if raw == nil {
		return 0, nil
	}
	cerr := raw.Control(func(fd uintptr) {
		if waiting, err = unix.IoctlGetInt(int(fd), unix.SIOCINQ); err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT, bytes)
		}
	})
	return waiting, errors.Join(cerr, err)
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
