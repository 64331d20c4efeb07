package daemon

import (
	"crypto/sha256"
	"encoding/binary"
	"os"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
)

// credentials are what this host proves itself to a peer with, and what it
// judges the peer by.
type credentials struct {
	psk  ipsec.Secret
	cert *ipsec.Credential
	cas  []ipsec.Authority
	sum  [sha256.Size]byte // of the files of certificates
}

// loadCredentials reads the files that a peer's declaration names.
func loadCredentials(c config.Peer) (k credentials, err error) {
	if c.Auth != config.AuthCert {
		k.psk, err = ipsec.LoadSecret(c.PSKFile)
		return k, err
	}
	if k.cert, err = ipsec.LoadCredential(c.CertFile, c.KeyFile); err != nil {
		return credentials{}, err
	}
	for _, file := range c.CAFiles {
		ca, err := ipsec.LoadAuthority(file)
		if err != nil {
			return credentials{}, err
		}
		ca.CRLURIs, ca.OCSPURIs = c.CRLURIs, c.OCSPURIs
		k.cas = append(k.cas, ca)
	}
	k.sum, err = sumFiles(append([]string{c.CertFile, c.KeyFile}, c.CAFiles...))
	return k, err
}

// sumFiles tells whether files have changed.
func sumFiles(names []string) (sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			return sum, err
		}
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
		h.Write(data)
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// empty reports whether nothing was ever loaded.
func (k *credentials) empty() bool { return k.psk.IsZero() && k.cert == nil }

func (k *credentials) equal(o *credentials) bool { return k.psk.Equal(o.psk) && k.sum == o.sum }
