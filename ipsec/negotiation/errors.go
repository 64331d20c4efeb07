package negotiation

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// What can be wrong between this host and the peer. Error wraps them.
var (
	ErrNoProposal       = errors.New("no proposal chosen")
	ErrAuthFailed       = errors.New("authentication failed")
	ErrTrafficSelectors = errors.New("traffic selectors not acceptable")
	ErrUnreachable      = errors.New("the peer does not answer")
	ErrFailed           = errors.New("negotiation failed")
	// ErrClock: a clock may be wrong: this host's, the peer's or the
	// authority's.
	ErrClock = errors.New("a clock may be wrong")
	// ErrUnloaded: charon no longer has the peer's connection.
	ErrUnloaded = errors.New("somebody has unloaded the connection from strongSwan")
	// ErrAggressiveRefused: the peer does not do aggressive mode.
	ErrAggressiveRefused = errors.New("aggressive mode refused")
	// ErrPluginMissing: strongSwan lacks a plugin.
	ErrPluginMissing = errors.New("strongSwan lacks a plugin")
)

// Error is a failed attempt to bring up a child SA. errors.Is finds
// its Kind.
type Error struct {
	Peer   string
	Child  string
	Kind   error    // one of the negotiation errors
	Advice string   // what it usually means and what to do
	Log    []string // charon's own words, last ones last
}

func (e *Error) Error() string {
	s := fmt.Sprintf("no IPsec SA with peer %s: %v", e.Peer, e.Kind)
	if e.Advice != "" {
		s += ": " + e.Advice
	}
	if errors.Is(e.Kind, ErrFailed) && len(e.Log) > 0 {
		s += ": strongSwan says: " + e.Log[len(e.Log)-1]
	}
	return s
}

// Unwrap returns the Kind, and what it is a case of: ErrAuthFailed for
// everything about certificates and aggressive mode, ErrClock where a clock may
// be to blame.
func (e *Error) Unwrap() []error {
	switch {
	case errors.Is(e.Kind, auth.ErrCertNotYet):
		return []error{e.Kind, ErrAuthFailed, ErrClock}
	case errors.Is(e.Kind, auth.ErrCertExpired), errors.Is(e.Kind, auth.ErrCertRevoked), errors.Is(e.Kind, auth.ErrCertUntrusted),
		errors.Is(e.Kind, auth.ErrCertIdentity), errors.Is(e.Kind, auth.ErrCertStatus), errors.Is(e.Kind, ErrAggressiveRefused):
		return []error{e.Kind, ErrAuthFailed}
	}
	return []error{e.Kind}
}
