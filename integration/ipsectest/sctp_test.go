package ipsectest

import (
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
)

// TestPhase2DeleteLeavesAssociationsUp is TestPhase2DeleteLeavesTheStreamUp for
// SCTP (RFC 5042 5.4.5).
func TestPhase2DeleteLeavesAssociationsUp(t *testing.T) {
	for _, k := range associations {
		for _, v := range versions {
			t.Run(k.name+" "+v.name, func(t *testing.T) {
				row(t, k.name+", "+v.name+": the child is deleted by either side or both, busy, idle, during a rekey and during set-up; the association goes on")
				deleteMatrix(t, newPairOf(t, k.kind, lab.Config{}), v.name, v.profile())
			})
		}
	}
}
