package ipsectest

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
)

// kernelPair is a pair whose kernel does ESP; elsewhere the test is skipped.
func kernelPair(t *testing.T) *pair {
	t.Helper()
	requireKernelESP(t)
	return newPair(t, lab.Config{DataPlane: esp.Kernel})
}

func requireKernelESP(t *testing.T) {
	t.Helper()
	lab.Require(t)
	if err := esp.ProbeKernel(); err != nil {
		t.Skipf("make interop runs it in its virtual machine, whose kernel has ESP; here: %v", err)
	}
}

// row hands a result of the test to make interop, which writes docs/interop.md; detail
// adds a result that is more than yes or no.
func row(t *testing.T, what string) { t.Attr("row", what) }

func detail(t *testing.T, format string, args ...any) {
	t.Attr("detail", fmt.Sprintf(format, args...))
}

// addPeersWith gives both hosts the other as a peer, changed by f.
func (p *pair) addPeersWith(t *testing.T, f func(*pad.Peer)) {
	t.Helper()
	for _, h := range []*host{p.alpha, p.beta} {
		cfg := p.peerOf(h)
		f(&cfg)
		if err := h.m.AddPeer(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitCharon(t)
}

func (p *pair) removePeers(t *testing.T) {
	t.Helper()
	for _, h := range []*host{p.alpha, p.beta} {
		if err := h.m.RemovePeer(t.Context(), p.other(h).Name()); err != nil {
			t.Fatal(err)
		}
	}
}

// state is an ESP state of the kernel, as ip-xfrm(8) shows it.
type state struct {
	src, dst, spi, mode string
	esn                 bool
}

func espStates(t *testing.T, h *lab.Host) []state {
	t.Helper()
	out, err := h.Run(t.Context(), "ip", "xfrm", "state")
	if err != nil {
		t.Fatal(err)
	}
	// Without an SPI it is larval: charon was asked for an SA.
	return slices.DeleteFunc(parseStates(out), func(s state) bool { return s.spi == "0x00000000" })
}

func parseStates(out string) []state {
	var all []state
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		switch {
		case len(f) == 4 && f[0] == "src" && f[2] == "dst":
			all = append(all, state{src: f[1], dst: f[3]})
		case len(all) == 0 || len(f) < 2:
		case f[0] == "proto":
			s := &all[len(all)-1]
			for i := 0; i+1 < len(f); i++ {
				switch f[i] {
				case "spi":
					s.spi = f[i+1]
				case "mode":
					s.mode = f[i+1]
				}
			}
		case f[0] == "replay-window": // a large window has "anti-replay esn context" without ESN, too
			all[len(all)-1].esn = slices.Contains(f, "esn")
		}
	}
	return all
}

func TestKernelStatesAreRead(t *testing.T) {
	const out = "src 10.99.0.1 dst 10.99.0.2\n\tproto esp spi 0xcc3a6b48 reqid 1 mode transport\n\treplay-window 0 flag af-unspec esn\n" +
		"\taead rfc4106(gcm(aes)) 0x00 128\n\tanti-replay esn context:\n\t seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x2\n" +
		"src fd99::2 dst fd99::1\n\tproto esp spi 0xc1000000 reqid 2 mode tunnel\n\treplay-window 0 flag af-unspec\n" +
		"\tanti-replay esn context:\n\t seq-hi 0x0, seq 0x0, oseq-hi 0x0, oseq 0x0\n"
	got := fmt.Sprint(parseStates(out))
	if want := "[{10.99.0.1 10.99.0.2 0xcc3a6b48 transport true} {fd99::2 fd99::1 0xc1000000 tunnel false}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestKernelESPInEveryMode is also its own control: what it finds in the kernel changes
// with what was asked for.
func TestKernelESPInEveryMode(t *testing.T) {
	p := kernelPair(t)
	for _, tc := range []struct {
		mode    profile.Mode
		v6, esn bool
	}{
		{profile.Tunnel, false, true}, {profile.Transport, false, true},
		{profile.Tunnel, true, true}, {profile.Transport, true, true},
		{profile.Tunnel, false, false},
	} {
		family, esn := "IPv4", "ESN"
		if tc.v6 {
			family = "IPv6"
		}
		if !tc.esn {
			esn = "no ESN"
		}
		t.Run(fmt.Sprintf("%v %s %s", tc.mode, family, esn), func(t *testing.T) {
			row(t, fmt.Sprintf("%v mode, %s, %s: echoes while either side deletes the child", tc.mode, family, esn))
			p.alpha.v6, p.beta.v6 = tc.v6, tc.v6
			wire := capture(t, p.beta)
			p.addPeersWith(t, func(c *pad.Peer) {
				c.Profile = profile.Default()
				c.Profile.Mode, c.Profile.ESN = tc.mode, tc.esn
			})
			defer p.removePeers(t)
			p.beta.echo(t, nil)
			k := talk(p.alpha.mustDial(t, p.beta))
			k.moves(t, 50)
			for _, h := range []*host{p.alpha, p.beta} {
				states := espStates(t, h.Host)
				if len(states) != 2 {
					t.Errorf("%s has %d ESP states, want one in each direction: %v", h.Name(), len(states), states)
				}
				for _, s := range states {
					if s.mode != tc.mode.String() || s.esn != tc.esn {
						t.Errorf("%s: %+v, want mode %v and ESN %v", h.Name(), s, tc.mode, tc.esn)
					}
				}
			}
			for _, h := range []*host{p.alpha, p.beta} {
				deleteChild(t, h, p.other(h).Name())
				k.moves(t, 50)
			}
			gap := k.longest()
			k.end(t)
			counts := counted(t, wire)
			detail(t, "longest stall %d ms; on the wire %d packets in ESP, %d in clear", gap.Milliseconds(), counts.ESP, counts.Clear(port))
			if counts.Clear(port) != 0 || counts.ESP == 0 {
				t.Errorf("on the wire: %v", counts)
			}
		})
	}
}

// siwAgent is the program for siw's end, which make interop builds.
func siwAgent(t *testing.T) string {
	t.Helper()
	requireKernelESP(t)
	const skip = "it takes Linux' soft-iWARP: make interop runs it in its virtual machine"
	if _, err := os.Stat("/sys/module/siw"); err != nil {
		t.Skip(skip)
	}
	agent := os.Getenv("IRONWARP_SIW_AGENT")
	if agent == "" {
		t.Skip(skip + "; IRONWARP_SIW_AGENT is not set")
	}
	return agent
}
