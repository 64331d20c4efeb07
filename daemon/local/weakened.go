//go:build weakened

package local

import (
	"context"
	"errors"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func (g *Gate) boundsDials() bool { return g.dials != nil && checks.On(checks.LocalShare) }

// Take is the product's, with a switch, and fails as that does.
func (t *Turns) Take(ctx context.Context, peer string, who any, name string) (release func(), err error) {
	if !checks.On(checks.LocalShare) {
		return func() {}, nil
	}
	return t.take(ctx, peer, who, name)
}

func remote(fail func(error) (User, error)) (User, error) {
	if !checks.On(checks.Management) {
		return User{}, nil
	}
	return fail(errors.New("it is no Unix socket"))
}
