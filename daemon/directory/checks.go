//go:build !weakened

package directory

import "github.com/ironwarp/ironwarp/fabric/mad"

// ofItself reports whether a notice is one that a host may send: of a path of its own, or of its agent.
func ofItself(n *mad.Notice, host mad.GUID) bool { return isOfItself(n, host) }
