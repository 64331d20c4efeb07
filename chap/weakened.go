//go:build weakened

package chap

import (
	"crypto/subtle"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func isReflected(theirs, ours []byte) bool {
	return subtle.ConstantTimeCompare(theirs, ours) == 1 && checks.On(checks.Reflection)
}
