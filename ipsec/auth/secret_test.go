package auth_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

func TestSecretIsNeverShown(t *testing.T) {
	const key = "correct-horse-battery"
	s, err := auth.NewSecret([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	peer := pad.Peer{Name: "beta", PSK: s}
	var log bytes.Buffer
	l := slog.New(slog.NewJSONHandler(&log, nil))
	l.Info("text", "secret", s, "peer", peer, "in", []auth.Secret{s})
	slog.New(slog.NewTextHandler(&log, nil)).Info("text", "secret", s, "peer", peer, "pointer", &s)
	js, err := json.Marshal(map[string]any{"s": s, "p": peer, "ptr": &s})
	if err != nil {
		t.Fatal(err)
	}
	ym, err := yaml.Marshal(struct{ S auth.Secret }{s})
	if err != nil {
		t.Fatal(err)
	}
	shown := []string{log.String(), string(js), string(ym), s.String(), fmt.Sprint(errors.New(s.String()))}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
		shown = append(shown, fmt.Sprintf(verb, s), fmt.Sprintf(verb, peer), fmt.Sprintf(verb, &peer))
	}
	for _, text := range shown {
		for _, leak := range []string{key, "636f7272", "636F7272", "99 111 114"} {
			if strings.Contains(text, leak) {
				t.Errorf("the key is in %q", text)
			}
		}
	}
	if string(s.Reveal()) != key {
		t.Error("Reveal does not give the key")
	}
}

func TestSecretFilesAreCheckedBeforeTheyAreBelieved(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tc := range []struct {
		name, path string
		err        error
		words      string
	}{
		{"readable by others", write("a", "0123456789abcdef\n", 0o644), auth.ErrSecretFile, "chmod 0600"},
		{"readable by the group", write("b", "0123456789abcdef\n", 0o640), auth.ErrSecretFile, "0640"},
		{"writable by others", write("c", "0123456789abcdef\n", 0o602), auth.ErrSecretFile, "chmod 0600"},
		{"short", write("d", "0123456789\n", 0o600), auth.ErrSecretShort, "96 bits"},
		{"empty", write("e", "", 0o600), auth.ErrSecretShort, "0 bytes"},
		{"huge", write("f", strings.Repeat("x", 1<<20), 0o600), auth.ErrSecretFile, "more than 4096"},
		{"binary", write("g", "0123456\x00789abcdef", 0o600), auth.ErrSecretFile, "base64"},
		{"a directory", dir, auth.ErrSecretFile, "regular file"},
		{"missing", filepath.Join(dir, "none"), os.ErrNotExist, "none"},
	} {
		if _, err := auth.LoadSecret(tc.path); !errors.Is(err, tc.err) || !strings.Contains(err.Error(), tc.words) {
			t.Errorf("%s: error %v, want %v with %q", tc.name, err, tc.err, tc.words)
		}
	}
	if os.Geteuid() == 0 { // nobody else gives files away
		path := write("h", "0123456789abcdef\n", 0o600)
		if err := os.Chown(path, 65534, -1); err != nil {
			t.Fatal(err)
		}
		if _, err := auth.LoadSecret(path); !errors.Is(err, auth.ErrSecretFile) || !strings.Contains(err.Error(), "belongs to user 65534") {
			t.Errorf("another user's: %v", err)
		}
	}
	for _, mode := range []os.FileMode{0o600, 0o400} {
		s, err := auth.LoadSecret(write(fmt.Sprint("ok", mode), "0123456789abcdef\n", mode))
		if err != nil || string(s.Reveal()) != "0123456789abcdef" {
			t.Errorf("mode %o: %q, %v", mode, s.Reveal(), err)
		}
	}
	if s, err := auth.NewSecret([]byte("123456789012")); err != nil || s.IsZero() {
		t.Errorf("12 bytes, 96 bits: %v", err)
	}
}

func TestGeneratedSecretIsLongDifferentAndSavedPrivately(t *testing.T) {
	a, b := auth.GenerateSecret(), auth.GenerateSecret()
	if a.Equal(b) || len(a.Reveal()) != 44 {
		t.Errorf("%d characters; equal: %v", len(a.Reveal()), a.Equal(b))
	}
	path := filepath.Join(t.TempDir(), "key")
	if err := a.Save(path); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if c, err := auth.LoadSecret(path); err != nil || !c.Equal(a) {
		t.Errorf("read back: %v", err)
	}
	if err := b.Save(path); !errors.Is(err, os.ErrExist) {
		t.Errorf("saving over a key: %v", err)
	}
}
