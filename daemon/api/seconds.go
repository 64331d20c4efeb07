package api

import (
	"fmt"
	"math"
	"time"
)

// Seconds is the time of a request, def if it names none. It fails with an *Error of
// CodeInvalid if that is no time, or beyond limit.
func Seconds(s float64, def, limit time.Duration) (time.Duration, error) {
	switch {
	case s == 0:
		return def, nil
	case math.IsNaN(s) || s < 0 || s > limit.Seconds():
		return 0, &Error{Code: CodeInvalid, Message: fmt.Sprintf("a time of %g s is out of range; allowed: up to %v", s, limit)}
	}
	return time.Duration(s * float64(time.Second)), nil
}
