package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// maxUnixPath is the longest path of a Unix socket in bytes (sun_path without
// its zero byte).
const maxUnixPath = 107

// listenUnix listens at a Unix socket that has mode 0600 from the moment it
// exists. A socket file that a dead process has left is replaced; the caller
// holds the lock that proves it dead. Close removes the file.
func listenUnix(path string) (net.Listener, error) {
	if len(path) > maxUnixPath {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the socket path %s has %d bytes, a Unix socket has at most %d", path, len(path), maxUnixPath),
			Fix: "choose a shorter runtime_dir in the configuration"}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if st, err := os.Lstat(path); err == nil {
		if st.Mode()&fs.ModeSocket == 0 {
			return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("%s exists and is not a socket", path), Fix: "move it away"}
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	// A socket file gets the mode of its socket, so no one can connect in
	// between.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	return lc.Listen(context.Background(), "unix", path)
}

// peerUID is the user at the other end of a Unix connection.
func peerUID(c net.Conn) (uint32, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return 0, errors.New("not a socket")
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if cerr := rc.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		return 0, cerr
	}
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}
