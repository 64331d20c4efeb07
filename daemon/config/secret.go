package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/ironwarp/ironwarp/internal/wholefile"
	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// SecretPath is the file to which ironwarp writes the secret of a peer.
func SecretPath(main, peer string) string {
	return filepath.Join(filepath.Dir(main), secretsDir, peer+".psk")
}

// KeptSecret is a file that KeepSecret has written.
type KeptSecret struct {
	Path string

	had []byte // nil: there was none
}

// KeepSecret writes a secret to a file of the peer alone, in one step and with mode
// 0600: SecretPath, or one beside it while another peer has that. A file that
// was there belongs to no other peer. It fails with the file system's error.
func KeepSecret(c *Config, peer string, s auth.Secret) (KeptSecret, error) {
	k := KeptSecret{Path: SecretPath(c.Path, peer)}
	// No peer's name has a tilde.
	for n := 2; c.hasSecret(k.Path, peer); n++ {
		k.Path = SecretPath(c.Path, fmt.Sprintf("%s~%d", peer, n))
	}
	if err := os.MkdirAll(filepath.Dir(k.Path), 0o700); err != nil {
		return KeptSecret{}, err
	}
	had, err := os.ReadFile(k.Path)
	if err == nil {
		k.had = had
	}
	return k, ReplaceSecret(k.Path, s)
}

// hasSecret reports whether a peer other than the named one has its secret in a
// file.
func (c *Config) hasSecret(path, but string) bool {
	return slices.ContainsFunc(c.Peers, func(p Peer) bool { return p.Name != but && sameFile(p.PSKFile, path) })
}

// sameFile reports whether two names are of one file.
func sameFile(a, b string) bool {
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	sa, err := os.Stat(a)
	if err != nil {
		return false
	}
	sb, err := os.Stat(b)
	return err == nil && os.SameFile(sa, sb)
}

// OwnSecret reports whether no other peer uses the file of a peer's secret.
func (c *Config) OwnSecret(p Peer) bool { return !c.hasSecret(p.PSKFile, p.Name) }

// Undo puts back what the file held. It fails with the file system's error.
func (k KeptSecret) Undo() error {
	switch {
	case k.Path == "":
		return nil
	case k.had == nil:
		return os.Remove(k.Path)
	}
	return wholefile.Write(k.Path, k.had)
}

// ReplaceSecret writes another secret to a peer's file in one step, mode 0600: a reader
// finds the old one or the new. It fails with the file system's error.
func ReplaceSecret(path string, s auth.Secret) error {
	if err := wholefile.Write(path, append(s.Reveal(), '\n')); err != nil {
		return fmt.Errorf("replace the secret: %w", err)
	}
	return nil
}
