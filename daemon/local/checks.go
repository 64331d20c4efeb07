//go:build !weakened

package local

import (
	"context"
	"errors"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R2, RFC 5042 section 3: a ULP's part of what the daemon does is bounded.
func (g *Gate) boundsDials() bool { return g.dials != nil }

// Take waits for the turn of who, a ULP of a name, at a peer. It fails with an *api.Error of
// CodeInUse where it has its turn already, and with ctx's error.
func (t *Turns) Take(ctx context.Context, peer string, who any, name string) (release func(), err error) {
	return t.take(ctx, peer, who, name)
}

// R33: requests to manage the host come by a Unix socket.
func remote(fail func(error) (User, error)) (User, error) {
	return fail(errors.New("it is no Unix socket"))
}
