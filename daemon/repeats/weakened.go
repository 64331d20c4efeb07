//go:build weakened

package repeats

import "github.com/ironwarp/ironwarp/internal/checks"

func isWorthALine(before, after uint64) bool {
	return passesMark(before, after) || !checks.On(checks.LogRepeats)
}
