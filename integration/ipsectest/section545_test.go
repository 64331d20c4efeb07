package ipsectest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// sentTo returns a function that returns the sizes, without IP headers, of what a host
// has sent to an address on its wire for a kind's link.
func sentTo(t *testing.T, h *host, to netip.Addr, kind transport.Kind) func() []int {
	t.Helper()
	var mu sync.Mutex
	var sizes []int
	link := linkOf(kind)
	packets(t, h, func(b []byte) {
		var dst, src netip.Addr
		var proto byte
		switch {
		case len(b) >= 24 && b[0] == 0x45:
			src, dst, proto = netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20])), b[9]
			b = b[20:min(len(b), int(binary.BigEndian.Uint16(b[2:])))]
		case len(b) >= 44 && b[0]>>4 == 6:
			src, dst, proto = netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40])), b[6]
			b = b[40:]
		default:
			return
		}
		if src == h.at() && dst == to && proto == byte(link.Protocol) && binary.BigEndian.Uint16(b) == link.Port {
			mu.Lock()
			sizes = append(sizes, len(b))
			mu.Unlock()
		}
	})
	return func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(sizes)
	}
}

// connect dials in clear, as far as a host knows, by the pair's kind of carrier.
func (p *pair) connect(t *testing.T, from *host, d time.Duration) error {
	t.Helper()
	if p.kind != transport.TCP {
		return p.dialClear(t, from, d)
	}
	return tryClear(t, from.Host, netip.AddrPortFrom(p.other(from).at(), port), d)
}

