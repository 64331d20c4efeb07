//go:build weakened

package simulation

import "github.com/ironwarp/ironwarp/internal/checks"

func weaken(c checks.Check) { checks.SwitchOff(c) }
