package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

// declare writes a peer's file on a host and reloads it.
func (h *host) declare(name string, other *host, how string) {
	h.t.Helper()
	h.write("peers.d/"+name+".yaml", fmt.Sprintf("name: %s\naddress: 127.0.0.1\nport: %d\nprotection: loopback\n%s", name, other.port, how))
	if _, err := h.api.Reload(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// over says what a peer's transport is, and where it awaits SCTP in UDP.
func over(transport string, other *host) string {
	how := "transport: " + transport + "\n"
	if transport == "sctp-udp" || transport == "auto" {
		how += fmt.Sprintf("udp_port: %d\n", other.udp)
	}
	return how
}

// pairOver is two hosts that are linked over transports, of which beta exports a
// disk to alpha.
func pairOver(t *testing.T, here, there string) (alpha, beta *host) {
	t.Helper()
	alpha, beta = newHost(t, ""), newHost(t, "")
	linkOver(alpha, beta, here, there)
	return alpha, beta
}

// linkOver is pairOver of hosts that are there.
func linkOver(alpha, beta *host, here, there string) {
	beta.t.Helper()
	beta.declare("alpha", alpha, over(there, alpha))
	alpha.declare("beta", beta, over(here, beta))
	beta.export("disk", beta.image("disk.img", 1<<20), false)
}

// streamsOver are the transports of a host's streams to attached disks.
func (h *host) streamsOver() (kinds []string) {
	for _, s := range h.status().Streams {
		if s.Service == "attachments" {
			kinds = append(kinds, s.Transport)
		}
	}
	return kinds
}

func (h *host) peer(name string) api.Peer {
	h.t.Helper()
	p, err := h.api.Peer(h.t.Context(), name)
	if err != nil {
		h.t.Fatal(err)
	}
	return p
}

func TestDiskOverSCTPInUDP(t *testing.T) {
	alpha, beta := pairOver(t, "sctp-udp", "sctp-udp")
	c := alpha.attach("disk")
	data := bytes.Repeat([]byte("over SCTP in UDP"), 4096)
	ok(t, c, cmdWrite, 8192, uint32(len(data)), data)
	if got := ok(t, c, cmdRead, 8192, uint32(len(data)), nil); !bytes.Equal(got, data) {
		t.Error("what was read is not what was written")
	}
	if kinds := fmt.Sprint(alpha.streamsOver()); kinds != "[sctp-udp sctp-udp]" {
		t.Errorf("streams over %s", kinds)
	}
	if got := alpha.peer("beta").Carrier; got.Transport != "sctp-udp" || got.Why != "configured" {
		t.Errorf("carrier %+v", got)
	}
	for _, l := range beta.status().Listeners {
		if l.Transport != "sctp-udp" || l.UDPPort != beta.udp || l.State != "listening" {
			t.Errorf("listener %+v", l)
		}
	}
	res, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 2}, nil)
	if err != nil || res.Transport != "sctp-udp" || res.Received != 2 {
		t.Errorf("ping %+v, %v", res, err)
	}
	if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", beta.port)); err == nil {
		c.Close()
		t.Error("TCP is awaited, which no peer uses")
	}
	_, err = alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Transport: "tcp"}, nil)
	says(t, err, api.CodeInvalid, `no transport "tcp"`, "it has: sctp-udp")
	_, err = alpha.api.Bench(t.Context(), api.BenchRequest{Peer: "beta", Transport: "udp"}, nil)
	says(t, err, api.CodeInvalid, `no transport "udp"`)
}

// again ends the daemon of a host and starts it.
func (h *host) again() {
	h.t.Helper()
	h.stop()
	h.start()
}

func TestAnotherTransportEndsTheStreamsAndTheDiskComesBack(t *testing.T) {
	alpha, beta := pairOver(t, "tcp", "auto")
	ok(t, alpha.attach("disk"), cmdRead, 0, 512, nil)
	alpha.declare("beta", beta, over("sctp-udp", beta))
	eventually(t, "the disk is ready over SCTP in UDP", func() bool {
		at := alpha.status().Attachments
		return len(at) == 1 && at[0].State == api.AttachReady && fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]"
	})
	ok(t, alpha.nbd("disk"), cmdRead, 0, 512, nil)
}

