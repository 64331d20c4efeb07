package ipsec

// InstallGuard puts the guard in place, before the first packet. It may be
// called again: policies that are there already stay as they are.
func InstallGuard(g GuardSpec) error { return errUnwritten }

// RemoveGuard takes a guard down. From then on the port's traffic may flow in
// clear. A guard that is not there is no error.
func RemoveGuard(g GuardSpec) error { return errUnwritten }

// ListGuard returns the guard policies of a network namespace ("": our own),
// whoever installed them.
func ListGuard(netns string) ([]GuardPolicy, error) { return nil, errUnwritten }

// GuardHoles checks guards that should be in place, and returns what is missing
// and what other settings of the host open a way around them.
func GuardHoles(specs ...GuardSpec) ([]Hole, error) { return nil, errUnwritten }

// XfrmStats reads the kernel's counters of packets dropped for IPsec's sake
// (/proc/net/xfrm_stat). XfrmOutPolBlock and XfrmInPolBlock count what the guard
// has stopped.
func XfrmStats(netns string) (map[string]uint64, error) { return nil, errUnwritten }
