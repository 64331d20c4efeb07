package ipsec

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// Blocked returns what the guards have stopped. It fails with the kernel's error.
func (m *Manager) Blocked() (guard.Blocked, error) { return guard.CountBlocked(m.cfg.NetNS) }

// SelfTest tries every guard by guard.Probe. It is done by itself before a peer is used
// for the first time. It fails with ctx's error, and as guard.Probe does.
func (m *Manager) SelfTest(ctx context.Context) error {
	st := m.DaemonStatus()
	var errs []error
	for _, p := range m.allPeers() {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.mu.Lock()
		specs, off := p.guards(st.DataPlane, st.Tun), p.noGuard
		p.mu.Unlock()
		if off {
			continue
		}
		for _, g := range specs {
			if err := m.probe(g); err != nil {
				errs = append(errs, fmt.Errorf("peer %s: %w", p.name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// isTested reports whether a guard's self-test has succeeded.
func (p *peer) isTested() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.tested
}

// ensureTested puts a peer's guard in place and sees to it that it has been
// tested, before packets of a stream may flow.
func (m *Manager) ensureTested(p *peer) error {
	if err := m.ensureGuards(p)[p]; err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.tested && !p.noGuard {
		return fmt.Errorf("peer %s is not used yet: %w", p.name, guard.ErrUntested)
	}
	return nil
}

// tryGuards tests the guards of a peer, which are in place. That there is no way
// to the peer yet is no error.
func (m *Manager) tryGuards(p *peer, specs []guard.Spec) error {
	if p.isTested() {
		return nil
	}
	var err error
	for _, g := range specs {
		if err = m.probe(g); err != nil {
			break
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.tested = true
		if strings.Contains(p.lastErr, guard.ErrUntested.Error()) {
			p.lastErr = ""
		}
		return nil
	}
	if errors.Is(err, guard.ErrUntested) {
		p.failedLocked(err)
		return nil
	}
	return err
}
