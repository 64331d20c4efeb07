package nbd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrSocketInUse means that a server listens on the Unix socket's path.
var ErrSocketInUse = errors.New("nbd: another program listens there")

// ListenUnix listens on a Unix socket at path whose permissions are mode from
// the first moment. A socket that a dead server left behind is replaced;
// anything else at path is an error. Closing the listener removes the socket. Clients pass no
// descriptors, where the kernel can refuse them (Linux 6.16).
func ListenUnix(ctx context.Context, path string, mode fs.FileMode) (*net.UnixListener, error) {
	fail := func(err error) error { return fmt.Errorf("listen on Unix socket %s: %w", path, err) }
	switch fi, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fail(err)
	case fi.Mode()&fs.ModeSocket == 0:
		return nil, fail(fmt.Errorf("%w, and it is not a socket; remove it or choose another path", fs.ErrExist))
	default:
		var d net.Dialer
		if nc, err := d.DialContext(ctx, "unix", path); err == nil {
			nc.Close()
			return nil, fail(ErrSocketInUse)
		} else if !errors.Is(err, unix.ECONNREFUSED) {
			return nil, fail(err)
		}
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fail(err)
		}
	}
	// bind gives the file the mode that the socket has.
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmod error
		err := c.Control(func(fd uintptr) {
			chmod = unix.Fchmod(int(fd), uint32(mode.Perm()))
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSRIGHTS, 0) // see sockio.PassRights
		})
		return errors.Join(err, chmod)
	}}
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fail(err)
	}
	return ln.(*net.UnixListener), nil
}
