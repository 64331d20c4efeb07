//go:build weakened

package directory

import "github.com/ironwarp/ironwarp/fabric/mad"

func ofItself(n *mad.Notice, host mad.GUID) bool { return isOfItself(n, host) }
