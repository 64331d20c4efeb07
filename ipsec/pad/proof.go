package pad

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/transport"
)

// Why no SA of the peer carries a flow.
var (
	// ErrNotCovered: no installed SA covers a flow.
	ErrNotCovered = errors.New("no installed SA covers the flow")
	// ErrWrongIdentity: IKE authenticated somebody else than configured.
	ErrWrongIdentity = errors.New("the SA belongs to another identity")
	// ErrGateway: the SA ends at another host than the flow's peer
	// (RFC 5042 section 5.4.5).
	ErrGateway = errors.New("the SA ends at a gateway, not at the peer")
	// ErrLabel: the SA has another security label than the link, or one of the two has none.
	ErrLabel = errors.New("the SA has another security label")
)

// Owns returns nil if an IKE SA of the peer's connection is the peer's. Otherwise the
// error says why not, and wraps ErrWrongIdentity or ErrGateway.
func (p *Peer) Owns(sa *charon.SA) error {
	switch {
	case !auth.SameIdentity(sa.RemoteID, p.RemoteID):
		return fmt.Errorf("%w: IKE authenticated %q, and %q is configured", ErrWrongIdentity, sa.RemoteID, p.RemoteID)
	case sa.RemoteHost != p.Remote && (!p.Gateway.IsValid() || sa.RemoteHost != p.Gateway):
		return fmt.Errorf("%w: ESP ends at %v, and the peer is %v (RFC 5042 5.4.5)", ErrGateway, sa.RemoteHost, p.Remote)
	case sa.LocalHost != p.Local:
		return fmt.Errorf("%w: ESP ends here at %v, and the peer's link at %v", ErrGateway, sa.LocalHost, p.Local)
	}
	return nil
}

// Carrier finds the child SA of a name that carries a flow in a list of all SAs. It is an
// error if none is installed, if it is not the peer's own, or if another connection's
// covers the flow as well; it wraps ErrNotCovered, ErrWrongIdentity, ErrGateway or ErrLabel.
func (p *Peer) Carrier(name string, f transport.Flow, sas []charon.SA) (*charon.SA, *charon.Child, error) {
	refuse := func(kind error, format string, args ...any) (*charon.SA, *charon.Child, error) {
		return nil, nil, fmt.Errorf("%w: %s", kind, fmt.Sprintf(format, args...))
	}
	var found *charon.SA
	var child *charon.Child
	var wrong error
	all := p.ChildSAs()
	own := slices.IndexFunc(all, func(c Child) bool { return c.Name == name })
	for i := range sas {
		sa := &sas[i]
		for j := range sa.Children {
			c := &sa.Children[j]
			if !c.IsInstalled() || !charon.Covers(c.LocalTS, c.RemoteTS, f) {
				continue
			}
			if sa.Peer != p.Name {
				return refuse(ErrWrongIdentity, "child %s of connection %s, whose peer is %q, covers the flow as well; narrow its traffic selectors", c.Name, sa.Peer, sa.RemoteID)
			}
			if err := p.Owns(sa); err != nil {
				return nil, nil, err
			}
			// The lane's own child is the one that the keeper watches; one that the peer has narrowed is
			// about to be ended.
			if sa.IsAlive() && c.Name == name && own >= 0 && charon.AnyContains(c.LocalTS, all[own].Local) && charon.AnyContains(c.RemoteTS, all[own].Remote) {
				if wrong = all[own].labelFault(c); wrong == nil {
					found, child = sa, c
				}
			}
		}
	}
	if found == nil && wrong != nil {
		return nil, nil, wrong
	}
	if found == nil {
		return refuse(ErrNotCovered, "no child %s is INSTALLED that has it", name)
	}
	return found, child, nil
}

// labelFault says why an installed child is not the configured one by its security label, nil if it is; it wraps ErrLabel.
func (c *Child) labelFault(have *charon.Child) error {
	if !otherLabel(c.Link.Label, have.Label) {
		return nil
	}
	return fmt.Errorf("%w: child %s has %s, and %v %s", ErrLabel, have.Name, LabelWords(have.Label), c.Link, LabelWords(c.Link.Label))
}

// HasLabel reports whether an installed child has the security label of the configured one, or neither has any.
func (c *Child) HasLabel(have charon.Child) bool { return !otherLabel(c.Link.Label, have.Label) }

// LabelWords name a security label, or say that there is none.
func LabelWords(label string) string {
	if label == "" {
		return "no label"
	}
	return fmt.Sprintf("the label %q", printable.Text(label))
}
