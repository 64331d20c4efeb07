package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/nbd"
)

// maxUnixPath is the longest path of a Unix socket in bytes (sun_path without
// its zero byte).
const maxUnixPath = 107

// listenUnix listens at a Unix socket of mode 0600, whose directory it creates.
// Close removes the file.
func listenUnix(ctx context.Context, path string) (*net.UnixListener, error) {
	if len(path) > maxUnixPath {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the socket path %s has %d bytes, a Unix socket has at most %d", path, len(path), maxUnixPath),
			Fix: "choose a shorter runtime_dir in the configuration"}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	l, err := nbd.ListenUnix(ctx, path, 0o600)
	if errors.Is(err, nbd.ErrSocketInUse) {
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("another program listens at %s", path), Fix: "find it with `ss -xlp`, and stop it"}
	}
	return l, err
}
