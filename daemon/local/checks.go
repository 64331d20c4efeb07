//go:build !weakened

package local

import (
	"context"
	"errors"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R1, RFC 5042 section 3: who is neither root nor of a ULP is nobody. A ULP opens its own disks,
// uses the peers and exports that it may, and sees its own things only.
func (l *Consumers) unknownUser() (Caller, bool) { return Caller{}, false }
func opensAll(u User) bool                       { return u.IsRoot() }
func (who Caller) mayUse(peer string) bool       { return who.Privileged || who.Declared().MayUse(peer) }
func (who Caller) mayAttach(p, e string) bool {
	return who.Privileged || who.Declared().MayAttach(p, e)
}

// Sees reports whether a caller may see what a consumer has.
func (who Caller) Sees(owner *Consumer) bool { return who.Privileged || owner == who.Consumer }

// R2, section 3: a ULP's part of what the daemon does is bounded: it has a number of disks, and a
// gate of its own for its connections and requests.
func (g *Gate) boundsDials() bool { return g.dials != nil }

func (l *Consumers) gateFor(who Caller) *Gate { return who.Gate }

// MayHave reports whether a caller may have one disk more than so many.
func (who Caller) MayHave(disks int) bool {
	return who.Name == "" || disks < who.Declared().Attachments
}

// GateOf is the gate of a user's connections.
func (l *Consumers) GateOf(u User) *Gate {
	who, ok := l.Identify(u)
	if !ok {
		return l.UnknownUsers
	}
	return l.gateFor(who)
}

// Take waits for the turn of who, a ULP of a name, at a peer. It fails with an *api.Error of
// CodeInUse where it has its turn already, and with ctx's error.
func (t *Turns) Take(ctx context.Context, peer string, who any, name string) (release func(), err error) {
	return t.takeTurn(ctx, peer, who, name)
}

// R33: requests to manage the host come by a Unix socket.
func refuseRemote(fail func(error) (User, error)) (User, error) {
	return fail(errors.New("it is no Unix socket"))
}
