package ikematrix

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// control takes the guards down and ends strongSwan: the same traffic then goes in
// clear, and the check of the wire has to find it.
func (m *matrix) control(ctx context.Context, port uint16) (int, error) {
	c := Case{}.withDefaults()
	a, b, err := m.peers(&c, port)
	if err != nil {
		return 0, err
	}
	srv, conn, err := m.connect(ctx, &a, &b, netip.AddrPortFrom(b.Local, port))
	if srv != nil {
		defer srv.close()
	}
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	// Once it has answered beta has admitted the connection; without strongSwan it would refuse it.
	if err := echo(conn, m.alpha.Canary(), 0); err != nil {
		return 0, err
	}
	for h, peer := range map[*host]string{m.alpha: "beta", m.beta: "alpha"} {
		if err := h.m.RemoveGuard(ctx, peer); err != nil {
			return 0, err
		}
	}
	if _, err := m.wire.look(); err != nil {
		return 0, err
	}
	for _, h := range []*host{m.alpha, m.beta} {
		if err := h.StopCharon(ctx); err != nil {
			return 0, err
		}
	}
	if err := echo(conn, m.alpha.Canary(), 1); err != nil {
		return 0, err
	}
	if err := m.hangUp(conn, port); err != nil {
		return 0, err
	}
	s, err := m.wire.look()
	if err != nil {
		return 0, err
	}
	if err := s.check(); !errors.Is(err, ErrClear) || s.Leaked() == "" {
		return 0, fmt.Errorf("without guard and SA: %v, the canary in %q; the check of the wire cannot fail", err, s.Leaked())
	}
	return s.clear(), nil
}
