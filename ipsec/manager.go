package ipsec

import (
	"context"
	"errors"

	"github.com/ironwarp/ironwarp/transport"
)

// Manager keeps the guard and the SAs of its peers, and is the
// transport.Protector of flows to them. Its methods may be called from several
// goroutines.
type Manager struct {
	cfg Config
}

var _ transport.Protector = (*Manager)(nil)

var errUnwritten = errors.New("not available yet")

// New checks the configuration. Nothing is started or contacted: Run does that.
func New(cfg Config) (*Manager, error) { return &Manager{cfg: cfg.withDefaults()}, nil }

// Run talks to charon until ctx ends or Close is called: it connects, loads the
// peers, follows events, and brings lost SAs back. It returns nil after Close
// or ctx's end, and at once with an error if it runs already. A charon that is
// not there is no error; it is tried again.
func (m *Manager) Run(ctx context.Context) error { return errUnwritten }

// Close ends Run and every waiting call. Guards, connections and SAs stay as
// they are, so that streams of a restarted process find them. It is idempotent.
func (m *Manager) Close() error { return nil }

// AddPeer puts the guard in place, then hands the peer's key and connection to
// charon. A peer that exists already with the same name is replaced; its SAs and
// flows stay. An error of the configuration or the guard leaves nothing behind.
// If charon is not there the peer is loaded when it comes, and the error is nil:
// PeerStatus tells. If charon refuses the connection, the guard stays and the
// error says why; RemovePeer removes it.
func (m *Manager) AddPeer(ctx context.Context, p Peer) error { return errUnwritten }

// RemovePeer ends the peer's SAs, unloads its connection and key, and then
// removes its guard: from then on the port's traffic with the peer may flow in
// clear.
func (m *Manager) RemovePeer(ctx context.Context, name string) error { return errUnwritten }

// RemoveGuard takes down the guard of a peer that stays, and keeps it down. It
// exists for demonstrations of what the guard is good for.
func (m *Manager) RemoveGuard(ctx context.Context, name string) error { return errUnwritten }

// Prepare implements transport.Protector: the guard is checked, and an SA for
// dialling f's remote address is brought up if there is none. Concurrent calls
// share one attempt.
func (m *Manager) Prepare(ctx context.Context, f transport.Flow) error { return errUnwritten }

// Admit implements transport.Protector: see AdmitError for what is refused.
func (m *Manager) Admit(ctx context.Context, f transport.Flow, outgoing bool, c transport.Monitored) (transport.Protection, error) {
	return nil, errUnwritten
}

// SAs lists the SAs of the peers, as charon has them now.
func (m *Manager) SAs(ctx context.Context) ([]SA, error) { return nil, errUnwritten }

// DeleteChild ends the children of a peer; child is NAME-out, NAME-in or "" for
// both. It returns how many there were. Streams are paused, and the children
// come back as soon as one of them has data to send.
func (m *Manager) DeleteChild(ctx context.Context, peer, child string) (int, error) {
	return 0, errUnwritten
}

// DeleteIKE ends the peer's IKE SAs with their children.
func (m *Manager) DeleteIKE(ctx context.Context, peer string) (int, error) { return 0, errUnwritten }

// Rekey makes fresh keys for a peer's children (child as in DeleteChild).
func (m *Manager) Rekey(ctx context.Context, peer, child string) (int, error) {
	return 0, errUnwritten
}

// PeerStatus returns the state of a peer, or ErrUnknownPeer.
func (m *Manager) PeerStatus(name string) (Status, error) { return Status{}, errUnwritten }

// Peers returns the states of all peers, by name.
func (m *Manager) Peers() []Status { return nil }

// DaemonStatus tells how it stands with charon.
func (m *Manager) DaemonStatus() DaemonStatus { return DaemonStatus{} }

// Events returns a subscription. A subscriber that does not keep up loses the
// oldest events. cancel ends it and closes the channel.
func (m *Manager) Events() (events <-chan Event, cancel func()) { return nil, func() {} }
