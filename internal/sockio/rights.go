package sockio

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// PassRights says whether who sends to a Unix socket, or to what a listener accepts from now
// on, may pass descriptors. One that nobody takes is closed in the receiver's read, or when the
// connection is closed, and that takes as long as its sender likes, by SO_LINGER for one. Linux
// has that choice from 6.16 on; before, everybody may.
func PassRights(c syscall.Conn, on bool) {
	v := 0
	if on {
		v = 1
	}
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, v) })
	}
}
