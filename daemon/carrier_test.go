package daemon

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
)

func TestAutoTakesTheBestThatBothHostsHave(t *testing.T) {
	none := func() error { return ksctp.ErrUnavailable }
	for _, tc := range []struct{ there, want, why string }{
		{"auto", "sctp-udp", "the fastest that both hosts have, as measured: sctp-udp 2000 MB/s, tcp 1000 MB/s; no sctp: this host's kernel has none"},
		{"tcp", "tcp", "the only one that both hosts have; no sctp: this host's kernel has none; no sctp-udp: beta has none for this host"},
	} {
		t.Run(tc.there, func(t *testing.T) {
			alpha, beta := &host{t: t, kernel: none, trial: carrier.TrialTime}, &host{t: t, kernel: none}
			alpha.begin("")
			beta.begin("")
			beta.declare("alpha", alpha, over(tc.there, alpha))
			alpha.declare("beta", beta, over("auto", beta))
			beta.export("disk", beta.image("disk.img", 1<<20), false)
			if got := alpha.peer("beta").Carrier; got.Transport != "" || !strings.Contains(got.Why, "before the first stream") {
				t.Errorf("carrier before any stream: %+v", got)
			}
			ok(t, alpha.attach("disk"), cmdRead, 0, 512, nil)
			if kinds := fmt.Sprint(alpha.streamsOver()); kinds != fmt.Sprintf("[%s %[1]s]", tc.want) {
				t.Errorf("streams over %s, want %s", kinds, tc.want)
			}
			if got := alpha.peer("beta").Carrier; got.Transport != tc.want || got.Why != tc.why {
				t.Errorf("carrier %+v, want %s: %s", got, tc.want, tc.why)
			}
			for _, k := range []string{"tcp", tc.want} {
				res, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1, Transport: k}, nil)
				if err != nil || res.Transport != k {
					t.Errorf("ping over %s: %+v, %v", k, res, err)
				}
			}
			if st := beta.status(); st.Refused != 0 {
				t.Errorf("the question counts as a refused connection: %+v", st.LastRefused)
			}
		})
	}
}

// TestAutoMeasures reads over both for a moment.
func TestAutoMeasures(t *testing.T) {
	alpha, beta := &host{t: t, trial: carrier.TrialTime}, newHost(t, "")
	alpha.begin("")
	linkOver(alpha, beta, "auto", "auto")
	p := alpha.d.peers.byAddress(netip.MustParseAddr("127.0.0.1"))
	for _, k := range []transport.Kind{transport.SCTPUDP, transport.TCP} {
		if n, err := alpha.d.carriers.Measure(t.Context(), alpha.d.local.Root, p, k); err != nil || n <= 0 {
			t.Errorf("%v carries %v bytes a second, %v", k, n, err)
		}
	}
}

// TestAutoFallsBackAndComesBack has a UDP port at which nobody answers, as behind
// a firewall, until it is the right one.
func TestAutoFallsBackAndComesBack(t *testing.T) {
	// What fails is out for the rest of the test: the trial that is to succeed must not end before a busy machine has
	// got to it.
	alpha, beta := &host{t: t, avoid: time.Hour, trial: 30 * testTrial}, newHost(t, "")
	alpha.begin("")
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	beta.declare("alpha", alpha, over("auto", alpha))
	alpha.declare("beta", beta, fmt.Sprintf("transport: auto\nudp_port: %d\n", silent.LocalAddr().(*net.UDPAddr).Port))
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	if kinds := fmt.Sprint(alpha.streamsOver()); kinds != "[tcp tcp]" {
		t.Errorf("streams over %s", kinds)
	}
	got := alpha.peer("beta").Carrier
	if got.Transport != "tcp" || !strings.Contains(got.Why, "no sctp-udp: it failed") || got.Fallbacks != 1 ||
		len(got.Tried) != 1 || got.Tried[0].Transport != "sctp-udp" || got.Tried[0].AgainSeconds <= 0 {
		t.Errorf("carrier %+v", got)
	}
	if log := alpha.log.String(); !strings.Contains(log, "a transport does not work; the next best is taken") {
		t.Errorf("the log does not tell:\n%s", log)
	}
	// While the failure is fresh the carrier is not tried again.
	if _, err := alpha.api.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil); err != nil {
		t.Error(err)
	}
	if got := alpha.peer("beta").Carrier; got.Fallbacks != 1 {
		t.Errorf("it was tried again at once: %+v", got)
	}
	alpha.declare("beta", beta, over("auto", beta))
	eventually(t, "the disk is there over SCTP in UDP", func() bool { return fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]" })
}

// TestAutoDecidesAnewWhenAPathIsMadeAnew has a peer that gets SCTP in UDP while a
// disk is attached over TCP. Only its streams end, not the session.
func TestAutoDecidesAnewWhenAPathIsMadeAnew(t *testing.T) {
	// A trial that a busy machine does not get to in time makes for another pick.
	alpha, beta := &host{t: t, trial: carrier.TrialTime}, newHost(t, "")
	alpha.begin("")
	linkOver(alpha, beta, "auto", "tcp")
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, make([]byte, 512))
	if kinds := fmt.Sprint(alpha.streamsOver()); kinds != "[tcp tcp]" {
		t.Fatalf("streams over %s", kinds)
	}
	beta.declare("alpha", alpha, over("auto", alpha))
	eventually(t, "the disk is there over SCTP in UDP", func() bool { return fmt.Sprint(alpha.streamsOver()) == "[sctp-udp sctp-udp]" })
	ok(t, c, cmdRead, 0, 512, nil)
	if log := alpha.log.String(); strings.Count(log, "transport is picked") != 2 {
		t.Errorf("the log does not tell of two picks:\n%s", log)
	}
}
