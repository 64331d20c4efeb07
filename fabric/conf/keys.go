package conf

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// KeyName is the option that names a key's file.
type KeyName string

// The management keys.
const (
	MKey  KeyName = "m_key"  // opens ports to managers (IBTA 14.2.4)
	SMKey KeyName = "sm_key" // managers know each other by it (14.4.7)
	SAKey KeyName = "sa_key" // requests to the SA are trusted by it (15.4.1)
)

var keyNames = map[KeyName]func(*keys) *mad.Key{
	MKey:  func(k *keys) *mad.Key { return &k.m },
	SMKey: func(k *keys) *mad.Key { return &k.sm },
	SAKey: func(k *keys) *mad.Key { return &k.sa },
}

// publicBase is the m_key from which UFM's manual has the keys of ports derived where none is set, and
// OpenSM's default of sm_key and sa_key.
const publicBase mad.Key = 1

const redacted = "[secret]"

// Keys are the management keys. No way of formatting, logging or encoding them shows one. The zero Keys
// are none.
type Keys struct {
	_ [0]func() // keeps == from comparing pointers
	// Package fmt passes over the methods of what is in an unexported field, and writes what it finds behind
	// one pointer, but not behind two.
	p **keys
}

type keys struct{ m, sm, sa mad.Key }

// NewKeys returns keys; 0 stands for none.
func NewKeys(m, sm, sa mad.Key) Keys {
	p := &keys{m, sm, sa}
	return Keys{p: &p}
}

func (k Keys) get() keys {
	if k.p == nil {
		return keys{}
	}
	return **k.p
}

// M returns the m_key, 0 if there is none.
func (k Keys) M() mad.Key { return k.get().m }

// SM returns the sm_key, 0 if there is none.
func (k Keys) SM() mad.Key { return k.get().sm }

// SA returns the sa_key, 0 if there is none.
func (k Keys) SA() mad.Key { return k.get().sa }

// String does not show the keys.
func (k Keys) String() string { return redacted }

// Format does not write the keys, whatever the verb.
func (k Keys) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redacted) }

// LogValue does not show the keys.
func (k Keys) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText does not show the keys. It does not fail.
func (k Keys) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// NewKey draws a key of 64 random bits: neither 0, which is none, nor 1, which everybody tries.
func NewKey() mad.Key {
	for {
		var b [8]byte
		rand.Read(b[:])
		if k := mad.Key(binary.BigEndian.Uint64(b[:])); k > publicBase {
			return k
		}
	}
}

// portKey derives the key of one port: the first 64 bits of an HMAC-SHA-256 of its GUID under the m_key,
// so that who has learned one port's key opens no other port. UFM hashes both without a secret
// construction.
func portKey(base mad.Key, port mad.GUID) mad.Key {
	mac := hmac.New(sha256.New, binary.BigEndian.AppendUint64(nil, uint64(base)))
	mac.Write(binary.BigEndian.AppendUint64(nil, uint64(port)))
	k := mad.Key(binary.BigEndian.Uint64(mac.Sum(nil)))
	if k == 0 { // would open the port to everybody
		return ^mad.Key(0)
	}
	return k
}

// keyPath is where a key's file is by convention.
func keyPath(config string, name KeyName) string {
	return filepath.Join(filepath.Dir(config), "secrets", "fabric."+string(name))
}

func (c *Config) loadKeys() error {
	var k keys
	var errs []error
	for name, path := range c.KeyFiles {
		key, err := loadKey(name, path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", c.File, name, err))
			continue
		}
		*keyNames[name](&k) = key
	}
	c.Keys = NewKeys(k.m, k.sm, k.sa)
	return errors.Join(errs...)
}

func loadKey(name KeyName, path string) (mad.Key, error) {
	f, err := auth.OpenPrivate(path, string(name))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return 0, fmt.Errorf("read the %s: %w", name, err)
	}
	n, ok := parseNumber(strings.TrimSpace(string(text)))
	if !ok || len(text) > maxKeyFile {
		return 0, fmt.Errorf("%w: %s does not have one number of 64 bits, such as 0x and 16 hexadecimal digits", ErrKey, path)
	}
	if n == 0 {
		return 0, fmt.Errorf("%w: %s has 0, which is no key; for none remove the option %s", ErrKey, path, name)
	}
	return mad.Key(n), nil
}

// KeyPath returns the path of a key's file: that of the configuration or, where that names none, the
// usual one beside fabric.conf, which the configuration then has to name.
func (c *Config) KeyPath(name KeyName) string {
	if path, ok := c.KeyFiles[name]; ok {
		return path
	}
	file := c.File
	if file == "" {
		file = Path
	}
	return keyPath(file, name)
}

// WriteKey replaces a key's file, in one step and with mode 0600, and makes its directory. The keys of c
// stay as they are; [Load] reads the new one. It fails with [ErrKey] for 0 and with the file system's
// error, after which the file has the old key or the new.
func (c *Config) WriteKey(name KeyName, key mad.Key) error {
	if key == 0 {
		return fmt.Errorf("write the %s: %w: 0 is no key", name, ErrKey)
	}
	path := c.KeyPath(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("write the %s: %w", name, err)
	}
	if err := wholefile.Write(path, fmt.Appendf(nil, "%#016x\n", uint64(key))); err != nil {
		return fmt.Errorf("write the %s: %w", name, err)
	}
	return nil
}
