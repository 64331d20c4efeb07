package conformance_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/mpa"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	conformance.Run(t, conformance.OverLLP(t, func(testing.TB) (a, b ddp.LLP) {
		a, b = iwarptest.Pair(iwarptest.Options{})
		return a, b
	}), conformance.Cases())
}

func TestMPA(t *testing.T) {
	conformance.Run(t, conformance.OverMPA(t, netip.MustParseAddr("127.0.0.1"), mpa.Config{}, mpa.Config{}), conformance.Cases())
}
