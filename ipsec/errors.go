package ipsec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// What can be wrong between this host and the peer. NegotiationError wraps them.
var (
	ErrNoProposal       = errors.New("no proposal chosen")
	ErrAuthFailed       = errors.New("authentication failed")
	ErrTrafficSelectors = errors.New("traffic selectors not acceptable")
	ErrUnreachable      = errors.New("the peer does not answer")
	ErrNegotiation      = errors.New("negotiation failed")
	// ErrClock tells that a clock may be wrong: this host's, the peer's or the
	// authority's.
	ErrClock = errors.New("a clock may be wrong")
	// ErrUnloaded tells that charon no longer has the peer's connection.
	ErrUnloaded = errors.New("somebody has unloaded the connection from strongSwan")
	// ErrAggressiveRefused tells that the peer does not do aggressive mode.
	ErrAggressiveRefused = errors.New("aggressive mode refused")
	// ErrPluginMissing tells that strongSwan lacks a plugin.
	ErrPluginMissing = errors.New("strongSwan lacks a plugin")
)

var (
	// ErrUnknownPeer tells that no peer of that name or address is configured.
	ErrUnknownPeer = errors.New("unknown peer")
	// ErrPeerExists tells that the name or the address pair and port is taken.
	ErrPeerExists = errors.New("the peer exists already")
	// ErrClosed tells that the Manager has been closed.
	ErrClosed = errors.New("the IPsec manager is closed")
	// ErrNotConnected tells that the Manager has no connection to charon at the
	// moment; it tries to get one.
	ErrNotConnected = errors.New("not connected to strongSwan")
	// ErrNotSupervised tells that the Manager does not run, so that nobody would
	// bring a lost SA back.
	ErrNotSupervised = errors.New("the IPsec manager does not run")
)

// NegotiationError is a failed attempt to bring up a child SA. errors.Is finds
// its Kind.
type NegotiationError struct {
	Peer   string
	Child  string
	Kind   error    // one of the negotiation errors
	Advice string   // what it usually means and what to do
	Log    []string // charon's own words, last ones last
}

func (e *NegotiationError) Error() string {
	s := fmt.Sprintf("no IPsec SA with peer %s: %v", e.Peer, e.Kind)
	if e.Advice != "" {
		s += ": " + e.Advice
	}
	if errors.Is(e.Kind, ErrNegotiation) && len(e.Log) > 0 {
		s += ": strongSwan says: " + e.Log[len(e.Log)-1]
	}
	return s
}

// Unwrap returns the Kind, and what it is a case of: ErrAuthFailed for
// everything about certificates and aggressive mode, ErrClock where a clock may
// be to blame.
func (e *NegotiationError) Unwrap() []error {
	switch {
	case errors.Is(e.Kind, auth.ErrCertNotYet):
		return []error{e.Kind, ErrAuthFailed, ErrClock}
	case errors.Is(e.Kind, auth.ErrCertExpired), errors.Is(e.Kind, auth.ErrCertRevoked), errors.Is(e.Kind, auth.ErrCertUntrusted),
		errors.Is(e.Kind, auth.ErrCertIdentity), errors.Is(e.Kind, auth.ErrCertStatus), errors.Is(e.Kind, ErrAggressiveRefused):
		return []error{e.Kind, ErrAuthFailed}
	}
	return []error{e.Kind}
}

// AdmitError tells why a flow was refused. errors.Is finds its Kind and
// transport.ErrNotProtected.
type AdmitError struct {
	Flow   transport.Flow
	Peer   string // the configured peer, or ""
	Kind   error  // ErrUnknownPeer, ErrNotCovered, ErrWrongIdentity, ErrGateway, ErrNotConnected, ErrBlocked
	Detail string
	never  bool // no SA that comes up would change it
}

func (e *AdmitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "flow %v refused", e.Flow)
	if e.Peer != "" {
		fmt.Fprintf(&b, " (peer %s)", e.Peer)
	}
	fmt.Fprintf(&b, ": %v", e.Kind)
	if e.Detail != "" {
		fmt.Fprintf(&b, ": %s", e.Detail)
	}
	return b.String()
}

// Unwrap returns the Kind and transport.ErrNotProtected, and transport.ErrAway
// where an SA that comes up is all that is missing.
func (e *AdmitError) Unwrap() []error {
	if (e.Kind == pad.ErrNotCovered || e.Kind == ErrNotConnected) && !e.never {
		return []error{e.Kind, transport.ErrNotProtected, transport.ErrAway}
	}
	return []error{e.Kind, transport.ErrNotProtected}
}

// awayError is why there is no SA for a flow whose guard is in place.
type awayError struct{ error }

func (e awayError) Unwrap() []error { return []error{e.error, transport.ErrAway} }

// away marks what keeps Prepare from having an SA, unless somebody else has it.
func away(err error) error {
	if err == nil || errors.Is(err, pad.ErrWrongIdentity) || errors.Is(err, pad.ErrGateway) || errors.Is(err, ErrClosed) || errors.Is(err, ErrUnknownPeer) {
		return err
	}
	return awayError{err}
}
