package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/ironwarp/ironwarp/ipsec"
)

// SecretPath is where the secret of a peer stands when ironwarp wrote it.
func SecretPath(main, peer string) string {
	return filepath.Join(filepath.Dir(main), "secrets", peer+".psk")
}

// WriteSecret writes the secret of a peer to SecretPath, mode 0600, and returns
// the file's name. An existing file is not replaced: it is ErrExists.
func WriteSecret(main, peer string, s ipsec.Secret) (string, error) {
	path := SecretPath(main, peer)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	err := s.Save(path)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("%s holds a secret already; use it with --psk-file, or remove it: %w", path, ErrExists)
	}
	return path, err
}

// ReplaceSecret writes another secret to a peer's file in one step, mode 0600: a
// reader finds the old one or the new.
func ReplaceSecret(path string, s ipsec.Secret) error {
	if err := WriteFile(path, append(s.Reveal(), '\n')); err != nil {
		return fmt.Errorf("replace the secret: %w", err)
	}
	return nil
}
