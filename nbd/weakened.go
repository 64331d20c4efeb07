//go:build weakened

package nbd

import (
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func (x *succession) endConn(c *conn) {
	if !checks.On(checks.Succession) {
		return
	}
	x.cutOff(c, false)
}

func (x *succession) abandonConn(c *conn) {
	if !checks.On(checks.Succession) {
		return
	}
	x.cutOff(c, true)
}

func clientDeadline() time.Time {
	if !checks.On(checks.ClientBytes) {
		return time.Time{}
	}
	return time.Now().Add(clientTime)
}
