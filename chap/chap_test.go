package chap

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

var (
	secret = []byte("initiator's secret")
	own    = []byte("the target's secret")
)

func exchange(t *testing.T, c *Credentials) (*Exchange, Algorithm, uint8, []byte) {
	t.Helper()
	x := &Exchange{Find: func(name string) *Credentials {
		if c != nil && name == c.Name {
			return c
		}
		return nil
	}}
	a, id, ch, err := x.Challenge([]Algorithm{6, MD5, SHA256})
	if err != nil || a != MD5 || len(ch) < 16 {
		t.Fatal(a, ch, err)
	}
	return x, a, id, ch
}

func TestResponseIsThatOfRFC1994(t *testing.T) {
	sum := md5.Sum([]byte("\x07secretchallenge"))
	if got := Response(MD5, 7, []byte("secret"), []byte("challenge")); !bytes.Equal(got, sum[:]) {
		t.Errorf("%x", got)
	}
	if got := Response(SHA256, 7, []byte("secret"), []byte("challenge")); len(got) != 32 || bytes.Equal(got[:16], sum[:]) {
		t.Errorf("%x", got)
	}
}

func TestRightAndWrongSecrets(t *testing.T) {
	c := &Credentials{Name: "alice", Secret: secret}
	x, a, id, ch := exchange(t, c)
	if got, _, _, err := x.Verify("alice", Response(a, id, secret, ch), nil); err != nil || got != c {
		t.Error(got, err)
	}
	if _, _, _, err := x.Verify("alice", Response(a, id, secret, ch), nil); !errors.Is(err, ErrFailed) {
		t.Error("a challenge is good twice")
	}
	for name, response := range map[string]func(a Algorithm, id uint8, ch []byte) []byte{
		"another secret":    func(a Algorithm, id uint8, ch []byte) []byte { return Response(a, id, own, ch) },
		"another id":        func(a Algorithm, id uint8, ch []byte) []byte { return Response(a, id+1, secret, ch) },
		"another challenge": func(a Algorithm, id uint8, ch []byte) []byte { return Response(a, id, secret, append(ch, 0)) },
		"another algorithm": func(a Algorithm, id uint8, ch []byte) []byte { return Response(SHA256, id, secret, ch) },
		"nothing":           func(Algorithm, uint8, []byte) []byte { return nil },
	} {
		x, a, id, ch := exchange(t, c)
		if _, _, _, err := x.Verify("alice", response(a, id, ch), nil); !errors.Is(err, ErrFailed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	x, a, id, ch = exchange(t, c)
	if _, _, _, err := x.Verify("bob", Response(a, id, make([]byte, MinSecret), ch), nil); !errors.Is(err, ErrFailed) {
		t.Error("somebody unknown is let in by the secret that stands in for his")
	}
}

func TestMutual(t *testing.T) {
	c := &Credentials{Name: "alice", Secret: secret, OwnName: "target", OwnSecret: own}
	x, a, id, ch := exchange(t, c)
	peer := &Peer{9, []byte("who are you?")}
	_, name, resp, err := x.Verify("alice", Response(a, id, secret, ch), peer)
	if err != nil || name != "target" || !bytes.Equal(resp, Response(MD5, 9, own, peer.Challenge)) {
		t.Error(name, resp, err)
	}

	x, a, id, ch = exchange(t, c)
	if _, _, resp, err := x.Verify("alice", Response(a, id, secret, ch), &Peer{id, ch}); !errors.Is(err, ErrFailed) || resp != nil {
		t.Error("a reflected challenge is answered")
	}
	x, a, id, ch = exchange(t, &Credentials{Name: "alice", Secret: secret})
	if _, _, _, err := x.Verify("alice", Response(a, id, secret, ch), peer); !errors.Is(err, ErrFailed) {
		t.Error("a target without a secret of its own answers")
	}
	// RFC 7143 section 9.2.1: the response that this end would have generated.
	x, a, id, ch = exchange(t, &Credentials{Name: "alice", Secret: secret, OwnSecret: secret})
	if _, _, _, err := x.Verify("alice", Response(a, id, secret, ch), nil); !errors.Is(err, ErrFailed) {
		t.Error("one secret for both directions is good enough")
	}
}

func TestSecretsAreChecked(t *testing.T) {
	for name, c := range map[string]struct {
		c    Credentials
		want error
	}{
		"one way":   {Credentials{Secret: secret}, nil},
		"mutual":    {Credentials{Secret: secret, OwnSecret: own}, nil},
		"none":      {Credentials{}, ErrSecret},
		"short":     {Credentials{Secret: secret[:11]}, ErrSecret},
		"own only":  {Credentials{OwnSecret: own}, ErrSecret},
		"own short": {Credentials{Secret: secret, OwnSecret: own[:3]}, ErrSecret},
		"long":      {Credentials{Secret: make([]byte, MaxSecret+1)}, ErrSecret},
		"equal":     {Credentials{Secret: secret, OwnSecret: secret}, ErrEqual},
	} {
		if err := c.c.Check(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := CheckAll([]Credentials{{Name: "a", Secret: secret}, {Name: "b", Secret: own}}); err != nil {
		t.Error(err)
	}
	if err := CheckAll([]Credentials{{Name: "a", Secret: secret}, {Name: "b", Secret: []byte("another secret"), OwnSecret: secret}}); !errors.Is(err, ErrEqual) {
		t.Errorf("b can have the target compute what authenticates a: %v", err)
	}
	if g := Generate(); len(g) != 32 || g == Generate() || strings.Trim(g, "0123456789abcdef") != "" {
		t.Error(g)
	}
	if b, err := hex.DecodeString(Generate()); err != nil || (&Credentials{Secret: b}).Check() != nil {
		t.Error("a generated secret is refused")
	}
	var x Exchange
	if _, _, _, err := x.Challenge([]Algorithm{6, 8}); !errors.Is(err, ErrAlgorithm) {
		t.Error(err)
	}
}
