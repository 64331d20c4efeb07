//go:build weakened

package pad

import "github.com/ironwarp/ironwarp/internal/checks"

func otherLabel(want, have string) bool { return want != have && checks.On(checks.LabelOfSA) }
