package ipsec

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// Others can take from charon what it was given here: `swanctl --load-all`, which
// Debian's unit runs whenever strongSwan is started or reloaded, unloads every
// connection, key and authority that is not in swanctl.conf, and
// `swanctl --load-creds --clear` every credential. SAs live on, so that nothing
// shows until the next one is due. charon reports the unloading of keys in its log
// and that of connections not at all: so it is asked.

// seekLosses has charon's connections and credentials compared with the peers',
// and what is missing loaded again. Calls that come faster share.
func (m *Manager) seekLosses() *flight[struct{}] { return m.losses.join() }

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
		if sleep(m.ctx, pause) {
			m.seekLosses()
		}
	})
	return struct{}{}, err
}

// reloadOnce returns how many peers were loaded again.
func (m *Manager) reloadOnce() (n int, _ error) {
	m.editing.Lock()
	defer m.editing.Unlock()
	l := m.currentSession()
	if l == nil {
		return 0, ErrNotConnected
	}
	peers := slices.DeleteFunc(m.allPeers(), func(p *peer) bool { return !p.isLoaded() })
	if len(peers) == 0 {
		return 0, nil
	}
	have, err := l.Holdings(m.ctx, slices.ContainsFunc(peers, func(p *peer) bool { return p.config().Cert != nil }))
	if err != nil {
		return 0, err
	}
	for _, p := range peers {
		cfg := p.config()
		what := l.Missing(&cfg, have)
		if len(what) == 0 {
			continue
		}
		detail := fmt.Sprintf("strongSwan had lost the peer's %s: it is loaded again; `systemctl reload strongswan` and `swanctl --load-all` unload what is not in swanctl.conf", strings.Join(what, " and "))
		if err := l.Load(m.ctx, &cfg); err != nil {
			if m.ctx.Err() != nil || m.currentSession() != l {
				return n, err
			}
			err = fmt.Errorf("strongSwan has lost the peer's %s, and does not take them again: %w", strings.Join(what, " and "), err)
			p.mu.Lock()
			p.failedLocked(err)
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

// reloadedSince reports whether charon had lost what it was given for the peer, and
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
