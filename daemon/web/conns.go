package web

import (
	"context"
	"net"
	"sync"
)

// conns bounds the connections of a listener, of which any user of the host can open as many as they like: one more than maxConns takes the
// place of the oldest whose client has not shown the token, so that whoever has it is not kept waiting by those that stay.
type conns struct {
	net.Listener

	mu   sync.Mutex // guards the fields below it, and conn.known
	last uint64
	all  map[*conn]bool
}

// conn is one of them.
type conn struct {
	net.Conn
	of     *conns
	number uint64 // in the order in which they came
	known  bool   // its client has shown the token
}

// connKey is of the context of a request, for its *conn.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// Accept fails as the listener does.
func (s *conns) Accept() (net.Conn, error) {
	for {
		raw, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: raw, of: s}
		out := s.admit(c)
		if out != nil {
			out.Close()
		}
		if out != c {
			return c, nil
		}
	}
}

// admit counts a connection, and returns the one that has to go for it, if any.
func (s *conns) admit(c *conn) (out *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) >= maxConns {
		for o := range s.all {
			if !o.known && (out == nil || o.number < out.number) {
				out = o
			}
		}
		if out == nil {
			return c
		}
		delete(s.all, out)
	}
	s.last++
	c.number = s.last
	s.all[c] = true
	return out
}

// know notes that the client of a request's connection has shown the token.
func know(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.of.mu.Lock()
		defer c.of.mu.Unlock()
		c.known = true
	}
}

// Close fails as the connection does.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.all, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
