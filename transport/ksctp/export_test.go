package ksctp

import "net/netip"

// AskAddrs asks the kernel for the addresses of an association.
func (a *Assoc) AskAddrs() (local, peer []netip.AddrPort, err error) { return addrsOf(a.conn) }
