package ipsec

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// Others can take from charon what it was given here: `swanctl --load-all`, which
// Debian's unit runs whenever strongSwan is started or reloaded, unloads every
// connection, key and authority that is not in swanctl.conf, and
// `swanctl --load-creds --clear` every credential. SAs live on, so that nothing
// shows until the next one is due. charon reports the unloading of keys in its log
// and that of connections not at all: so it is asked.

// saidUnloaded begins what charon logs when a key is unloaded.
const saidUnloaded = "unloaded "

// holdings are what charon has of everybody's.
type holdings struct {
	conns, shared, keys, authorities map[string]bool
	certs                            map[string]bool // DER
}

// holdings asks charon; with certs for the authorities' certificates, too.
func (l *link) holdings(ctx context.Context, certs bool) (have holdings, err error) {
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
func (l *link) caCerts(ctx context.Context) (map[string]bool, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.CallTimeout)
	defer cancel()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]bool{}
	_, err := l.query.Call(ctx, "list-certs", "certificates", charon.Section("type", "X509", "flag", "CA"), func(ev vici.Event) {
		if ev.Name == "list-cert" && len(all) < charon.MaxListed {
			all[charon.Str(ev.Message, "data")] = true
		}
	})
	l.judge(err)
	return all, err
}

// missing names what charon no longer has of what it was given for a peer.
func (l *link) missing(p *pad.Peer, have holdings) (what []string) {
	if !have.conns[p.Name] {
		what = append(what, "connection")
	}
	if p.Cert == nil {
		if !have.shared[secretName(p.Name)] {
			what = append(what, "pre-shared key")
		}
		return what
	}
	l.certs.Lock()
	key := l.certs.of[p.Name].key
	l.certs.Unlock()
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

// seekLosses has charon's connections and credentials compared with the peers',
// and what is missing loaded again. Calls that come faster share.
func (m *Manager) seekLosses() *flight[struct{}] {
	fl, start := m.losses.join()
	if start && !m.goWork(func() { m.losses.loop(m.reloadLost) }) {
		m.losses.loop(func() (struct{}, error) { return struct{}{}, ErrClosed })
	}
	return fl
}

// reloadLost looks once more a little later if something was missing: swanctl
// unloads credentials first and connections after them.
func (m *Manager) reloadLost() (struct{}, error) {
	n, err := m.reloadOnce()
	if n == 0 {
		m.relook.reset()
		return struct{}{}, err
	}
	pause := m.relook.next()
	m.goWork(func() {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C:
			m.seekLosses()
		case <-m.ctx.Done():
		}
	})
	return struct{}{}, err
}

// reloadOnce returns how many peers were loaded again.
func (m *Manager) reloadOnce() (n int, _ error) {
	m.editing.Lock()
	defer m.editing.Unlock()
	l := m.currentLink()
	if l == nil {
		return 0, ErrNotConnected
	}
	peers := slices.DeleteFunc(m.allPeers(), func(p *peer) bool { return !p.isLoaded() })
	if len(peers) == 0 {
		return 0, nil
	}
	have, err := l.holdings(m.ctx, slices.ContainsFunc(peers, func(p *peer) bool { return p.config().Cert != nil }))
	if err != nil {
		return 0, err
	}
	for _, p := range peers {
		cfg := p.config()
		what := l.missing(&cfg, have)
		if len(what) == 0 {
			continue
		}
		detail := fmt.Sprintf("strongSwan had lost the peer's %s: it is loaded again; `systemctl reload strongswan` and `swanctl --load-all` unload what is not in swanctl.conf", strings.Join(what, " and "))
		if err := l.load(m.ctx, &cfg); err != nil {
			if m.ctx.Err() != nil || m.currentLink() != l {
				return n, err
			}
			err = fmt.Errorf("strongSwan has lost the peer's %s, and does not take them again: %w", strings.Join(what, " and "), err)
			p.mu.Lock()
			p.failed(err)
			p.mu.Unlock()
			m.note(Event{Kind: EventFailed, Peer: p.name, Detail: err.Error()})
			continue
		}
		n++
		p.mu.Lock()
		p.counters.Reloads++
		p.reloadedAt = time.Now()
		p.mu.Unlock()
		m.note(Event{Kind: EventReloaded, Peer: p.name, Detail: detail})
		p.poke()
	}
	return n, nil
}

// reloadedSince tells whether charon had lost what it was given for the peer, and
// has got it again after the counter of reloads stood at n.
func (p *peer) reloadedSince(ctx context.Context, n uint64) bool {
	_, _ = p.m.seekLosses().wait(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counters.Reloads > n
}

func (p *peer) config() pad.Peer {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg
}
