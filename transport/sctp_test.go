package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
	"github.com/ironwarp/ironwarp/transport/assoc/assoctest"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

func inboxes(assoc.Association) assoc.Receiver { return assoctest.NewInbox() }

// udpConfig is a Config for SCTP in UDP with a UDP port that is free on loopback.
func udpConfig(t *testing.T, p Protector) *Config {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return &Config{Protector: p, Kind: SCTPUDP, UDPPort: c.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
}

// with is a Config like c but with another Protector.
func with(c *Config, p Protector) *Config {
	d := *c
	d.Protector = p
	return &d
}

const linkPort = 7471

func listenSCTP(t *testing.T, cfg *Config) *SCTPListener {
	t.Helper()
	l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(loopbackAny.Addr(), linkPort), cfg, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// associate dials and accepts one association.
func associate(t *testing.T, ccfg, scfg *Config) (client, server *Assoc) {
	t.Helper()
	return meet(t, listenSCTP(t, scfg), ccfg)
}

// meet dials a listener and accepts the association.
func meet(t *testing.T, l *SCTPListener, cfg *Config) (client, server *Assoc) {
	t.Helper()
	at := l.Addr()
	if at.Addr().IsUnspecified() {
		at = netip.AddrPortFrom(loopbackAny.Addr(), at.Port())
	}
	client, err := DialSCTP(t.Context(), at, cfg, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	server, err = l.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return client, server
}

func send(t *testing.T, a *Assoc, text string) {
	t.Helper()
	if err := a.SendNow(assoc.Outgoing{PPID: 16, Bufs: [][]byte{[]byte(text)}}); err != nil {
		t.Fatal(err)
	}
}

func (a *Assoc) box() *assoctest.Inbox { return a.Receiver().(*assoctest.Inbox) }

// texts waits for n messages.
func texts(t *testing.T, b *assoctest.Inbox, n int) (got []string) {
	t.Helper()
	for _, m := range b.WaitFor(t, n) {
		got = append(got, string(m.Payload))
	}
	return got
}

// eachKind runs a test with every carrier that this host has.
func eachKind(t *testing.T, test func(t *testing.T, cfg *Config)) {
	t.Run(SCTPUDP.String(), func(t *testing.T) { test(t, udpConfig(t, LoopbackOnly())) })
	t.Run(SCTPUDP.String()+" on sockets of their own", func(t *testing.T) {
		cfg := udpConfig(t, LoopbackOnly())
		cfg.OwnSockets = true
		test(t, cfg)
	})
	t.Run(SCTP.String(), func(t *testing.T) {
		needKernel(t)
		test(t, &Config{Kind: SCTP, Protector: LoopbackOnly()})
	})
}

func needKernel(t *testing.T) {
	t.Helper()
	if err := ksctp.Available(); err != nil {
		t.Skipf("%v; make interop runs this in its virtual machine", err)
	}
}

func TestAnAssociationCarriesMessages(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		a, b := associate(t, cfg, cfg)
		send(t, a, "there")
		send(t, b, "back")
		if got := texts(t, b.box(), 1); got[0] != "there" {
			t.Errorf("got %q", got)
		}
		if got := texts(t, a.box(), 1); got[0] != "back" {
			t.Errorf("got %q", got)
		}
		fa, fb := a.Flow(), b.Flow()
		if fa.Protocol != cfg.Kind.Protocol() || fa.Local != fb.Remote || fa.Remote != fb.Local || fa.Local.Port() == fa.Remote.Port() {
			t.Errorf("flows %v and %v", fa, fb)
		}
		if want := map[Kind]uint16{SCTP: linkPort, SCTPUDP: cfg.UDPPort}[cfg.Kind]; fa.Remote.Port() != want {
			t.Errorf("flow %v, the port is %d", fa, want)
		}
		if a.Protection().Peer() != "loopback" || b.Protection().Kind() != "loopback" || a.Protection().Paused() {
			t.Errorf("protections %v and %v", a.Protection(), b.Protection())
		}
		if err := a.Shutdown(t.Context()); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		b.box().WaitEvent(t, assoc.EventDown)
	})
}

func TestTheEndOfAnAssociationReleasesBothProtections(t *testing.T) {
	ends := map[string]func(*Assoc){
		"shutdown": func(a *Assoc) { a.Shutdown(context.Background()) },
		"abort":    func(a *Assoc) { a.Abort("no more") },
		"close":    func(a *Assoc) { a.Close() },
	}
	eachKind(t, func(t *testing.T, cfg *Config) {
		for name, end := range ends {
			for _, dialler := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s by the dialler %v", name, dialler), func(t *testing.T) {
					var pc, ps counted
					a, b := associate(t, with(cfg, admits(&pc)), with(cfg, admits(&ps)))
					if pc.released()+ps.released() != 0 {
						t.Fatal("released early")
					}
					if dialler {
						end(a)
					} else {
						end(b)
					}
					for _, x := range []*Assoc{a, b} {
						<-x.Done()
						x.box().WaitEvent(t, assoc.EventDown)
						x.Close()
						x.Close()
					}
					if pc.released() != 1 || ps.released() != 1 {
						t.Errorf("released %d and %d times", pc.released(), ps.released())
					}
				})
			}
		}
	})
}

