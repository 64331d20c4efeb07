package ikematrix

import (
	"fmt"
	"path/filepath"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pki"
)

// credentials are the hosts' certificates, one of each kind: it has all of the host's
// names. Every kind has an authority of its own, and is made when it is first needed.
type credentials struct {
	dir  string
	made map[string]*credential
}

type credential struct {
	authority   auth.Authority
	alpha, beta *auth.Credential
}

func (c *credentials) of(kind string, alpha, beta *host) (*credential, error) {
	if made := c.made[kind]; made != nil {
		return made, nil
	}
	key := map[string]pki.KeyType{rsa: pki.RSA, ecdsa: pki.ECDSA}[kind]
	ca, err := pki.Init(filepath.Join(c.dir, kind), pki.Options{Name: kind + " authority", Key: key})
	if err != nil {
		return nil, err
	}
	made := &credential{}
	if made.authority, err = auth.LoadAuthority(ca.CertFile()); err != nil {
		return nil, err
	}
	for h, to := range map[*host]**auth.Credential{alpha: &made.alpha, beta: &made.beta} {
		is, err := ca.Issue(pki.Request{Name: h.Name(), SANs: sans(h), Key: key})
		if err != nil {
			return nil, err
		}
		if *to, err = auth.LoadCredential(is.CertFile, is.KeyFile); err != nil {
			return nil, err
		}
	}
	c.made[kind] = made
	return made, nil
}

// sans are the names of a host: those that Case.identities gives it.
func sans(h *host) []string {
	return []string{h.Name() + domain, h.Name() + mailDomain, h.Addr().String(), h.Addr6().String()}
}

// install puts certificates of a kind into the hosts' settings for each other.
func (m *matrix) install(kind string, a, b *pad.Peer) error {
	made, err := m.creds.of(kind, m.alpha, m.beta)
	if err != nil {
		return fmt.Errorf("make %s certificates: %w", kind, err)
	}
	a.Cert, b.Cert = made.alpha, made.beta
	a.CAs, b.CAs = []auth.Authority{made.authority}, []auth.Authority{made.authority}
	return nil
}
