package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rtrs"
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
			alpha, beta := &host{t: t, kernel: none, trial: trialTime}, &host{t: t, kernel: none}
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

// TestAutoTakesWhatIsFaster: another carrier than TCP, or than the one in use, has
// to be much faster; one that cannot be measured is not taken for that.
func TestAutoTakesWhatIsFaster(t *testing.T) {
	rates := map[transport.Kind]float64{}
	var broken error
	alpha, beta := &host{t: t, trial: trialTime}, newHost(t, "")
	alpha.rate = func(_ context.Context, _ *Daemon, _ *consumer, _ *peer, k transport.Kind) (float64, error) {
		if k == transport.SCTPUDP && broken != nil {
			return 0, broken
		}
		return rates[k], nil
	}
	alpha.begin("")
	beta.declare("alpha", alpha, over("auto", alpha))
	alpha.declare("beta", beta, over("auto", beta))
	p := alpha.d.peerAt(netip.MustParseAddr("127.0.0.1"))
	for _, step := range []struct {
		udp, tcp float64
		err      error
		want     transport.Kind
		why      string
	}{
		{100e6, 500e6, nil, transport.TCP, "sctp-udp 100 MB/s, tcp 500 MB/s"},
		{550e6, 500e6, nil, transport.TCP, "sctp-udp 550 MB/s, tcp 500 MB/s"},
		{700e6, 500e6, nil, transport.SCTPUDP, "sctp-udp 700 MB/s, tcp 500 MB/s"},
		{500e6, 550e6, nil, transport.SCTPUDP, "sctp-udp 500 MB/s, tcp 550 MB/s"},
		{500e6, 700e6, nil, transport.TCP, "sctp-udp 500 MB/s, tcp 700 MB/s"},
		{0, 700e6, errors.New("no memory"), transport.TCP, "sctp-udp: not measured, no memory, tcp 700 MB/s"},
	} {
		rates[transport.SCTPUDP], rates[transport.TCP], broken = step.udp, step.tcp, step.err
		clear(p.carrier.rates) // as after rateFor
		k, err := alpha.d.pick(t.Context(), alpha.d.local.root, p)
		if got := alpha.peer("beta").Carrier; err != nil || k != step.want || !strings.Contains(got.Why, step.why) {
			t.Errorf("%+v: picked %v, %v; carrier %+v", step, k, err, got)
		}
	}
}

// TestAutoMeasures reads over both for a moment.
func TestAutoMeasures(t *testing.T) {
	alpha, beta := &host{t: t, trial: trialTime}, newHost(t, "")
	alpha.begin("")
	linkOver(alpha, beta, "auto", "auto")
	p := alpha.d.peerAt(netip.MustParseAddr("127.0.0.1"))
	for _, k := range []transport.Kind{transport.SCTPUDP, transport.TCP} {
		if n, err := measureRate(t.Context(), alpha.d, alpha.d.local.root, p, k); err != nil || n <= 0 {
			t.Errorf("%v carries %v bytes a second, %v", k, n, err)
		}
	}
}

// TestAutoFallsBackAndComesBack has a UDP port at which nobody answers, as behind
// a firewall, until it is the right one.
func TestAutoFallsBackAndComesBack(t *testing.T) {
	alpha, beta := &host{t: t, avoid: time.Hour}, newHost(t, "")
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
	alpha, beta := pairOver(t, "auto", "tcp")
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

// TestFailedCarrierIsPassedOverForAWhileOnly looks at the rule without waiting.
func TestFailedCarrierIsPassedOverForAWhileOnly(t *testing.T) {
	alpha, beta := &host{t: t, avoid: time.Hour}, newHost(t, "")
	alpha.begin("")
	linkOver(alpha, beta, "auto", "auto")
	p := alpha.d.peerAt(netip.MustParseAddr("127.0.0.1"))
	picked := func() transport.Kind {
		k, err := alpha.d.pick(t.Context(), alpha.d.local.root, p)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	alpha.d.tried(p, transport.SCTPUDP, errors.New("no route"))
	if k := picked(); k != transport.TCP {
		t.Errorf("picked %v just after it failed", k)
	}
	p.carrier.tried[transport.SCTPUDP] = failure{time.Now().Add(-time.Minute), time.Minute, "no route"}
	if k := picked(); k != transport.SCTPUDP {
		t.Errorf("picked %v long after it failed", k)
	}
	alpha.d.tried(p, transport.SCTPUDP, errors.New("no route"))
	alpha.d.tried(p, transport.SCTPUDP, nil)
	if k := picked(); k != transport.SCTPUDP {
		t.Errorf("picked %v after it has worked", k)
	}
}

// TestNextBestCarrierHasItsTurnInTheSameAttempt, when one fails that the peer has
// answered on; other failures are nobody's reason to go on.
func TestNextBestCarrierHasItsTurnInTheSameAttempt(t *testing.T) {
	h := newHost(t, "")
	p := newPeer(config.Peer{Name: "beta", Transport: config.TransportAuto})
	broken := errors.New("broken")
	byCarrier := func() error { h.d.tried(p, transport.SCTPUDP, broken); return broken }
	for name, tc := range map[string]struct {
		attempts []func() error
		n        int
		err      error
	}{
		"works":                  {[]func() error{func() error { return nil }}, 1, nil},
		"the second works":       {[]func() error{byCarrier, func() error { return nil }}, 2, nil},
		"not the carrier's":      {[]func() error{func() error { return broken }}, 1, broken},
		"refused in words":       {[]func() error{func() error { h.d.tried(p, transport.SCTPUDP, &rtrs.RefusedError{}); return broken }}, 1, broken},
		"every one of them":      {[]func() error{byCarrier, byCarrier, byCarrier, byCarrier}, 3, broken},
		"the second for another": {[]func() error{byCarrier, func() error { return broken }}, 2, broken},
	} {
		n := 0
		err := p.eachCarrier(t.Context(), func() error { n++; return tc.attempts[n-1]() })
		if n != tc.n || !errors.Is(err, tc.err) {
			t.Errorf("%s: %d attempts, %v; want %d, %v", name, n, err, tc.n, tc.err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	if err := p.eachCarrier(over, func() error { n++; return byCarrier() }); n != 1 || !errors.Is(err, broken) {
		t.Errorf("with nobody who waits: %d attempts, %v", n, err)
	}
}
