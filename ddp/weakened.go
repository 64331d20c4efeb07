//go:build weakened

package ddp

import "github.com/ironwarp/ironwarp/internal/checks"

func isDue(ahead int) bool { return ahead == 0 || !checks.On(checks.SegmentOrder) }
