//go:build weakened

package blocklist

import (
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/rate"
)

func (b *peerIntake) mayCreate(l rate.Limit, now time.Time) bool {
	return b.bucket.Take(l, now) || !checks.On(checks.StreamRate)
}
