//go:build weakened

package delegate

import "github.com/ironwarp/ironwarp/internal/checks"

func isForeign(its, ours uint64) bool { return its != ours && checks.On(checks.ProgramSocket) }
func shutsDown() bool                 { return checks.On(checks.ProgramShut) }
