//go:build weakened

package directory

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/checks"
)

func ofItself(n *mad.Notice, host mad.GUID) bool {
	return isOfItself(n, host) || !checks.On(checks.NoticeOfItself)
}
