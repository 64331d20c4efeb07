package charon

import (
	"net/netip"
	"os"
	"testing"

	"github.com/ironwarp/ironwarp/transport"
)

func TestSelectorsOfStrongSwanAreReadAndWritten(t *testing.T) {
	for text, again := range map[string]string{
		"10.99.0.1/32[tcp/7471]":    "",
		"10.99.0.1/32[tcp]":         "",
		"10.99.0.1/32":              "",
		"10.99.0.1":                 "10.99.0.1/32",
		"fd99::1/128[tcp/7471]":     "",
		"0.0.0.0/0":                 "",
		"::/0":                      "",
		"10.0.0.0/8[udp/1000-2000]": "",
		"10.0.0.1..10.0.0.5[sctp]":  "10.0.0.1-10.0.0.5[sctp]",
		"10.0.0.0..10.0.0.255":      "10.0.0.0/24",
		"10.99.0.1/32[132/9]":       "10.99.0.1/32[sctp/9]",
		"10.99.0.1/32[47]":          "",
		"10.99.0.1/32[tcp/http]":    "10.99.0.1/32[tcp/80]",
		"10.99.0.1/32[tcp/0-65535]": "10.99.0.1/32[tcp]",
		"10.99.0.1/32[0/7]":         "10.99.0.1/32[any/7]",
	} {
		s, err := ParseSelector(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if again == "" {
			again = text
		}
		if s.String() != again {
			t.Errorf("%s is written as %s, want %s", text, s, again)
		}
	}
	for _, text := range []string{"", "dynamic", "10.0.0.1/33", "10.0.0.1/24", "10.0.0.5..10.0.0.1", "10.0.0.1..fd99::1", "10.0.0.1[tcp", "10.0.0.1[tcp]x",
		"10.0.0.1/32[tcp/OPAQUE]", "10.0.0.1/32[tcp/9-1]", "10.0.0.1/32[xtp]", "10.0.0.1/32[tcp/70000]", "fe80::1%eth0"} {
		if s, err := ParseSelector(text); err == nil {
			t.Errorf("%q is read as %v", text, s)
		}
	}
}

// A minimal Debian and most containers have neither /etc/protocols nor
// /etc/services, and strongSwan refuses a selector with a name then.
func TestSelectorsAreSentAsNumbers(t *testing.T) {
	for text, want := range map[string]string{
		"10.99.0.1/32[tcp/7471]":    "10.99.0.1/32[6/7471]",
		"fd99::1/128[tcp]":          "fd99::1/128[6]",
		"10.0.0.0/8[udp/1000-2000]": "10.0.0.0/8[17/1000-2000]",
		"10.0.0.1..10.0.0.5[sctp]":  "10.0.0.1-10.0.0.5[132]",
		"10.99.0.1/32":              "10.99.0.1/32",
		"10.99.0.1/32[47]":          "10.99.0.1/32[47]",
	} {
		s, err := ParseSelector(text)
		if err != nil || s.Numeric() != want {
			t.Errorf("%s is sent as %s, want %s (%v)", text, s.Numeric(), want, err)
		}
		if again, err := ParseSelector(s.Numeric()); again != s || err != nil {
			t.Errorf("%s is read as %v, %v", s.Numeric(), again, err)
		}
	}
}

// strongSwan writes the names of the services that its machine knows.
func TestSelectorsWithNamesOfServicesAreRead(t *testing.T) {
	if _, err := os.Stat("/etc/services"); err != nil {
		t.Skipf("%v: apt-get install netbase", err)
	}
	if s, err := ParseSelector("10.99.0.1/32[tcp/iscsi-target]"); err != nil || s.String() != "10.99.0.1/32[tcp/3260]" {
		t.Errorf("%v, %v", s, err)
	}
}

func TestSelectorCoversExactlyItsPackets(t *testing.T) {
	at := netip.MustParseAddrPort
	for _, tc := range []struct {
		sel   string
		proto transport.Protocol
		at    string
		want  bool
	}{
		{"10.99.0.1/32[tcp/7471]", transport.ProtoTCP, "10.99.0.1:7471", true},
		{"10.99.0.1/32[tcp/7471]", transport.ProtoTCP, "10.99.0.1:7472", false},
		{"10.99.0.1/32[tcp/7471]", transport.ProtoTCP, "10.99.0.2:7471", false},
		{"10.99.0.1/32[tcp/7471]", transport.ProtoUDP, "10.99.0.1:7471", false},
		{"10.99.0.1/32[tcp/7471]", transport.ProtoSCTP, "10.99.0.1:7471", false},
		{"10.99.0.1/32[tcp]", transport.ProtoTCP, "10.99.0.1:1", true},
		{"10.99.0.1/32", transport.ProtoSCTP, "10.99.0.1:1", true},
		{"10.99.0.0/24[tcp]", transport.ProtoTCP, "10.99.0.255:1", true},
		{"10.99.0.0/24[tcp]", transport.ProtoTCP, "10.99.1.0:1", false},
		{"10.99.0.1/32[tcp/1000-2000]", transport.ProtoTCP, "10.99.0.1:2000", true},
		{"10.99.0.1/32[tcp/1000-2000]", transport.ProtoTCP, "10.99.0.1:2001", false},
		{"10.0.0.1..10.0.0.5", transport.ProtoTCP, "10.0.0.5:1", true},
		{"10.0.0.1..10.0.0.5", transport.ProtoTCP, "10.0.0.6:1", false},
		{"::/0", transport.ProtoTCP, "10.0.0.6:1", false},
		{"0.0.0.0/0", transport.ProtoTCP, "[fd99::1]:1", false},
		{"10.99.0.1/32[tcp]", transport.ProtoTCP, "[::ffff:10.99.0.1]:1", true},
		{"fd99::1/128[tcp/7471]", transport.ProtoTCP, "[fd99::1]:7471", true},
	} {
		s, err := ParseSelector(tc.sel)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Covers(tc.proto, at(tc.at)); got != tc.want {
			t.Errorf("%s covers %v %s: %v", tc.sel, tc.proto, tc.at, got)
		}
	}
	if (Selector{PortTo: 65535}).Covers(transport.ProtoTCP, at("10.0.0.1:1")) {
		t.Error("a selector without addresses covers something")
	}
}

func FuzzParseSelector(f *testing.F) {
	for _, s := range []string{"10.99.0.1/32[tcp/7471]", "::/0", "10.0.0.1..10.0.0.5[udp/1-2]", "10.0.0.1[tcp/http]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := ParseSelector(text)
		if err != nil {
			return
		}
		again, err := ParseSelector(s.String())
		if err != nil || again != s {
			t.Errorf("%q is %v, which is read as %v, %v", text, s, again, err)
		}
	})
}
