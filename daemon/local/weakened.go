//go:build weakened

package local

import (
	"context"
	"errors"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func (l *Consumers) unknownUser() (Caller, bool) {
	if !checks.On(checks.LocalUser) {
		return l.AsRoot(), true
	}
	return Caller{}, false
}

func opensAll(u User) bool { return u.IsRoot() || !checks.On(checks.LocalSocket) }
func (who Caller) mayUse(peer string) bool {
	return who.Privileged || who.Declared().MayUse(peer) || !checks.On(checks.LocalPeer)
}
func (who Caller) mayAttach(p, e string) bool {
	return who.Privileged || who.Declared().MayAttach(p, e) || !checks.On(checks.LocalPeer)
}

// Sees is the product's, with a switch.
func (who Caller) Sees(owner *Consumer) bool {
	return who.Privileged || owner == who.Consumer || !checks.On(checks.LocalOwner)
}

func (g *Gate) boundsDials() bool { return g.dials != nil && checks.On(checks.LocalShare) }

// Without shares all have one gate.
func (l *Consumers) gateFor(who Caller) *Gate {
	if !checks.On(checks.LocalShare) {
		return l.Root.Gate
	}
	return who.Gate
}

// MayHave is the product's, with a switch.
func (who Caller) MayHave(disks int) bool {
	return who.Name == "" || disks < who.Declared().Attachments || !checks.On(checks.LocalShare)
}

// GateOf is the product's, with a switch.
func (l *Consumers) GateOf(u User) *Gate {
	who, ok := l.Identify(u)
	if !ok && checks.On(checks.LocalShare) {
		return l.UnknownUsers
	}
	return l.gateFor(who)
}

// Take is the product's, with a switch, and fails as that does.
func (t *Turns) Take(ctx context.Context, peer string, who any, name string) (release func(), err error) {
	if !checks.On(checks.LocalShare) {
		return func() {}, nil
	}
	return t.takeTurn(ctx, peer, who, name)
}

func refuseRemote(fail func(error) (User, error)) (User, error) {
	if !checks.On(checks.Management) {
		return User{}, nil
	}
	return fail(errors.New("it is no Unix socket"))
}
