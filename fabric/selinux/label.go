package selinux

import (
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OwnLabel returns the label of this process. It fails where /proc is not there or the kernel tells
// none.
func (m Mount) OwnLabel() (string, error) {
	const file = "/proc/self/attr/current"
	b, err := os.ReadFile(file)
	if err == nil && text(b) == "" {
		err = fmt.Errorf("%s is empty", file)
	}
	if err != nil {
		return "", fmt.Errorf("read the label of this process: %w", err)
	}
	return text(b), nil
}

// PeerLabel returns the label that the process at the other end of a Unix stream socket had
// when it connected. It fails where the socket is closed or the kernel tells none.
func (m Mount) PeerLabel(c *net.UnixConn) (label string, err error) {
	raw, err := c.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) { label, err = peerSec(fd) })
		if cerr != nil {
			err = cerr
		}
	}
	if err != nil {
		return "", fmt.Errorf("read the label of the process at the other end of %v: %w", c.LocalAddr(), err)
	}
	return label, nil
}

// peerSec reads SO_PEERSEC, whose length unix.GetsockoptString bounds to less than that of a
// context with many categories.
func peerSec(fd uintptr) (string, error) {
	b := make([]byte, maxLabel)
	n := uint32(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERSEC,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	switch {
	case errno != 0:
		return "", os.NewSyscallError("getsockopt SO_PEERSEC", errno)
	case int(n) > len(b) || text(b[:n]) == "":
		return "", fmt.Errorf("getsockopt SO_PEERSEC: the kernel tells a label of %d bytes", n)
	}
	return text(b[:n]), nil
}
