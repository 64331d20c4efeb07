package ksctp

import "net/netip"

// AskAddrs asks the kernel for the addresses of an association.
func (a *Assoc) AskAddrs() (local, peer []netip.AddrPort, err error) { return addrsOf(a.conn) }

// Looks is how many times in a row an association was looked at with something queued
// and nothing acknowledged.
func (a *Assoc) Looks() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stuck.checks
}

// RunOut lets the time of Config.DeadAfter be over. It returns false if that does not run.
func (a *Assoc) RunOut() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.deadTimer != nil {
		a.deadTimer.Reset(0)
	}
	return a.deadTimer != nil
}