// admits is a Protector that gives everybody c.
func admits(c Protection) *fake {
	return &fake{admit: func(context.Context, Flow, bool, Monitored) (Protection, error) { return c, nil }}
}

func TestProtectorsSeeMoreOfAnAssociationThanItsQueue(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		cfg.DeadAfter = time.Hour
		var seen Monitored
		p := &fake{admit: func(_ context.Context, _ Flow, _ bool, m Monitored) (Protection, error) {
			seen = m
			return fixed{peer: "x"}, nil
		}}
		associate(t, with(cfg, p), cfg)
		m, ok := seen.(interface {
			assoc.Association
			DeadAfter() time.Duration
		})
		if !ok || m.DeadAfter() != time.Hour {
			t.Fatalf("a %T", seen)
		}
		if n, err := m.Outq(); n != 0 || err != nil {
			t.Errorf("Outq %d, %v", n, err)
		}
	})
}

func TestAFlowWithoutARemoteAddressSaysNothingOfIt(t *testing.T) {
	f := Flow{Protocol: ProtoUDP, Local: netip.MustParseAddrPort("192.0.2.1:9899")}
	if got := f.String(); got != "udp 192.0.2.1:9899" {
		t.Errorf("%q", got)
	}
}

func TestAnAssociationOverIPv6(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(netip.IPv6Loopback(), linkPort), cfg, inboxes)
		if errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Skip("this host has no IPv6 loopback address")
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		a, b := meet(t, l, cfg)
		send(t, a, "six")
		if got := texts(t, b.box(), 1); got[0] != "six" || !a.Flow().Local.Addr().Is6() || a.Flow().Local != b.Flow().Remote {
			t.Errorf("got %q on %v", got, a.Flow())
		}
	})
}

func TestMappedAddressesAreThoseOfIPv4(t *testing.T) {
	eachKind(t, func(t *testing.T, cfg *Config) {
		l := listenSCTP(t, cfg)
		mapped := netip.AddrPortFrom(netip.AddrFrom16(l.Addr().Addr().As16()), l.Addr().Port())
		c := *cfg
		c.Local = netip.MustParseAddr("::ffff:127.0.0.9")
		a, err := DialSCTP(t.Context(), mapped, &c, inboxes)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if f := a.Flow(); !f.Remote.Addr().Is4() || f.Local.Addr() != netip.MustParseAddr("127.0.0.9") {
			t.Errorf("flow %v", f)
		}
	})
}

func TestAWildcardListenerNamesTheAddressOfEachFlow(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	l, err := ListenSCTP(t.Context(), netip.AddrPortFrom(netip.IPv4Unspecified(), linkPort), cfg, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	a, b := meet(t, l, cfg)
	if b.Flow().Local != a.Flow().Remote {
		t.Errorf("flows %v and %v", a.Flow(), b.Flow())
	}
}

func TestPathEventsOfARelayThatGoesDeaf(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	l := listenSCTP(t, cfg)
	relay, err := sctptest.NewRelay(netip.AddrPortFrom(l.Addr().Addr(), cfg.UDPPort), sctptest.Faults{}, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer relay.Close()
	told := make(chan bool, 10)
	c := *cfg
	c.UDPPort = relay.Addr().Port()
	c.OnPath = func(_ Flow, up bool) { told <- up }
	a, err := DialSCTP(t.Context(), l.Addr(), &c, inboxes)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	relay.SetFaults(sctptest.Faults{Loss: 1})
	send(t, a, "into the void")
	if <-told {
		t.Fatal("a silent path is told to be up")
	}
	relay.SetFaults(sctptest.Faults{})
	if !<-told {
		t.Fatal("down again")
	}
	if a.Err() != nil {
		t.Errorf("the association ended: %v", a.Err())
	}
}

func TestSettingsOfAssociations(t *testing.T) {
	s, k := (&Config{}).sctpConfig(), (&Config{}).kernelConfig(new(Endpoints))
	if s.Adaptation != 1 || s.DeadAfter < 15*time.Minute || s.RTOMax > 5*time.Second || s.RecvWindow != 0 {
		t.Errorf("in UDP: %+v", s)
	}
	if k.Adaptation != s.Adaptation || k.DeadAfter != s.DeadAfter || k.RTOMax != s.RTOMax || k.Heartbeat != s.Heartbeat || k.PathMaxRetrans != s.PathMaxRetrans {
		t.Errorf("of the kernel: %+v", k)
	}
	if s := (&Config{RecvBuffer: 1}).sctpConfig(); s.RecvWindow != minRecvWindow {
		t.Errorf("a window of %d bytes", s.RecvWindow)
	}
}

func TestPacketsKeepToTheMTUOfTheConfig(t *testing.T) {
	cfg := udpConfig(t, LoopbackOnly())
	cfg.MTU = 1000
	a, b := associate(t, cfg, cfg)
	const headers = 20 + 8 + 12 + 16 // IPv4, UDP, SCTP, DATA chunk
	for _, x := range []*Assoc{a, b} {
		waitFor(t, func() bool { return x.MaxMessage() >= 1000-headers-3 }) // a probe is answered
		if n := x.MaxMessage(); n > 1000-headers {
			t.Errorf("messages of %d bytes", n)
		}
	}
}