// TestPeerWithoutAnSAIsNotAnswered is RFC 5042 5.4.5 with RFC 3723 2.3: not even the
// answer to a SYN or an INIT crosses the wire in clear. The control removes the guard:
// then there is an answer, and no flow is admitted.
func TestPeerWithoutAnSAIsNotAnswered(t *testing.T) {
	overAll(t, "a peer without an SA connects in clear: nothing answers; without the guard it would", lab.Config{}, func(t *testing.T, p *pair) {
		if err := p.beta.m.AddPeer(t.Context(), p.peerOf(p.beta)); err != nil {
			t.Fatal(err)
		}
		refused, note := refusals()
		p.echo(t, p.beta, note)
		awaitWay(t, p.alpha.Host, p.beta.at())
		answers := sentTo(t, p.beta, p.alpha.at(), p.kind)
		before := stoppedInbound(t, p.beta)
		// A busy machine may end an attempt before it has sent anything.
		eventually(t, "the guard counts the clear packets", func() bool {
			if err := p.connect(t, p.alpha, time.Second); err == nil {
				t.Fatal("a clear connection came up")
			}
			return stoppedInbound(t, p.beta) > before
		})
		if n := answers(); len(n) > 0 {
			t.Errorf("%d clear packets of the link were sent to a peer without an SA", len(n))
		}
		select {
		case err := <-refused:
			t.Errorf("the clear packets got as far as the listener: %v", err)
		default:
		}
		if err := p.beta.m.RemoveGuard(t.Context(), "alpha"); err != nil {
			t.Fatal(err)
		}
		_ = p.connect(t, p.alpha, 10*time.Second)
		eventually(t, "there is an answer without the guard", func() bool { return len(answers()) > 0 })
		select {
		case err := <-refused:
			if !errors.Is(err, pad.ErrNotCovered) {
				t.Errorf("refused with %v", err)
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("without the guard and without an SA a clear flow was admitted")
		}
	})
}

// TestStrangerGetsNothingButAHandshake dials from a host that is nobody's peer: there
// is no guard against it, and TCP has answered before the Protector is asked.
func TestStrangerGetsNothingButAHandshake(t *testing.T) {
	p := newPair(t, lab.Config{Hosts: []string{"alpha", "beta", "mallory"}})
	p.addPeers(t)
	refused, note := refusals()
	p.beta.echo(t, note)
	mallory := p.lab.Host("mallory")
	answers := sentTo(t, p.beta, mallory.Addr(), transport.TCP)
	talkTo := func(at netip.AddrPort) (n int, err error) {
		t.Helper()
		c, err := mallory.Dial(t.Context(), at)
		if err != nil {
			return 0, err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "CLEARTEXT-CANARY"); err != nil {
			return 0, err
		}
		return c.Read(make([]byte, 100))
	}
	n, err := talkTo(netip.AddrPortFrom(p.beta.Addr(), port))
	var timeout net.Error
	if n > 0 || err == nil || errors.As(err, &timeout) && timeout.Timeout() {
		t.Errorf("a stranger has got %d bytes, %v", n, err)
	}
	if err := <-refused; !errors.Is(err, ipsec.ErrUnknownPeer) {
		t.Errorf("refused with %v", err)
	}
	for _, n := range answers() {
		if n > 60 { // a TCP header with the most options
			t.Errorf("%d bytes of TCP were sent to a stranger", n)
		}
	}
	// Control: a listener without a Protector answers it.
	open := clearEcho(t, p.beta.Host, netip.AddrPortFrom(p.beta.Addr(), port+1))
	if n, err := talkTo(open); n == 0 {
		t.Errorf("a server without a Protector: %v: the check cannot fail", err)
	}
}

// tunnelled is a pair in which everything between alpha and beta goes by a
// gateway, which has a tunnel to alpha and none to beta.
type tunnelled struct {
	*pair
	gate *host
}

func newTunnel(t *testing.T, kind transport.Kind) *tunnelled {
	t.Helper()
	p := newPairOf(t, kind, lab.Config{Hosts: []string{"alpha", "beta", "gate"}})
	g := &tunnelled{p, &host{Host: p.lab.Host("gate")}}
	routeBy(t, p.alpha, g.gate, p.beta)
	if p.lab.DataPlane() == esp.Userland {
		// Userland ESP needs an address of its host's among those of a tunnel: the gateway has
		// beta's, too, but what is sent there goes on to beta.
		known := p.beta.Addr().String() + " appeared on lo"
		sh(t, g.gate.Host, fmt.Sprintf("sysctl -qw net.ipv4.conf.all.arp_ignore=1; ip rule add pref 100 lookup local; ip rule del pref 0;"+
			" ip rule add pref 50 to %[1]s lookup 50; ip route add %[1]s dev wire0 src %[2]s table 50; ip addr add %[1]s/32 dev lo", p.beta.Addr(), g.gate.Addr()))
		eventually(t, "the gateway's strongSwan knows the address", func() bool { return strings.Contains(string(g.gate.charonLog(t)), known) })
	}
	return g
}

// load loads a connection with the tunnel into strongSwan on the gateway, which calls
// itself id, and on alpha if that is configured by hand.
func (g *tunnelled) load(t *testing.T, id string, onAlpha bool) {
	t.Helper()
	encap := "no"
	if g.lab.DataPlane() == esp.Userland {
		encap = "yes"
	}
	what := "/32[" + g.kind.Protocol().String() + "]"
	alpha, beta := g.alpha.Addr().String(), g.beta.Addr().String()
	for _, h := range []*host{g.alpha, g.gate} {
		local, remote, ids, ends := alpha, beta, [2]string{"alpha", id}, [2]string{alpha, g.gate.Addr().String()}
		if h == g.gate {
			local, remote, ids, ends = beta, alpha, [2]string{id, "alpha"}, [2]string{g.gate.Addr().String(), alpha}
		} else if !onAlpha {
			continue
		}
		if err := viciCall(t, h, "load-shared", message(t, "id", "tunnel", "type", "IKE", "data", string(g.key.Reveal()), "owners", []string{id, "alpha"})); err != nil {
			t.Fatal(err)
		}
		child := message(t, "local_ts", []string{local + what}, "remote_ts", []string{remote + what}, "esp_proposals", []string{"aes128gcm16", "aes128gcm16-ecp256", "aes128-sha256"})
		conn := message(t, "version", "2", "local_addrs", ends[:1], "remote_addrs", ends[1:], "proposals", []string{"aes128gcm16-prfsha256-ecp256", "aes128-sha256-modp2048"}, "encap", encap,
			"local-1", message(t, "auth", "psk", "id", ids[0]), "remote-1", message(t, "auth", "psk", "id", ids[1]), "children", message(t, "tunnel", child))
		if err := viciCall(t, h, "load-conn", message(t, "tunnel", conn)); err != nil {
			t.Fatal(err)
		}
	}
}

// serve makes beta echo what comes in clear, as a host without IPsec does.
func (g *tunnelled) serve(t *testing.T) {
	t.Helper()
	if g.kind == transport.TCP {
		echoServer(t, g.beta.Host)
		return
	}
	if g.kind == transport.SCTP {
		sumInSoftware(t, g.beta.Host)
	}
	g.more = func(h *host, cfg *transport.Config, dials bool) {
		if h == g.beta && !dials {
			cfg.Protector = transport.Plaintext(slog.New(slog.DiscardHandler), g.alpha.at())
		}
	}
	g.echo(t, g.beta, nil)
}

// prepare is what precedes a stream from alpha to beta.
func (p *pair) prepare(t *testing.T) error {
	k := linkOf(p.kind)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	return p.alpha.m.Prepare(ctx, transport.Flow{Protocol: k.Protocol, Remote: netip.AddrPortFrom(p.beta.at(), k.Port)})
}

// sumInSoftware makes a host's SCTP compute checksums itself: a veth leaves them to
// hardware that does not exist, and a gateway encrypts the packets as they are.
func sumInSoftware(t *testing.T, h *lab.Host) {
	t.Helper()
	const setTxChecksums = 0x17 // ETHTOOL_STXCSUM
	value := struct{ cmd, data uint32 }{setTxChecksums, 0}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], h.Dev())
	err := h.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); e != 0 {
			return e
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func overTunnels(t *testing.T, what string, test func(*testing.T, *tunnelled)) {
	t.Helper()
	for _, k := range []struct {
		name string
		kind transport.Kind
	}{{"TCP", transport.TCP}, {"SCTP in UDP", transport.SCTPUDP}, {"kernel SCTP", transport.SCTP}} {
		t.Run(k.name, func(t *testing.T) {
			row(t, k.name+": "+what)
			test(t, newTunnel(t, k.kind))
		})
	}
}

// TestStreamThroughAGatewaysTunnelIsRefused is RFC 5042 5.4.5's warning: behind the
// device where ESP ends anybody can attack the stream. Its SA covers the peer's address
// and port, and it knows the peer's key.
func TestStreamThroughAGatewaysTunnelIsRefused(t *testing.T) {
	overTunnels(t, "an SA that ends at a gateway covers the peer: streams of either direction are refused", func(t *testing.T, g *tunnelled) {
		for _, id := range []string{"gate", "beta"} {
			t.Run("as "+id, func(t *testing.T) {
				if err := g.alpha.m.AddPeer(t.Context(), g.peerOf(g.alpha)); err != nil {
					t.Fatal(err)
				}
				g.load(t, id, true)
				if err := viciCall(t, g.alpha, "initiate", message(t, "ike", "tunnel", "child", "tunnel", "timeout", "60000")); err != nil {
					t.Fatal(err)
				}
				err := g.prepare(t)
				want := map[string]error{"gate": pad.ErrWrongIdentity, "beta": pad.ErrGateway}[id]
				kernel := g.lab.DataPlane() == esp.Kernel // there the guard comes before the tunnel's policies
				if !errors.Is(err, want) && !kernel || err == nil {
					t.Errorf("dialling: %v, want %v", err, want)
				}
				refused, note := refusals()
				end := g.pair.serve(t, g.alpha, note)
				defer end()
				within := patience
				if kernel {
					within = 3 * time.Second
				}
				_ = g.connect(t, g.beta, within)
				if !kernel {
					select {
					case err := <-refused:
						if !errors.Is(err, pad.ErrWrongIdentity) && !errors.Is(err, pad.ErrGateway) || !errors.Is(err, transport.ErrNotProtected) {
							t.Errorf("refused with %v", err)
						}
					case <-time.After(2 * time.Minute):
						t.Fatal("a stream from behind the gateway was not refused")
					}
				}
				if st, _ := g.alpha.m.PeerStatus("beta"); st.Flows != 0 {
					t.Errorf("status %+v", st)
				}
				_ = viciCall(t, g.alpha, "terminate", message(t, "ike", "tunnel", "force", "yes", "timeout", "10000"))
				if err := g.alpha.m.RemovePeer(t.Context(), "beta"); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// TestControlAGatewayThatWasAskedForIsFlagged uses the same path, and the setting that
// permits it: what the other test refuses would carry a stream.
func TestControlAGatewayThatWasAskedForIsFlagged(t *testing.T) {
	overTunnels(t, "control: with the setting that names the gateway the stream comes up, and the status says where ESP ends", func(t *testing.T, g *tunnelled) {
		cfg := g.peerOf(g.alpha)
		cfg.Gateway = g.gate.Addr()
		g.load(t, "beta", false)
		g.serve(t)
		if err := g.alpha.m.AddPeer(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
		if err := g.prepare(t); err != nil {
			t.Fatal(err)
		}
		if err := ping(g.mustOpen(t, g.alpha), "by the gateway"); err != nil {
			t.Fatal(err)
		}
		var st ipsec.Status
		eventually(t, "the status says what the stream's SA is", func() (ok bool) {
			var err error
			st, err = g.alpha.m.PeerStatus("beta")
			return err == nil && st.Live != nil
		})
		if st.Live.Gateway != g.gate.Addr().String() {
			t.Errorf("status %+v", st)
		}
		sas, err := g.alpha.m.SAs(t.Context())
		if err != nil || !slices.ContainsFunc(sas, func(sa charon.SA) bool {
			return sa.Gateway && strings.Contains(sa.RemoteHost.String(), st.Live.Gateway)
		}) {
			t.Errorf("the SAs do not say that ESP ends at a gateway: %+v, %v", sas, err)
		}
	})
}
