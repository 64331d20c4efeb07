package conformance_test

import (
	"fmt"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

// The author of a lower layer runs the suite over it in a test. This one is the
// in-memory LLP with segments of at most 200 bytes.
func Example() {
	test := func(t *testing.T) {
		connect := conformance.OverLLP(t, func(t testing.TB) (a, b ddp.LLP) {
			a, b = iwarptest.Pair(iwarptest.Options{MULPDU: 200})
			return a, b
		})
		conformance.Run(t, connect, conformance.Cases())
	}
	_ = test // func TestConformance(t *testing.T) { ... }
}

// What a case proves stands beside it.
func ExampleCases() {
	for _, c := range conformance.Cases() {
		if c.Name == "fenced write waits for the read" {
			fmt.Printf("%s: %s; needs of the end that acts: %v\n", c.Name, c.RFC, c.A)
		}
	}
	// Output: fenced write waits for the read: RFC 5040 section 5.5 rule 12; needs of the end that acts: Fence
}
