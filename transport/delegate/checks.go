//go:build !weakened

package delegate

// R1, RFC 5042 section 3: a flow is of the network namespace whose SAs and guards the daemon knows.
func isForeign(its, ours uint64) bool { return its != ours }

// R1: an association that its program does not end is shut down.
func shutsDown() bool { return true }
