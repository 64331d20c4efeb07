package ipsectest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/ipsec/negotiation"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// A block of ports of these tests, and some of its ports.
const (
	blockFirst, blockMiddle, blockLast = 18432, 18500, 18943
	blockSize                          = 512
)

var (
	portsOfBlock   = []uint16{blockFirst, blockMiddle, blockLast}
	portsBeside    = []uint16{blockFirst - 1, blockLast + 1}
	programsOfHost = pad.Link{Protocol: transport.ProtoTCP, Port: blockFirst, Size: blockSize}
)

// blockSpec is the guard of the block.
func (h *host) blockSpec(o *host, plane esp.Plane) guard.Spec {
	return guard.Spec{NetNS: h.NetNS(), Remote: o.at(), Port: blockFirst, Size: blockSize, DataPlane: plane}
}

// TestBlockOfPortsIsStoppedInEveryDirection: connections in clear to and from some of its ports, out of a
// guarded host, into it, and forwarded by it; those of the ports beside it pass.
func TestBlockOfPortsIsStoppedInEveryDirection(t *testing.T) {
	for _, f := range families {
		for _, plane := range []esp.Plane{esp.Auto, esp.Kernel, esp.Userland} {
			t.Run(fmt.Sprintf("%s %v", f.name, plane), func(t *testing.T) {
				t.Parallel()
				l := lab.Start(t, lab.Config{Hosts: []string{"left", "router", "right"}, NoCharon: true})
				of := func(name string) *host { return &host{Host: l.Host(name), v6: f.v6} }
				left, router, right := of("left"), of("router"), of("right")
				sh(t, router.Host, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.wire0.send_redirects=0")
				for _, h := range []*host{left, right} {
					o := left
					if h == left {
						o = right
					}
					sh(t, h.Host, "sysctl -qw net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.wire0.accept_redirects=0 net.ipv6.conf.wire0.accept_redirects=0")
					sh(t, h.Host, fmt.Sprintf("ip route add %v via %v", netip.PrefixFrom(o.at(), o.at().BitLen()), router.at()))
				}
				for _, h := range []*host{left, router, right} {
					for _, port := range append(portsBeside, portsOfBlock...) {
						clearListener(t, h.Host, netip.AddrPortFrom(h.at(), port))
					}
				}
				ways := []struct {
					what     string
					from, to *host
				}{
					{"out", router, right}, {"in", right, router}, {"forwarded to the peer", left, right}, {"forwarded from the peer", right, left}, {"with another host", router, left},
				}
				try := func(guarded bool) {
					t.Helper()
					for _, w := range ways {
						stopped := guarded && w.what != "with another host"
						for _, port := range portsBeside {
							if err := tryClear(t, w.from.Host, netip.AddrPortFrom(w.to.at(), port), time.Minute); err != nil {
								t.Errorf("%s: port %d beside the block: %v", w.what, port, err)
							}
						}
						for _, port := range portsOfBlock {
							patient := time.Minute
							if stopped {
								patient = 200 * time.Millisecond
							}
							if err := tryClear(t, w.from.Host, netip.AddrPortFrom(w.to.at(), port), patient); (err != nil) != stopped {
								t.Errorf("%s: port %d: %v", w.what, port, err)
							}
						}
					}
				}
				try(false)
				spec := router.blockSpec(right, plane)
				if err := guard.Install(spec); err != nil {
					t.Fatal(err)
				}
				try(true)
				if err := guard.Probe(spec); err != nil {
					t.Error(err)
				}
				if err := guard.Remove(spec); err != nil {
					t.Fatal(err)
				}
				try(false)
			})
		}
	}
}

// blocks gives both hosts a block of ports for the other one.
func (p *pair) blocks(t *testing.T, alpha, beta pad.Link) {
	t.Helper()
	for _, h := range []*host{p.alpha, p.beta} {
		cfg := p.peerOf(h)
		cfg.Blocks = []pad.Link{alpha}
		if h == p.beta {
			cfg.Blocks = []pad.Link{beta}
		}
		if err := h.m.AddPeer(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	p.awaitCharon(t)
}

// echoAt serves echoes at a port, as a program would that the daemon vouches for.
func (h *host) echoAt(t *testing.T, port uint16, refused func(error)) {
	t.Helper()
	t.Cleanup(h.serveAt(t, port, refused))
}

func (h *host) dialAt(t *testing.T, to *host, port uint16, within time.Duration) (*transport.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var c *transport.Conn
	err := h.Do(func() (err error) {
		c, err = transport.Dial(ctx, netip.AddrPortFrom(to.at(), port), &transport.Config{Protector: h.m, Local: h.at()})
		return err
	})
	if err == nil {
		h.carry(c)
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

// carryBlock has streams at some ports of the block, dialled by either host, and returns what was on the wire.
func (p *pair) carryBlock(t *testing.T) lab.Counts {
	t.Helper()
	wire := capture(t, p.beta)
	for _, h := range []*host{p.alpha, p.beta} {
		o := p.other(h)
		for _, port := range portsOfBlock {
			o.echoAt(t, port, nil)
			c, err := h.dialAt(t, o, port, patience)
			if err != nil {
				t.Fatalf("%s to port %d of %s: %v", h.Name(), port, o.Name(), err)
			}
			if err := ping(c, "hello"); err != nil {
				t.Errorf("%s to port %d of %s: %v", h.Name(), port, o.Name(), err)
			}
			if pr := c.Protection(); pr.Peer() != transport.Identity(o.Name()) || pr.Paused() {
				t.Errorf("protection: peer %q, paused %v", pr.Peer(), pr.Paused())
			}
		}
		if n := installed(t, h, o.Name()+fmt.Sprintf("-out-tcp%d", blockFirst)); n != 1 {
			t.Errorf("%s has %d children for the block that it dials", h.Name(), n)
		}
	}
	return counted(t, wire)
}

func TestStreamsOfABlockOfPortsAreCarriedInESP(t *testing.T) {
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			row(t, "a block of ports, "+f.name+": streams at any of its ports, dialled by either host, are in one SA per direction, and nothing is in clear")
			p := newPair(t, lab.Config{})
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			p.blocks(t, programsOfHost, programsOfHost)
			k := p.carryBlock(t)
			for _, port := range append(portsBeside, portsOfBlock...) {
				if k.Clear(port) != 0 {
					t.Errorf("port %d in clear: %v", port, k)
				}
			}
			if k.ESP == 0 {
				t.Errorf("nothing in ESP: %v", k)
			}
			// A port beside the block has no SA, and is refused before it is dialled.
			if _, err := p.alpha.dialAt(t, p.beta, blockLast+1, patience); err == nil || !strings.Contains(err.Error(), "tcp ports 18432-18943") {
				t.Errorf("a port beside the block: %v", err)
			}
			// Whoever does not ask the Manager is stopped while the SA is up as well: it carries nothing from
			// elsewhere, and the port behind the block is nobody's business.
			for _, h := range []*host{p.alpha, p.beta} {
				if holes, err := guard.Holes(h.blockSpec(p.other(h), h.m.DaemonStatus().DataPlane)); err != nil || len(holes) != 0 {
					t.Errorf("%s: %v, %v", h.Name(), holes, err)
				}
				if st, err := h.m.PeerStatus(p.other(h).Name()); err != nil || !st.Guarded || st.LastError != "" {
					t.Errorf("%s: %+v, %v", h.Name(), st, err)
				}
			}
		})
	}
}

// TestPeerWithAnotherBlockOfPortsIsRefused: strongSwan narrows the child to what both have. No stream is
// admitted by it, and the host with the larger block says which ports each has.
func TestPeerWithAnotherBlockOfPortsIsRefused(t *testing.T) {
	const words = "the peer has ports 18432-18687 where this host has ports 18432-18943"
	smaller := programsOfHost
	smaller.Size = 256
	for _, f := range families {
		for _, dials := range []string{"alpha", "beta"} {
			t.Run(f.name+" "+dials+" dials", func(t *testing.T) {
				p := newPair(t, lab.Config{})
				p.alpha.v6, p.beta.v6 = f.v6, f.v6
				p.blocks(t, programsOfHost, smaller)
				from, to := p.alpha, p.beta
				if dials == "beta" {
					from, to = to, from
				}
				to.echoAt(t, blockMiddle, nil)
				within := patience
				if dials == "beta" {
					within = 10 * time.Second // else it would dial for as long as it may
				}
				c, err := from.dialAt(t, to, blockMiddle, within)
				if err == nil {
					// Its host takes the child for whole until the other one has ended it.
					err = pingWithin(c, "hello", 5*time.Second)
				}
				if err == nil {
					t.Error("a stream is carried by a narrowed child")
				}
				if dials == "alpha" && (!errors.Is(err, negotiation.ErrTrafficSelectors) || !strings.Contains(err.Error(), words)) {
					t.Errorf("the host that dials: %v", err)
				}
				t.Log(err)
				eventually(t, "the host with the larger block says what is wrong", func() bool {
					st, err := p.alpha.m.PeerStatus("beta")
					return err == nil && strings.Contains(st.LastError, words)
				})
			})
		}
	}
}

// TestPeerWithoutTheBlockOfPortsIsRefused: its strongSwan narrows the child to what another link of it has
// in common, if anything, or refuses it; either way the words name the ports.
func TestPeerWithoutTheBlockOfPortsIsRefused(t *testing.T) {
	p := newPair(t, lab.Config{})
	other := programsOfHost
	other.Port = 20480
	p.blocks(t, programsOfHost, other)
	_, err := p.alpha.dialAt(t, p.beta, blockMiddle, patience)
	if !errors.Is(err, negotiation.ErrTrafficSelectors) || !strings.Contains(err.Error(), "others than ports 18432-18943 for this link") && !strings.Contains(err.Error(), "the peer does not have ports 18432-18943 between") {
		t.Errorf("%v", err)
	}
	t.Log(err)
}

// TestKernelESPCarriesABlockOfPorts by policies with the block's mask, of strongSwan as of the guard.
func TestKernelESPCarriesABlockOfPorts(t *testing.T) {
	requireKernelESP(t)
	for _, f := range families {
		t.Run(f.name, func(t *testing.T) {
			row(t, "a block of ports, "+f.name+": one policy of the kernel with a mask per direction, and streams at any port are carried")
			p := newPair(t, lab.Config{DataPlane: esp.Kernel})
			p.alpha.v6, p.beta.v6 = f.v6, f.v6
			p.blocks(t, programsOfHost, programsOfHost)
			k := p.carryBlock(t)
			for _, port := range portsOfBlock {
				if k.Clear(port) != 0 || k.ESP == 0 {
					t.Errorf("port %d in clear: %v", port, k)
				}
			}
			for _, h := range []*host{p.alpha, p.beta} {
				children, guards := maskedPolicies(t, h)
				// Of a tunnel there is one that forwards for each that comes in.
				if children != 6 && children != 4 {
					t.Errorf("%s: %d policies of children have the block's mask", h.Name(), children)
				}
				if guards < 6 {
					t.Errorf("%s: %d policies of the guard have the block's mask", h.Name(), guards)
				}
			}
		})
	}
}

// maskedPolicies counts the kernel's policies for the block: those that demand ESP, and those that block.
func maskedPolicies(t *testing.T, h *host) (children, guards int) {
	t.Helper()
	err := h.Do(func() error {
		req := nl.NewNetlinkRequest(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP)
		req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
		all, err := req.Execute(unix.NETLINK_XFRM, nl.XFRM_MSG_NEWPOLICY)
		for _, b := range all {
			m := nl.DeserializeXfrmUserpolicyInfo(b)
			const mask = 0xffff &^ (blockSize - 1)
			if s := m.Sel; !(nl.Swap16(s.Sport) == blockFirst && nl.Swap16(s.SportMask) == mask && s.DportMask == 0) && !(nl.Swap16(s.Dport) == blockFirst && nl.Swap16(s.DportMask) == mask && s.SportMask == 0) {
				continue
			}
			if m.Action == 0 && m.Priority == esp.ChildPriority {
				children++
			} else if m.Action == 1 {
				guards++
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return children, guards
}
