package invite

import (
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var (
	here  = netip.MustParseAddr("192.0.2.1")
	there = netip.MustParseAddr("192.0.2.2")
	alpha = Host{Name: "alpha", Port: 7471, UDPPort: 9899}
)

func newToken(t testing.TB, expires time.Time, h Host, at ...netip.Addr) Token {
	t.Helper()
	k, err := NewToken(expires, at, 7473, h)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func equal(a, b Token) bool {
	return string(appendToken(nil, a)) == string(appendToken(nil, b))
}

// TestTokenSurvivesCopyAndPaste: line ends of terminals and mail, capitals, and what chat programs add.
func TestTokenSurvivesCopyAndPaste(t *testing.T) {
	want := newToken(t, time.Unix(1790000000, 0), Host{Name: "alpha", Identity: "alpha.example", Profile: "rfc7146", Transport: "auto", Port: 7471, UDPPort: 9899}, here, netip.MustParseAddr("2001:db8::1"))
	text := want.Reveal()
	var broken, grouped strings.Builder
	for i, r := range text {
		if i%20 == 0 {
			broken.WriteString("\r\n ")
		}
		if i%5 == 0 && i > 0 {
			grouped.WriteByte('-')
		}
		broken.WriteRune(r)
		grouped.WriteRune(r)
	}
	for name, form := range map[string]string{"as printed": text, "capitals": strings.ToUpper(text), "broken lines": broken.String(), "grouped": grouped.String(), "around it": "\n\t" + text + "\r\n"} {
		got, err := ParseToken(form)
		if err != nil || !equal(got, want) || got.Inviter != want.Inviter || !got.Expires.Equal(want.Expires) || got.Addresses[1] != want.Addresses[1] || got.Port != want.Port {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(newToken(t, time.Unix(1790000000, 0), alpha, here).Reveal()); n > 120 {
		t.Errorf("a token has %d characters: two lines of a terminal are too short", n)
	}
}

// TestTokenWithAMistakeIsRefused: each character of a token that is another one, or missing.
func TestTokenWithAMistakeIsRefused(t *testing.T) {
	text := newToken(t, time.Unix(1790000000, 0), alpha, here).Reveal()
	for i := range text {
		other := "a"
		if text[i] == 'a' {
			other = "b"
		}
		for _, bad := range []string{text[:i] + other + text[i+1:], text[:i] + text[i+1:], text[:i]} {
			_, err := ParseToken(bad)
			if !errors.Is(err, ErrToken) && !errors.Is(err, ErrTokenVersion) {
				t.Fatalf("character %d: %v", i, err)
			}
			if i > 10 && strings.Contains(err.Error(), text[3:10]) {
				t.Errorf("the error shows the token: %v", err)
			}
		}
	}
	for _, bad := range []string{"", "iw1", "iw2aaaa", "IW", "hello", strings.Repeat("a", 1<<20), tokenPrefix + strings.Repeat("a", maxToken+1), tokenPrefix + "ä"} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("%.20q is taken", bad)
		}
	}
	if _, err := ParseToken("iw2" + text[3:]); !errors.Is(err, ErrTokenVersion) {
		t.Errorf("another version: %v", err)
	}
}

// TestTokenThatNoHostMakesIsRefused: what is right by its checksum alone.
func TestTokenThatNoHostMakesIsRefused(t *testing.T) {
	expires := time.Unix(1790000000, 0)
	for name, bad := range map[string]func(*Token){
		"no address": func(k *Token) { k.Addresses = nil },
		"many addresses": func(k *Token) {
			k.Addresses = make([]netip.Addr, 0)
			for range 9 {
				k.Addresses = append(k.Addresses, here)
			}
		},
		"multicast":        func(k *Token) { k.Addresses = []netip.Addr{netip.MustParseAddr("224.0.0.1")} },
		"unspecified":      func(k *Token) { k.Addresses = []netip.Addr{netip.IPv4Unspecified()} },
		"IPv4 in IPv6":     func(k *Token) { k.Addresses = []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.1")} },
		"link-local":       func(k *Token) { k.Addresses = []netip.Addr{here, netip.MustParseAddr("fe80::1")} },
		"IPv4 link-local":  func(k *Token) { k.Addresses = []netip.Addr{netip.MustParseAddr("169.254.0.1")} },
		"no port":          func(k *Token) { k.Port = 0 },
		"no time":          func(k *Token) { k.Expires = time.Unix(0, 0) },
		"escape sequence":  func(k *Token) { k.Inviter.Name = "\x1b[2Jalpha" },
		"reversed writing": func(k *Token) { k.Inviter.Identity = "alpha\u202e" },
		"no port of links": func(k *Token) { k.Inviter.Port = 0 },
	} {
		k := newToken(t, expires, alpha, here)
		bad(&k)
		if _, err := ParseToken(k.Reveal()); err == nil {
			t.Errorf("%s: taken", name)
		}
		if _, err := NewToken(k.Expires, k.Addresses, k.Port, k.Inviter); err == nil {
			t.Errorf("%s: made", name)
		}
	}
}

// TestTokenIsNeverShown: by no way of formatting, logging or encoding.
func TestTokenIsNeverShown(t *testing.T) {
	k := newToken(t, time.Unix(1790000000, 0), alpha, here)
	type holder struct{ k Token }
	var out strings.Builder
	for _, v := range []any{k, &k, holder{k}, []Token{k}, map[string]Token{"a": k}} {
		for _, f := range []string{"%v", "%+v", "%#v", "%s", "%x", "%q", "%d"} {
			fmt.Fprintf(&out, f+"\n", v)
		}
		slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&out, nil)).Info("x", "v", v)
		_ = json.NewEncoder(&out).Encode(v)
	}
	shown := out.String()
	key := (**k.key)[:]
	for _, secret := range []string{string(key), fmt.Sprintf("%x", key), fmt.Sprintf("%X", key), fmt.Sprint(key), strings.Trim(fmt.Sprint(key), "[]"), k.Reveal(), strings.ToLower(base32.StdEncoding.EncodeToString(key)[:20])} {
		if strings.Contains(shown, secret) {
			t.Errorf("%q is shown", secret)
		}
	}
	if strings.Count(shown, "[secret]") < 20 {
		t.Errorf("%s", shown)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(newToken(f, time.Unix(1790000000, 0), alpha, here).Reveal())
	f.Add("iw1")
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseToken(text)
		if err != nil {
			return
		}
		again, err := ParseToken(k.Reveal())
		if err != nil || !equal(again, k) {
			t.Fatalf("%q: %v", text, err)
		}
	})
}

// FuzzToken is about what is behind a right checksum.
func FuzzToken(f *testing.F) {
	whole := appendToken(nil, newToken(f, time.Unix(1790000000, 0), alpha, here))
	f.Add(whole[:len(whole)-sumSize])
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) == 0 {
			return
		}
		b := withSum(body)
		k, err := parseToken(b)
		if err != nil {
			return
		}
		if again := appendToken(nil, k); string(again) != string(b) {
			t.Fatalf("%x is also %x", b, again)
		}
	})
}
