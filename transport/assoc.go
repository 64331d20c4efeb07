package transport

import (
	"context"
	"errors"
	"net/netip"

	"github.com/ironwarp/ironwarp/transport/sctp"
)

// NewReceiver makes what takes the messages of an association. It must not block.
type NewReceiver func(a sctp.Association) sctp.Receiver

// Assoc is an admitted SCTP association, of the kernel or in UDP. Its Protection
// is released when it is over.
type Assoc struct {
	sctp.Association
	flows []Flow
	prot  Protection
	recv  sctp.Receiver
}

// Flow is the association's flow, or the first of several paths.
func (a *Assoc) Flow() Flow { return a.flows[0] }

// Flows has one flow for each pair of addresses that the association uses.
func (a *Assoc) Flows() []Flow { return a.flows }

// Protection is what the association lives under.
func (a *Assoc) Protection() Protection { return a.prot }

// Receiver is what NewReceiver made for the association.
func (a *Assoc) Receiver() sctp.Receiver { return a.recv }

// DialSCTP sets up an association with remote, the address and SCTP port of the
// peer, by the carrier cfg.Kind. The Protector prepares its flows before the first
// packet and admits them before DialSCTP returns. Errors are *FlowError, except
// ErrNoProtector.
func DialSCTP(ctx context.Context, remote netip.AddrPort, cfg *Config, recv NewReceiver) (*Assoc, error) {
	return nil, errors.ErrUnsupported
}

// SCTPListener accepts associations which the Protector has admitted.
type SCTPListener struct{}

// ListenSCTP awaits associations at local, an address and an SCTP port, by the
// carrier cfg.Kind.
func ListenSCTP(ctx context.Context, local netip.AddrPort, cfg *Config, recv NewReceiver) (*SCTPListener, error) {
	return nil, errors.ErrUnsupported
}

// Addr is the address and SCTP port that the listener has.
func (l *SCTPListener) Addr() netip.AddrPort { return netip.AddrPort{} }

// Accept waits for the next admitted association. After Close it returns
// net.ErrClosed.
func (l *SCTPListener) Accept(ctx context.Context) (*Assoc, error) {
	return nil, errors.ErrUnsupported
}

// Close stops listening and waits until all is over. Associations that were
// accepted stay. It is idempotent.
func (l *SCTPListener) Close() error { return nil }
