package ipsectest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// listedSPIs are those of the children that charon has, in and out.
func listedSPIs(t *testing.T, h *host) []string {
	t.Helper()
	sas, err := h.m.SAs(t.Context())
	if err != nil {
		return nil
	}
	var all []string
	for _, sa := range sas {
		for _, c := range sa.Children {
			all = append(all, "0x"+c.SPIIn, "0x"+c.SPIOut)
		}
	}
	slices.Sort(all)
	return all
}

func kernelSPIs(t *testing.T, h *host) []string {
	t.Helper()
	var all []string
	for _, s := range espStates(t, h.Host) {
		all = append(all, s.spi)
	}
	slices.Sort(all)
	return all
}

// TestKernelESPCarriesOnWithoutCharonAndKeepsNoOrphans kills charon under a stream: the
// kernel has its states and goes on. A new charon does not know these states, so they
// must not stay.
func TestKernelESPCarriesOnWithoutCharonAndKeepsNoOrphans(t *testing.T) {
	for _, mode := range []profile.Mode{profile.Tunnel, profile.Transport} {
		t.Run(mode.String(), func(t *testing.T) {
			row(t, fmt.Sprintf("SIGKILL of charon on both hosts, %v mode: the kernel carries on without, and no orphaned SA is left when charon is back", mode))
			p := kernelPair(t)
			wire := capture(t, p.beta)
			p.addPeersWith(t, func(c *pad.Peer) {
				c.Profile = profile.Default()
				c.Profile.Mode = mode
			})
			p.beta.echo(t, nil)
			k := talk(p.alpha.mustDial(t, p.beta))
			k.moves(t, 50)
			var before []string
			for _, h := range []*host{p.alpha, p.beta} {
				before = append(before, kernelSPIs(t, h)...)
				h.KillCharon()
				k.moves(t, 50)
			}
			for _, h := range []*host{p.alpha, p.beta} {
				if err := h.StartCharon(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			p.awaitCharon(t)
			for _, h := range []*host{p.alpha, p.beta} {
				name := p.other(h).Name()
				eventually(t, h.Name()+" has the SA anew", func() bool { return installed(t, h, name+"-out")+installed(t, h, name+"-in") > 0 })
			}
			k.moves(t, 100)
			for _, h := range []*host{p.alpha, p.beta} {
				var have, want []string
				ok := func() bool {
					have, want = kernelSPIs(t, h), listedSPIs(t, h)
					return slices.Equal(have, want) && !slices.ContainsFunc(have, func(spi string) bool { return slices.Contains(before, spi) })
				}
				if !within(ok) {
					out, _ := h.Run(t.Context(), "ip", "xfrm", "state")
					t.Errorf("%s: the kernel has the SPIs %v, charon %v; before it was killed: %v\n%s", h.Name(), have, want, before, hideKeys(out))
				}
			}
			k.moves(t, 50)
			k.end(t)
			counts := counted(t, wire)
			detail(t, "on the wire %d packets in ESP, %d in clear", counts.ESP, counts.Clear(port))
			if counts.Clear(port) != 0 || counts.ESP == 0 {
				t.Errorf("on the wire: %v", counts)
			}
		})
	}
}

// within polls for a while until a condition holds.
func within(f func() bool) bool {
	deadline := time.After(2 * time.Minute)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			return false
		case <-tick.C:
		}
	}
	return true
}

// hideKeys removes the keys from ip-xfrm(8)'s output.
func hideKeys(out string) string {
	var b strings.Builder
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 0 && (f[0] == "aead" || strings.HasPrefix(f[0], "auth") || f[0] == "enc") {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}
