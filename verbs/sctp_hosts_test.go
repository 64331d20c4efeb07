package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/transport"
)

// What needs the kernel's SCTP or a wire that netem impairs runs in the virtual machine of
// make interop.

var sctpKinds = []struct {
	transport.Kind
	title string
}{{transport.SCTP, "the kernel's SCTP"}, {transport.SCTPUDP, "SCTP in UDP of our own"}}

// row hands a result of the test to make interop, which writes docs/interop.md.
func row(t *testing.T, what string, args ...any) { t.Attr("row", fmt.Sprintf(what, args...)) }

// sctpHosts are two hosts without protection between them.
type sctpHosts struct {
	kind        transport.Kind
	alpha, beta *lab.Host
}

func newSCTPHosts(t *testing.T, kind transport.Kind) *sctpHosts {
	t.Helper()
	if kind == transport.SCTP {
		lab.RequireKernelSCTP(t)
	}
	l := lab.Start(t, lab.Config{NoCharon: true})
	return &sctpHosts{kind, l.Host("alpha"), l.Host("beta")}
}

// impair skips the test where there is no netem.
func (h *sctpHosts) impair(t *testing.T, netem ...string) {
	t.Helper()
	if err := h.beta.Impair(t.Context(), 0, netem...); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) && strings.Contains(err.Error(), "qdisc kind is unknown") {
			t.Skipf("make interop runs it in its virtual machine, whose kernel has netem; here: %v", err)
		}
		t.Fatal(err)
	}
}

// run dials from alpha to beta, each of whose only peer is the other one.
func (h *sctpHosts) run(t *testing.T, addr func(*lab.Host) netip.Addr, cases []conformance.Case) {
	t.Helper()
	config := func(of, peer *lab.Host) *transport.Config {
		return &transport.Config{Kind: h.kind, Local: addr(of), Protector: transport.Plaintext(slog.New(slog.DiscardHandler), addr(peer))}
	}
	at := netip.AddrPortFrom(addr(h.beta), sctpLocal.Port())
	conformance.Run(t, conformance.OverCarrier(t, at, config(h.alpha, h.beta), config(h.beta, h.alpha), conformance.Between(h.alpha.Do, h.beta.Do)), cases)
}

// Everything that RDMAP promises holds over either carrier, and over IPv4 and IPv6.
func TestConformanceOverSCTPBetweenHosts(t *testing.T) {
	for _, kind := range sctpKinds {
		t.Run(kind.String()+" IPv4", func(t *testing.T) {
			row(t, "the conformance suite, %s at both ends, IPv4", kind.title)
			newSCTPHosts(t, kind.Kind).run(t, (*lab.Host).Addr, conformance.Without(conformance.Cases(), conformance.SharedReceives))
		})
		t.Run(kind.String()+" IPv6", func(t *testing.T) {
			row(t, "the conformance suite, %s at both ends, IPv6", kind.title)
			newSCTPHosts(t, kind.Kind).run(t, (*lab.Host).Addr6, conformance.Core())
		})
	}
}

// The cases that depend on how segments travel, on wires that lose, reorder,
// duplicate and delay packets.
func TestConformanceOverSCTPOnBadWires(t *testing.T) {
	for _, kind := range sctpKinds {
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
			t.Run(kind.String()+" "+wire.name, func(t *testing.T) {
				t.Parallel() // most of the time is spent waiting for retransmissions
				row(t, "its cases about segments, %s at both ends, %s", kind.title, wire.name)
				h := newSCTPHosts(t, kind.Kind)
				h.impair(t, wire.netem...)
				h.run(t, (*lab.Host).Addr, conformance.Core())
			})
		}
	}
}

// The control of the bad wires: netem really loses packets; otherwise the rows would be
// those of a good wire.
func TestImpairedWireLosesPackets(t *testing.T) {
	h := newSCTPHosts(t, transport.SCTPUDP)
	at := netip.AddrPortFrom(h.beta.Addr(), sctpLocal.Port())
	ln, err := h.beta.Listen(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	reaches := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		c, err := h.alpha.Dial(ctx, at)
		if err == nil {
			c.Close()
		}
		return err == nil
	}
	if !reaches(time.Minute) {
		t.Fatal("a good wire carries nothing")
	}
	h.impair(t, "loss", "100%")
	if reaches(2 * time.Second) {
		t.Error("a wire that is to lose everything carries a connection")
	}
}
