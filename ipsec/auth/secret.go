package auth

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
)

// ErrSecretFile means that a file of a pre-shared or private key was refused.
var ErrSecretFile = errors.New("secret file refused")

// ErrSecretShort means that a pre-shared key has too little material.
var ErrSecretShort = errors.New("pre-shared key too short")

const (
	// minSecretBytes is the least material of a pre-shared key: 96 bits, below
	// which guessing offline against a recorded handshake comes into reach.
	minSecretBytes = 12
	// generatedSecretBytes is what GenerateSecret draws.
	generatedSecretBytes = 32
	// maxSecretBytes keeps a wrong file (a disk image, /dev/zero) out of memory
	// and a VICI value within its 16-bit length.
	maxSecretBytes = 4096
)

// redacted is what every way of printing a Secret gives.
const redacted = "[secret]"

// Secret is a pre-shared key. No way of formatting, logging or encoding it
// shows it. Compare with Equal.
type Secret struct {
	_ [0]func() // keeps == from comparing pointers
	// Where a Secret is in an unexported field, package fmt passes over the methods
	// below and writes what it finds, behind one pointer as well, but not behind
	// two.
	p **[]byte
}

func secretOf(key []byte) Secret {
	p := &key
	return Secret{p: &p}
}

func (s Secret) bytes() []byte {
	if s.p == nil {
		return nil
	}
	return **s.p
}

// NewSecret takes key as it is, without a trailing line end. It fails with
// ErrSecretShort at fewer than 12 bytes, 96 bits, and with ErrSecretFile at too many or
// a zero byte.
func NewSecret(key []byte) (Secret, error) {
	key = bytes.TrimRight(key, "\r\n")
	if len(key) < minSecretBytes {
		return Secret{}, fmt.Errorf("%w: %d bytes, at least %d (96 bits) are needed; generate one of 32 random bytes: head -c 32 /dev/urandom | base64",
			ErrSecretShort, len(key), minSecretBytes)
	}
	if len(key) > maxSecretBytes {
		return Secret{}, fmt.Errorf("%w: more than %d bytes", ErrSecretFile, maxSecretBytes)
	}
	if bytes.IndexByte(key, 0) >= 0 {
		return Secret{}, fmt.Errorf("%w: it has a zero byte; keep the key as text, such as base64", ErrSecretFile)
	}
	return secretOf(bytes.Clone(key)), nil
}

// GenerateSecret draws 32 random bytes and returns them in base64, 44
// characters.
func GenerateSecret() Secret {
	var b [generatedSecretBytes]byte
	rand.Read(b[:])
	return secretOf(base64.StdEncoding.AppendEncode(nil, b[:]))
}

// ReadSecret reads a pre-shared key, for example from standard input. It fails as
// NewSecret does, and with r's error.
func ReadSecret(r io.Reader) (Secret, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxSecretBytes+2))
	if err != nil {
		return Secret{}, fmt.Errorf("read the pre-shared key: %w", err)
	}
	return NewSecret(b)
}

// LoadSecret reads a pre-shared key from a file of mode 0600 or less that belongs to
// this user or root (RFC 3723 2.3.3: access to a locally stored pre-shared key must be
// suitably restricted). It fails as NewSecret does, with ErrSecretFile at any other
// file, and with the file system's error.
func LoadSecret(path string) (Secret, error) {
	f, err := OpenPrivate(path, "pre-shared key")
	if err != nil {
		return Secret{}, err
	}
	defer f.Close()
	s, err := ReadSecret(f)
	if err != nil {
		return Secret{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// OpenPrivate opens a secret's file of mode 0600 or less that belongs to this user or root; what
// names the secret in errors. It fails with ErrSecretFile at any other file, and with the file
// system's error.
func OpenPrivate(path, what string) (_ *os.File, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	// Judged on the open file, so that it cannot be exchanged in between.
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("read the %s: %w", what, err)
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is not a regular file", ErrSecretFile, path)
	}
	if mode := st.Mode().Perm(); mode&0o077 != 0 {
		return nil, fmt.Errorf("%w: %s has mode %04o, others on this host may read it: chmod 0600 %s, and make a new key if somebody may have seen it",
			ErrSecretFile, path, mode, path)
	}
	if uid, ok := ownerOf(st); ok && uid != 0 && uid != uint32(os.Geteuid()) {
		return nil, fmt.Errorf("%w: %s belongs to user %d: chown root %s", ErrSecretFile, path, uid, path)
	}
	return f, nil
}

// Save writes the key to a new file of mode 0600; it does not replace one. It fails
// with the file system's error.
func (s Secret) Save(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("save the pre-shared key: %w", err)
	}
	_, err = f.Write(append(bytes.Clone(s.bytes()), '\n'))
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("save the pre-shared key: %w", errors.Join(err, os.Remove(path)))
	}
	return nil
}

// IsZero reports whether there is no key.
func (s Secret) IsZero() bool { return len(s.bytes()) == 0 }

// Equal reports whether two keys are the same.
func (s Secret) Equal(o Secret) bool { return bytes.Equal(s.bytes(), o.bytes()) }

// Reveal returns the key, for handing it to the other host. It is the only way
// to get at it.
func (s Secret) Reveal() []byte { return bytes.Clone(s.bytes()) }

// String does not show the key.
func (s Secret) String() string { return redacted }

// GoString does not show the key.
func (s Secret) GoString() string { return redacted }

// Format does not write the key, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue does not show the key.
func (s Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText does not show the key, to JSON, YAML and the like. It does not fail.
func (s Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// MarshalJSON does not show the key. It does not fail.
func (s Secret) MarshalJSON() ([]byte, error) { return []byte(`"` + redacted + `"`), nil }
