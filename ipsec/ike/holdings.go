package ike

import (
	"context"
	"crypto/x509"
	"slices"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// Holdings are what charon has been given, by whomever.
type Holdings struct {
	conns, shared, keys, authorities map[string]bool
	certs                            map[string]bool // DER
}

// Holdings asks charon; with certs for the authorities' certificates, too. It fails as
// charon.Conn.Call does.
func (l *Session) Holdings(ctx context.Context, certs bool) (have Holdings, err error) {
	for _, q := range []struct {
		cmd, key string
		into     *map[string]bool
	}{{"get-conns", "conns", &have.conns}, {"get-shared", "keys", &have.shared}, {"get-keys", "keys", &have.keys}, {"get-authorities", "authorities", &have.authorities}} {
		answer, err := l.ask(ctx, q.cmd, "what strongSwan has", charon.Section())
		if err != nil {
			return have, err
		}
		*q.into = map[string]bool{}
		for _, name := range charon.List(answer, q.key) {
			(*q.into)[name] = true
		}
	}
	if certs {
		have.certs, err = l.caCerts(ctx)
	}
	return have, err
}

// caCerts lists the certificates of authorities.
func (l *Session) caCerts(ctx context.Context) (map[string]bool, error) {
	all := map[string]bool{}
	err := l.inTurn(ctx, &l.query, l.timeout, func(ctx context.Context, c *charon.Conn) error {
		_, err := c.Call(ctx, "list-certs", "certificates", charon.Section("type", "X509", "flag", "CA"), func(ev vici.Event) {
			if ev.Name == "list-cert" && len(all) < charon.MaxListed {
				all[charon.Str(ev.Message, "data")] = true
			}
		})
		return err
	})
	return all, err
}

// Missing names what charon no longer has of what it was given for a peer.
func (l *Session) Missing(p *pad.Peer, have Holdings) (what []string) {
	if !have.conns[p.Name] {
		what = append(what, "connection")
	}
	if p.Cert == nil {
		if !have.shared[secretName(p.Name)] {
			what = append(what, "pre-shared key")
		}
		return what
	}
	l.certsMu.Lock()
	key := l.certs[p.Name].key
	l.certsMu.Unlock()
	if !have.keys[key] {
		what = append(what, "private key")
	}
	lost := slices.ContainsFunc(p.Cert.Intermediates(), func(c *x509.Certificate) bool { return !have.certs[string(c.Raw)] })
	for i := range p.CAs {
		lost = lost || !have.authorities[authorityName(p.Name, i)] || !have.certs[string(p.CAs[i].Certificate().Raw)]
	}
	if lost {
		what = append(what, "authorities")
	}
	return what
}
