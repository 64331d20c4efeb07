package ipsec

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

var (
	// ErrUnknownPeer means that no peer of that name or address is configured.
	ErrUnknownPeer = errors.New("unknown peer")
	// ErrPeerExists means that the name or the address pair and port is taken.
	ErrPeerExists = errors.New("the peer exists already")
	// ErrClosed means that the Manager has been closed.
	ErrClosed = errors.New("the IPsec manager is closed")
	// ErrNotConnected means that the Manager has no connection to charon at the
	// moment; it tries to get one.
	ErrNotConnected = errors.New("not connected to strongSwan")
	// ErrNotSupervised means that the Manager does not run, so that nobody would
	// bring a lost SA back.
	ErrNotSupervised = errors.New("the IPsec manager does not run")
)

// AdmitError returns why a flow was refused. errors.Is finds its Kind and
// transport.ErrNotProtected.
type AdmitError struct {
	Flow   transport.Flow
	Peer   string // the configured peer, or ""
	Kind   error  // ErrUnknownPeer, ErrNotCovered, ErrWrongIdentity, ErrGateway, ErrLabel, ErrNotConnected, ErrBlocked
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
