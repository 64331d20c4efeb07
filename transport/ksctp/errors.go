package ksctp

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrUnavailable reports that this host's kernel has no SCTP.
var ErrUnavailable = errors.New("the kernel has no SCTP")

// Available returns nil if the kernel has SCTP. Otherwise it fails with an error that
// matches ErrUnavailable and says what to do.
func Available() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	switch {
	case err == nil:
		unix.Close(fd)
		return nil
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.ESOCKTNOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%w (%w): load it with \"modprobe sctp\"; if there is no such module, install the one for this kernel (linux-modules-extra or kernel-modules-extra where distributions keep it apart), or use SCTP in UDP (sctp-udp)", ErrUnavailable, err)
	}
	return fmt.Errorf("open an SCTP socket: %w", err)
}
