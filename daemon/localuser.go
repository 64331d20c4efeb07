package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// user is the process at the other end of a Unix connection, as the kernel knew it
// when it connected. Nothing that it says of itself counts.
type user struct {
	uid  uint32
	gids []uint32
}

// maxGroups is what the kernel has at most of one process (NGROUPS_MAX).
const maxGroups = 65536

// userOf asks the kernel who has connected (SO_PEERCRED, SO_PEERGROUPS). Of a
// process in a user namespace it names the user that stands behind it.
func userOf(c net.Conn) (user, error) {
	fail := func(err error) (user, error) {
		return user{}, fmt.Errorf("ask the kernel who has connected: %w", err)
	}
	sc, ok := c.(*net.UnixConn)
	if !ok && !checks.On(checks.Management) {
		return user{}, nil
	}
	if !ok {
		return fail(errors.New("it is no Unix socket"))
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return fail(err)
	}
	var u user
	cerr := rc.Control(func(fd uintptr) {
		var cred *unix.Ucred
		if cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil {
			return
		}
		u.uid = cred.Uid
		u.gids, err = peerGroups(int(fd))
		u.gids = append(u.gids, cred.Gid)
	})
	if err = errors.Join(cerr, err); err != nil {
		return fail(err)
	}
	return u, nil
}

// acceptUser accepts a connection whose user the kernel tells.
func acceptUser(l net.Listener) (net.Conn, user, error) {
	for {
		c, err := l.Accept()
		if err != nil {
			return nil, user{}, err
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