// TestNothingOfAPeerOutlivesItsProtection: an SCTP association lives on for a while
// without streams, but not beyond its peer's guard. That its socket is gone shows
// in that the UDP port is free for the next listener.
func TestNothingOfAPeerOutlivesItsProtection(t *testing.T) {
	alpha, beta := pairOver(t, "sctp-udp", "sctp-udp")
	ok(t, alpha.attach("disk"), cmdRead, 0, 512, nil)
	beta.declare("alpha", alpha, over("tcp", alpha))
	u, err := net.ListenPacket("udp", fmt.Sprintf("127.0.0.1:%d", beta.udp))
	if err != nil {
		t.Fatalf("an association still has the port: %v", err)
	}
	u.Close()
	beta.declare("alpha", alpha, over("sctp-udp", alpha))
	if l := beta.status().Listeners; len(l) != 1 || l[0].State != "listening" {
		t.Errorf("listeners %+v", l)
	}
	eventually(t, "the disk is back", func() bool { return fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]" })
}

// TestTransportsThatDoNotMeet shows what is said when the hosts have none in common.
func TestTransportsThatDoNotMeet(t *testing.T) {
	alpha, beta := pairOver(t, "tcp", "sctp-udp")
	_, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta"}, nil)
	says(t, err, api.CodeUnavailable, "connection refused", "the same transport")
	alpha.declare("beta", beta, over("auto", beta))
	_, err = alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta"}, nil)
	says(t, err, api.CodeUnavailable, "connection refused", "the same transport")
}

func TestKernelWithoutSCTPIsSaid(t *testing.T) {
	if ksctp.Available() == nil {
		t.Skip("this kernel has SCTP; the test is about those that have none")
	}
	alpha, beta := newHost(t, ""), newHost(t, "")
	alpha.declare("beta", beta, "transport: sctp\n")
	l := alpha.status().Listeners
	if len(l) != 1 || l[0].Transport != "sctp" || l[0].State != api.PeerProblem {
		t.Fatalf("listeners %+v", l)
	}
	says(t, l[0].Problem, api.CodeUnavailable, "this host's kernel has no SCTP", "modprobe sctp", "sctp-udp")
	_, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta"}, nil)
	says(t, err, api.CodeUnavailable, "this host's kernel has no SCTP", "modprobe sctp")
}

// TestWhatThePeersFileDoesNotNameIsRefused: the listener of another peer's
// transport is no way in.
func TestWhatThePeersFileDoesNotNameIsRefused(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:1")
	for carrier, want := range map[config.Transport]string{config.TransportTCP: "[tcp]", config.TransportSCTPUDP: "[udp]", config.TransportSCTP: "[sctp]", config.TransportAuto: "[tcp udp sctp]"} {
		p := newPeer(config.Peer{Name: "beta", Address: at.Addr(), Protection: config.ProtectLoopback, Transport: carrier})
		n := p.withIdentity(transport.LoopbackOnly())
		var admitted []string
		for _, proto := range []transport.Protocol{transport.ProtoTCP, transport.ProtoUDP, transport.ProtoSCTP} {
			f := transport.Flow{Protocol: proto, Local: at, Remote: at}
			_, err := n.Admit(t.Context(), f, false, nil)
			if serr := n.Screen(f); (serr == nil) != (err == nil) {
				t.Errorf("%s over %s: Admit says %v, Screen %v", carrier, proto, err, serr)
			}
			if err == nil {
				admitted = append(admitted, proto.String())
			} else if !errors.Is(err, transport.ErrNotProtected) {
				t.Errorf("%s over %s: %v", carrier, proto, err)
			}
		}
		if fmt.Sprint(admitted) != want {
			t.Errorf("%s admits %v, want %s", carrier, admitted, want)
		}
	}
}

// TestKernelIsAskedForSCTPByAutoAlone: the question may load a module.
func TestKernelIsAskedForSCTPByAutoAlone(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	var asked atomic.Int32
	alpha.kernel = func() error { asked.Add(1); return ksctp.ErrUnavailable }
	alpha.again()
	for _, tc := range []struct {
		carrier string
		asks    bool
	}{{"tcp", false}, {"sctp-udp", false}, {"auto", true}} {
		alpha.declare("beta", beta, over(tc.carrier, beta))
		if n := asked.Load(); n > 0 != tc.asks {
			t.Errorf("%s: asked %d times", tc.carrier, n)
		}
	}
}
