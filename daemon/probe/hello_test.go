package probe

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// answering is a listener of a device that answers each request with answer.
func answering(t *testing.T, answer func(private []byte) []byte) (netip.AddrPort, *verbs.ULP) {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ulp, err := dev.NewULP("hello", verbs.ULPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ln, err := dev.Listen(t.Context(), netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: &transport.Config{Protector: transport.LoopbackOnly()}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			cr, err := ln.Accept(context.Background())
			if err != nil {
				return
			}
			if err := cr.Reject(context.Background(), answer(cr.PrivateData())); err != nil {
				t.Errorf("reject: %v", err)
			}
		}
	}()
	t.Cleanup(func() {
		ln.Close()
		<-done
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		if u := dev.Usage(); u != (verbs.Limits{}) {
			t.Errorf("left behind: %+v", u)
		}
	})
	return ln.Addr(), ulp
}

func hello(t *testing.T, ulp *verbs.ULP, to netip.AddrPort) (Transports, error) {
	return Hello(t.Context(), ulp, verbs.DialConfig{Remote: to, Transport: &transport.Config{Protector: transport.LoopbackOnly()}})
}

func TestHelloTellsWhichTransportsThePeerHas(t *testing.T) {
	for _, have := range []Transports{0, Transports(0).With(transport.TCP), Transports(0).With(transport.TCP).With(transport.SCTPUDP), Transports(0).With(transport.SCTP)} {
		at, ulp := answering(t, func(private []byte) []byte {
			if !IsHello(private) {
				t.Errorf("%x is no hello", private)
			}
			return AppendHello(nil, have)
		})
		got, err := hello(t, ulp, at)
		if err != nil || got != have {
			t.Errorf("%v, %v, want %v", got, err, have)
		}
		for _, k := range []transport.Kind{transport.TCP, transport.SCTP, transport.SCTPUDP} {
			if got.Has(k) != strings.Contains(", "+have.String()+",", ", "+k.String()+",") {
				t.Errorf("%v of %q", k, have)
			}
		}
	}
}

func TestHelloToOneThatKnowsNone(t *testing.T) {
	h := newHost(t) // its service takes any request for a measurement
	if _, err := hello(t, h.client, h.addr); !errors.Is(err, ErrNoHello) {
		t.Errorf("error %v", err)
	}
	for name, tc := range map[string]struct {
		answer []byte
		want   string
	}{
		"unknown peer":    {AppendUnknownPeer(nil), "does not know this host"},
		"nothing":         {nil, "without a reason"},
		"too short":       {AppendHello(nil, 7)[:7], "without a reason"},
		"another service": {[]byte("IWrt\x01\x04\x07\x00"), "without a reason"},
		"another version": {[]byte("IWpg\x02\x04\x07\x00"), "reason 4"},
	} {
		at, ulp := answering(t, func([]byte) []byte { return tc.answer })
		if _, err := hello(t, ulp, at); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func TestMeasurementsAreNoHellos(t *testing.T) {
	for _, b := range [][]byte{nil, []byte("IWpg"), appendRequest(nil), AppendHello(nil, 7), []byte("XXpg\x01\x01\x00\x00"), []byte("IWpg\x02\x01\x00\x00")} {
		if IsHello(b) {
			t.Errorf("%x passes for a hello", b)
		}
	}
}
