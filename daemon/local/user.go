// Package local identifies the users of this host who reach the daemon by Unix sockets, and
// gives each a share of them. The kernel reports who they are, and nothing that one uses keeps
// another out (RFC 5042 section 2.1.3).
package local

import (
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/fabric/selinux"
)

// User is the process at the other end of a Unix connection, as the kernel knew it
// when it connected. Nothing that it claims itself counts.
type User struct {
	UID  uint32
	GIDs []uint32
	PID  int32 // for messages: it may be another's by now
	// Label is the security label that SELinux gave it, "" where that is not active.
	Label string
}

// IsRoot reports whether it is root, or the user that the daemon runs as.
func (u User) IsRoot() bool { return u.UID == 0 || int(u.UID) == os.Geteuid() }

// maxGroups is what the kernel has at most of one process (NGROUPS_MAX).
const maxGroups = 65536

// userOf asks the kernel who has connected (SO_PEERCRED, SO_PEERGROUPS). For a
// process in a user namespace that is the user outside it.
func userOf(c net.Conn) (User, error) {
	fail := func(err error) (User, error) {
		return User{}, fmt.Errorf("ask the kernel who has connected: %w", err)
	}
	sc, ok := c.(*net.UnixConn)
	if !ok {
		return refuseRemote(fail)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return fail(err)
	}
	var u User
	cerr := rc.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		u.UID, u.PID = cred.Uid, cred.Pid
		u.GIDs, err = peerGroups(int(fd))
		u.GIDs = append(u.GIDs, cred.Gid)
	})
	if err = errors.Join(cerr, err); err != nil {
		return fail(err)
	}
	// Only where SELinux is active is what SO_PEERSEC has one of its labels.
	if mount, active := selinux.Active(); active {
		if u.Label, err = mount.PeerLabel(sc); err != nil {
			return fail(err)
		}
	}
	return u, nil
}

// acceptUser accepts a connection whose user the kernel reports.
func acceptUser(l net.Listener) (net.Conn, User, error) {
	for {
		c, err := l.Accept()
		if err != nil {
			return nil, User{}, err
		}
		u, err := userOf(c)
		if err == nil {
			return c, u, nil
		}
		c.Close() // it has gone already
	}
}

// peerGroups are the supplementary groups of whoever has connected.
func peerGroups(fd int) ([]uint32, error) {
	for n := 32; ; {
		gids := make([]uint32, n)
		size := uint32(4 * n)
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == 0 && int(size) <= 4*n:
			return gids[:size/4], nil
		case errno != unix.ERANGE || n == maxGroups:
			return nil, os.NewSyscallError("getsockopt", errno)
		}
		n = min(max(2*n, int(size/4)), maxGroups)
	}
}
