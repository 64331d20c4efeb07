//go:build !weakened

package blocklist

import (
	"time"

	"github.com/ironwarp/ironwarp/internal/rate"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// R19, RFC 5042 section 6.4.1: a peer that keeps creating streams is blocked.
func (b *peerIntake) mayCreate(l rate.Limit, now time.Time) bool { return b.bucket.Take(l, now) }
