package config

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Secret is a pre-shared key. Whatever prints it prints that it is secret.
type Secret []byte

// String hides the secret.
func (Secret) String() string { return "[secret]" }

// GoString hides the secret.
func (Secret) GoString() string { return "[secret]" }

// MarshalText hides the secret from JSON and logs.
func (Secret) MarshalText() ([]byte, error) { return []byte("[secret]"), nil }

// Weak reports whether the secret is short enough for guessing to be a worry.
func (s Secret) Weak() bool { return len(s) < WeakPSK }

// NewSecret makes a secret of 32 random bytes, written in base64.
func NewSecret() Secret {
	raw := make([]byte, 32)
	rand.Read(raw)
	return base64.StdEncoding.AppendEncode(nil, raw)
}

// SecretPath is where the secret of a peer stands when ironwarp wrote it.
func SecretPath(main, peer string) string {
	return filepath.Join(filepath.Dir(main), "secrets", peer+".psk")
}

// ReadSecret reads the secret from a file: its content without the line end. A
// file that others may read, or that someone else owns, is ErrSecret.
func ReadSecret(path string) (Secret, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: %s does not exist: write the secret into it, mode 0600", ErrSecret, path)
		}
		return nil, fmt.Errorf("%w: %w", ErrSecret, err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSecret, err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrSecret, path)
	}
	if perm := st.Mode().Perm(); perm&0o077 != 0 {
		return nil, fmt.Errorf("%w: %s has mode %#o, so others may have read it: make a new secret, or run `chmod 600 %s` if you are sure", ErrSecret, path, perm, path)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && sys.Uid != 0 && int(sys.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%w: %s belongs to user id %d: run `chown root %s`", ErrSecret, path, sys.Uid, path)
	}
	s, err := ReadSecretFrom(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrSecret, path, err)
	}
	return s, nil
}

// ReadSecretFrom reads a secret from a stream, such as standard input.
func ReadSecretFrom(r io.Reader) (Secret, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxPSK+3))
	if err != nil {
		return nil, err
	}
	data = bytes.TrimSuffix(bytes.TrimSuffix(data, []byte("\n")), []byte("\r"))
	switch {
	case len(data) < MinPSK:
		return nil, fmt.Errorf("the secret has %d bytes; at least %d are needed (`ironwarp peer add --generate-psk` makes a good one)", len(data), MinPSK)
	case len(data) > MaxPSK:
		return nil, fmt.Errorf("the secret has more than %d bytes", MaxPSK)
	case bytes.ContainsAny(data, "\n\x00"):
		return nil, errors.New("the secret has more than one line")
	}
	return data, nil
}

// WriteSecret writes the secret of a peer to SecretPath, mode 0600, and returns
// the file's name. An existing file is not replaced: it is ErrExists.
func WriteSecret(main, peer string, s Secret) (string, error) {
	path := SecretPath(main, peer)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); err == nil {
		return "", fmt.Errorf("%s holds a secret already; use it with --psk-file, or remove it: %w", path, ErrExists)
	}
	return path, WriteFile(path, append(bytes.Clone(s), '\n'))
}
