package invite

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func withSum(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:sumSize]...)
}

// TestGoldenMessages: what other versions of the program expect, byte by byte.
func TestGoldenMessages(t *testing.T) {
	h := hello{id: [8]byte{1, 2, 3, 4, 5, 6, 7, 8}}
	for i := range h.commitment {
		h.commitment[i], h.mac[i] = 0xc0, 0xaa
	}
	s := share{}
	for i := range s.point {
		s.point[i], s.nonce[i], s.mac[i] = 0x10, 0x20, 0x30
	}
	d := details{Host{Name: "alpha", Identity: "a.example", Profile: "rfc7146", Port: 7471, UDPPort: 9899}, here, netip.MustParseAddr("2001:db8::2")}
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"hello", h.append(nil), "010102030405060708" + strings.Repeat("c0", 32) + strings.Repeat("aa", 32)},
		{"share", s.append(nil), strings.Repeat("10", 32) + strings.Repeat("20", 32) + strings.Repeat("30", 32)},
		{"details", d.append(nil), "05616c706861" + "09612e6578616d706c65" + "0772666337313436" + "00" + "1d2f" + "26ab" + "04c0000201" + "1020010db8000000000000000000000002"},
	} {
		if got := hex.EncodeToString(c.got); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	if back, err := parseHello(h.append(nil)); err != nil || back != h {
		t.Errorf("hello: %v, %v", back, err)
	}
	if back, err := parseShare(s.append(nil)); err != nil || back != s {
		t.Errorf("share: %v, %v", back, err)
	}
	if back, err := parseDetails(d.append(nil)); err != nil || back != d {
		t.Errorf("details: %v, %v", back, err)
	}
}

func TestLongestMessagesFit(t *testing.T) {
	long := strings.Repeat("x", maxText)
	d := details{Host{long, long, long, long, 1, 1}, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")}
	if n := 1 + len(d.append(nil)) + 16; n > maxFrame {
		t.Errorf("sealed details have %d bytes; allowed: %d", n, maxFrame)
	}
	at := make([]netip.Addr, MaxAddresses)
	for i := range at {
		at[i] = netip.MustParseAddr("2001:db8::1")
	}
	k := newToken(t, tokenTime, d.host, at...)
	if _, err := ParseToken(k.Reveal()); err != nil {
		t.Error(err)
	}
}

func FuzzHello(f *testing.F) {
	f.Add(hello{}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := parseHello(b); err == nil && !bytes.Equal(h.append(nil), b) {
			t.Fatalf("%x", b)
		}
	})
}

func FuzzShare(f *testing.F) {
	f.Add(share{}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseShare(b); err == nil && !bytes.Equal(s.append(nil), b) {
			t.Fatalf("%x", b)
		}
	})
}

func FuzzDetails(f *testing.F) {
	f.Add(details{alpha, here, there}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseDetails(b)
		if err != nil {
			return
		}
		if !bytes.Equal(d.append(nil), b) {
			t.Fatalf("%x", b)
		}
		for _, s := range []string{d.host.Name, d.host.Identity, d.host.Profile, d.host.Transport} {
			if strings.ContainsAny(s, "\x1b\n\r\x00") {
				t.Fatalf("%q can steer a terminal", s)
			}
		}
	})
}
