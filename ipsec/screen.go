package ipsec

import (
	"slices"

	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// Screen implements transport.Screener: it refuses a flow of no peer, one of a
// peer whose guard is not in place yet, and one of a peer that is blocked. It takes no lock
// that is held for long, and asks nobody.
func (m *Manager) Screen(f transport.Flow) error {
	f = unmapped(f)
	m.mu.Lock()
	peers := m.byAddr[f.Remote.Addr()]
	m.mu.Unlock()
	for _, p := range peers {
		switch {
		case f.Local.Addr() != p.local && f.Local.Addr().IsValid() && !f.Local.Addr().IsUnspecified() || p.laneOf(f, false) == nil:
		case !p.ready.Load():
			return &AdmitError{Flow: f, Peer: p.name, Kind: guard.ErrUntested}
		default:
			return m.screenBlocked(p.name, f)
		}
	}
	return &AdmitError{Flow: f, Kind: ErrUnknownPeer}
}

var _ transport.Screener = (*Manager)(nil)

// indexLocked keeps the peers by their addresses.
func (m *Manager) indexLocked(p *peer, add bool) {
	rest := slices.DeleteFunc(slices.Clone(m.byAddr[p.remote]), func(o *peer) bool { return o == p })
	if add {
		rest = append(rest, p)
	}
	if len(rest) == 0 {
		delete(m.byAddr, p.remote)
		return
	}
	m.byAddr[p.remote] = rest
}
