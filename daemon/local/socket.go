package local

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/nbd"
)

// MaxPath is the longest path of a Unix socket in bytes (sun_path without
// its zero byte).
const MaxPath = 107

// Listen listens at a Unix socket of mode 0600, whose directory it creates.
// Close removes the file. It fails with an *api.Error where the path is too long, or another
// program listens there.
func Listen(ctx context.Context, path string) (*net.UnixListener, error) {
	if len(path) > MaxPath {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the socket path %s has %d bytes, a Unix socket has at most %d", path, len(path), MaxPath),
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

// RestrictedListener is a Unix socket that only some users may connect to.
type RestrictedListener struct {
	*net.UnixListener
	may func(User) bool

	mu    sync.Mutex // guards the fields below it
	conns map[*client]User
}

// Restrict restricts a socket to the users for whom may is true.
func Restrict(l *net.UnixListener, may func(User) bool) *RestrictedListener {
	return &RestrictedListener{UnixListener: l, may: may, conns: map[*client]User{}}
}

// Accept waits for a user who may. It fails as the Listener below does.
func (s *RestrictedListener) Accept() (net.Conn, error) {
	for {
		c, u, err := acceptUser(s.UnixListener)
		if err != nil {
			return nil, err
		}
		if n, may := s.admit(c.(*net.UnixConn), u); may {
			return n, nil
		}
	}
}

// Admit takes a connection that another server has accepted. If its user may not connect, it is closed.
func (s *RestrictedListener) Admit(c net.Conn) (net.Conn, bool) {
	u, err := userOf(c)
	if err != nil {
		c.Close()
		return nil, false
	}
	return s.admit(c.(*net.UnixConn), u)
}

func (s *RestrictedListener) admit(c *net.UnixConn, u User) (net.Conn, bool) {
	n := &client{UnixConn: c, of: s}
	s.mu.Lock()
	may := s.may(u)
	if may {
		s.conns[n] = u
	}
	s.mu.Unlock()
	if !may {
		c.Close()
	}
	return n, may
}

// CloseForbidden ends the connections of users who may not any more.
func (s *RestrictedListener) CloseForbidden() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, u := range s.conns {
		if !s.may(u) {
			c.UnixConn.Close()
			delete(s.conns, c)
		}
	}
}

// client is a connection of a user who may.
type client struct {
	*net.UnixConn
	of *RestrictedListener
}

func (c *client) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.UnixConn.Close()
}
