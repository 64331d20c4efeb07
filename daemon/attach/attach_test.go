package attach

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
)

// stranger is a peer of an identity, which notes that somebody wants to reach it.
type stranger struct {
	ctx      context.Context
	identity transport.Identity
	dialled  *[]transport.Identity
}

var errAway = errors.New("it is away")

func (p stranger) Declared() config.Peer        { return config.Peer{Name: "beta"} }
func (p stranger) Identity() transport.Identity { return p.identity }
func (p stranger) Lifetime() context.Context    { return p.ctx }
func (p stranger) Unreachable(err error) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
}

func (p stranger) TryCarriers(context.Context, func() error) error {
	*p.dialled = append(*p.dialled, p.identity)
	return errAway
}

// The name of a peer is given to another host while a disk is being attached from it: the disk would be one of that host, and
// written down as one of the first.
func TestDiskIsAttachedFromThePeerThatWasThereWhenItWasAskedFor(t *testing.T) {
	a, _ := newAttacher(t)
	var dialled []transport.Identity
	now, next := stranger{t.Context(), "first.example", &dialled}, stranger{t.Context(), "second.example", &dialled}
	a.cfg.Peer = func(string) (Peer, error) {
		p := now
		now = next
		return p, nil
	}
	attach := func() error {
		_, err := a.Attach(t.Context(), a.cfg.Users.AsRoot(), api.AttachRequest{Peer: "beta", Export: "disk"}, func(api.Event) {})
		return err
	}
	if err, ok := attach().(*api.Error); !ok || err.Code != api.CodeUnavailable || len(dialled) > 0 {
		t.Errorf("it was asked for of first.example, and is attached from %v: %v", dialled, err)
	}
	if err := attach(); err == nil || !slices.Equal(dialled, []transport.Identity{"second.example"}) {
		t.Errorf("the next time it is attached from %v: %v", dialled, err)
	}
}
