//go:build !weakened

package probe

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R14, RFC 5042 section 6.3.2: memory is cleared before a peer may read it.
func zero(mem []byte) { clear(mem) }

// R16, section 6.3.4: a peer is given the region, and no byte of the messages behind it.
func exposedRegion(mem []byte) []byte { return mem[:RegionSize:RegionSize] }
