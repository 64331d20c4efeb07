package oversctp

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
)

var kinds = []transport.Kind{transport.SCTP, transport.SCTPUDP}

// Everything that RDMAP promises holds over either carrier, and over IPv4 and IPv6.
func TestConformance(t *testing.T) {
	for _, kind := range kinds {
		for _, v6 := range []bool{false, true} {
			family, cases := "IPv4", conformance.Without(conformance.Cases(), conformance.SharedReceives)
			if v6 {
				family, cases = "IPv6", conformance.Core()
			}
			t.Run(fmt.Sprintf("%v %s", kind, family), func(t *testing.T) {
				row(t, "the conformance suite, %s at both ends, %s", title(kind), family)
				h := newHosts(t, kind, v6)
				conformance.Run(t, h.connect(t), cases)
			})
		}
	}
}

func title(kind transport.Kind) string {
	if kind == transport.SCTP {
		return "the kernel's SCTP"
	}
	return "SCTP in UDP of our own"
}

// The cases that depend on how segments travel, on wires that lose, reorder,
// duplicate and delay packets.
func TestConformanceOnBadWires(t *testing.T) {
	for _, kind := range kinds {
		for _, wire := range []struct {
			name  string
			netem []string
		}{
			{"2 % loss", []string{"loss", "2%"}},
			{"reordering of 25 %", []string{"delay", "2ms", "reorder", "75%"}},
			{"duplication of 20 %", []string{"duplicate", "20%"}},
			{"a delay of 5 to 15 ms", []string{"delay", "10ms", "5ms"}},
			{"all of that and corruption", []string{"delay", "1ms", "1ms", "loss", "1%", "duplicate", "5%", "corrupt", "1%"}},
		} {
			t.Run(fmt.Sprintf("%v %s", kind, wire.name), func(t *testing.T) {
				t.Parallel() // most of the time is spent waiting for retransmissions
				row(t, "its cases about segments, %s at both ends, %s", title(kind), wire.name)
				h := newHosts(t, kind, false)
				h.impair(t, wire.netem...)
				conformance.Run(t, h.connect(t), conformance.Core())
			})
		}
	}
}

// The control of the bad wires: netem really loses packets; otherwise the rows would be
// those of a good wire.
func TestImpairedWireLosesPackets(t *testing.T) {
	h := newHosts(t, transport.SCTPUDP, false)
	ln, err := h.beta.Listen(t.Context(), netip.AddrPortFrom(h.beta.Addr(), port))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	reaches := func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		c, err := h.alpha.Dial(ctx, netip.AddrPortFrom(h.beta.Addr(), port))
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	if !reaches() {
		t.Fatal("a good wire carries nothing")
	}
	h.impair(t, "loss", "100%")
	if reaches() {
		t.Error("a wire that is to lose everything carries a connection")
	}
}
