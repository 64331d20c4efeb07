//go:build !weakened

package programs

import (
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R1, RFC 5042 section 3: a program has streams with the peers and at the ports of its user's ULP, and takes connections if
// that may.
func mayUsePort(who local.Caller, peer string, protocol transport.Protocol, port uint16) bool {
	return ownsPort(who, peer, protocol, port)
}
func mayListen(who local.Caller) bool { return listens(who) }

// P1: its label may use the partition of the port.
func mayUsePartition(may func(label, partition string) error, label, partition string) error {
	return may(label, partition)
}

// R19: what a program says of attempts at a stream does not speak against the peer: it may hand over one socket a thousand
// times, and would have the peer blocked for all others.
func believes(who local.Caller) bool { return who.Privileged }

// R1: its flows end when nobody vouches for them any more.
func endsWithSession() bool { return true }

// R2: what it has counts against its ULP and the peer.
func counts(*verbs.ULP) bool { return true }
