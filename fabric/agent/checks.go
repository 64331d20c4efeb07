//go:build !weakened

package agent

import "github.com/ironwarp/ironwarp/fabric/mad"

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// Identity first: a manager by IKE's identity, whatever key others have.
func isManager(from Requester) bool { return from.Manager }

// IBTA 14.2.4.1: a port without an M_Key takes any; else a Set, a TrapRepress and, from level 2 on, a Get
// need the port's. A Get shows it to who has it, and to all at level 0.
func matches(port, request mad.Key) bool         { return port == 0 || port.Equal(request) }
func getNeedsKey(protect uint8) bool             { return protect >= 2 }
func showsKey(protect uint8, matching bool) bool { return matching || protect == 0 }

// A manager puts a host into partitions that its configuration has.
func withinConfiguration(pkey, allowed uint16) bool { return pkeyWithin(pkey, allowed) }
