package carrier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/probe"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/ksctp"
	"github.com/ironwarp/ironwarp/verbs"
)

// autoPeer is a peer with transport: auto.
type autoPeer struct {
	Peer
	choice *Choice
}

func newAutoPeer() autoPeer { return autoPeer{choice: NewChoice()} }

func (p autoPeer) Carrier() *Choice { return p.choice }
func (p autoPeer) Declared() config.Peer {
	return config.Peer{Name: "beta", Transport: config.TransportAuto}
}
func (p autoPeer) Protected() (transport.Protector, netip.Addr, error) {
	return transport.LoopbackOnly(), netip.Addr{}, nil
}

// newChooser has peers that are reached over TCP and SCTP in UDP, at these rates.
func newChooser(rate func(transport.Kind) (float64, error)) *Chooser {
	return New(Config{Log: slog.New(slog.DiscardHandler), Avoid: time.Hour, Kernel: func() error { return ksctp.ErrUnavailable },
		Hello: func(context.Context, *local.Consumer, Peer, transport.Kind) (probe.Transports, error) {
			return probe.Transports(0).With(transport.SCTPUDP).With(transport.TCP), nil
		},
		Rate: func(_ context.Context, _ *local.Consumer, _ Peer, k transport.Kind) (float64, error) { return rate(k) },
	})
}

// TestAutoTakesWhatIsFaster: another carrier than TCP, or than the one in use, has
// to be much faster; one that cannot be measured is not taken for that.
func TestAutoTakesWhatIsFaster(t *testing.T) {
	rates := map[transport.Kind]float64{}
	var broken error
	c, p := newChooser(func(k transport.Kind) (float64, error) {
		if k == transport.SCTPUDP && broken != nil {
			return 0, broken
		}
		return rates[k], nil
	}), newAutoPeer()
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
		clear(p.choice.rates) // as after rateValid
		k, err := c.pick(t.Context(), nil, p)
		if got := p.choice.Describe(config.TransportAuto); err != nil || k != step.want || !strings.Contains(got.Why, step.why) {
			t.Errorf("%+v: picked %v, %v; carrier %+v", step, k, err, got)
		}
	}
}

// TestFailedCarrierIsPassedOverForAWhileOnly looks at the rule without waiting.
func TestFailedCarrierIsPassedOverForAWhileOnly(t *testing.T) {
	c, p := newChooser(func(k transport.Kind) (float64, error) { return float64(k + 1), nil }), newAutoPeer()
	picked := func() transport.Kind {
		k, err := c.pick(t.Context(), nil, p)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	c.noteAttempt(p, transport.SCTPUDP, errors.New("no route"))
	if k := picked(); k != transport.TCP {
		t.Errorf("picked %v just after it failed", k)
	}
	p.choice.tried[transport.SCTPUDP] = failure{time.Now().Add(-time.Minute), time.Minute, "no route"}
	if k := picked(); k != transport.SCTPUDP {
		t.Errorf("picked %v long after it failed", k)
	}
	c.noteAttempt(p, transport.SCTPUDP, errors.New("no route"))
	c.noteAttempt(p, transport.SCTPUDP, nil)
	if k := picked(); k != transport.SCTPUDP {
		t.Errorf("picked %v after it has worked", k)
	}
}

// TestNextBestCarrierHasItsTurnInTheSameAttempt, when one fails that the peer has
// answered on; other failures are nobody's reason to go on.
func TestNextBestCarrierHasItsTurnInTheSameAttempt(t *testing.T) {
	c, p := newChooser(nil), newAutoPeer()
	broken := errors.New("broken")
	byCarrier := func() error { c.noteAttempt(p, transport.SCTPUDP, broken); return broken }
	for name, tc := range map[string]struct {
		attempts []func() error
		n        int
		err      error
	}{
		"works":                  {[]func() error{func() error { return nil }}, 1, nil},
		"the second works":       {[]func() error{byCarrier, func() error { return nil }}, 2, nil},
		"not the carrier's":      {[]func() error{func() error { return broken }}, 1, broken},
		"refused in words":       {[]func() error{func() error { c.noteAttempt(p, transport.SCTPUDP, &rtrs.RefusedError{}); return broken }}, 1, broken},
		"every one of them":      {[]func() error{byCarrier, byCarrier, byCarrier, byCarrier}, 3, broken},
		"the second for another": {[]func() error{byCarrier, func() error { return broken }}, 2, broken},
	} {
		n := 0
		err := TryEach(t.Context(), func() error { n++; return tc.attempts[n-1]() }, p.choice)
		if n != tc.n || !errors.Is(err, tc.err) {
			t.Errorf("%s: %d attempts, %v; want %d, %v", name, n, err, tc.n, tc.err)
		}
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	n := 0
	if err := TryEach(over, func() error { n++; return byCarrier() }, p.choice); n != 1 || !errors.Is(err, broken) {
		t.Errorf("with nobody who waits: %d attempts, %v", n, err)
	}
}

func TestQuotaOfAULPIsNoFaultOfTheTransport(t *testing.T) {
	c, p := newChooser(nil), newAutoPeer()
	c.noteAttempt(p, transport.SCTPUDP, fmt.Errorf("dial: %w", &verbs.QuotaError{Resource: "streams", Principal: "ULP alice"}))
	if p.choice.failures() != 0 || p.choice.lastFailure(transport.SCTPUDP).isCurrent() {
		t.Error("others' streams go over something else because a ULP had too many")
	}
	c.noteAttempt(p, transport.SCTPUDP, errors.New("no answer"))
	if p.choice.failures() != 1 {
		t.Error("a transport that does not work is not noted")
	}
}
