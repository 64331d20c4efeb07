package transport

import "context"

// Protector decides whether a Flow may carry data, and says who the
// authenticated peer is.
type Protector interface {
	// Prepare is called before the first packet of an outgoing flow, so that
	// the guard is in place and an SA is up when it leaves. The flow's local
	// port may be 0 and its local address invalid. It blocks up to ctx, at whose
	// end nobody dials any more on account of this call.
	Prepare(ctx context.Context, f Flow) error

	// Admit is called with the complete flow before a byte of it is read or
	// written; outgoing tells that this host dialled. It proves that an
	// installed SA covers the flow and returns the protection under which the
	// connection lives. It blocks up to ctx. c stays usable until the
	// Protection is released.
	Admit(ctx context.Context, f Flow, outgoing bool, c Monitored) (Protection, error)
}

// Monitored is how a Protector sees whether a flow has traffic waiting.
type Monitored interface {
	// Outq is the number of bytes written to the connection which the peer has
	// not acknowledged (SIOCOUTQ).
	Outq() (int, error)
}

// Protection is what one connection lives under. Its methods may be called
// from several goroutines and do not block.
type Protection interface {
	// Peer is the authenticated peer.
	Peer() Identity
	// Paused tells that the SA is away at the moment; the stream waits for it.
	Paused() bool
	// Kind names the protection for people: "ipsec (kernel ESP)", "ipsec
	// (userland ESP)", "loopback", "plaintext".
	Kind() string
	// Release ends the protection of the flow. It is idempotent; Conn.Close
	// calls it.
	Release()
}

// PortChooser is a Protector that wants outgoing flows to have certain local
// ports, as one does that has several SAs per peer and spreads the flows over
// them. Dial asks it, before Prepare.
type PortChooser interface {
	// LocalPorts returns the range, both ends included, to one of whose ports the
	// flow has to be bound; 0 and 0: any port will do. The flow's local port is 0
	// and its local address may be invalid. It does not block.
	LocalPorts(ctx context.Context, f Flow) (lo, hi uint16, err error)
}

// Screener is a Protector that can tell at once which flows it will never admit,
// so that a packet of a stranger gets no answer. Where the kernel has no say in
// the matter, as with SCTP in UDP, a listener asks it about each packet that
// belongs to no association.
type Screener interface {
	// Screen returns an error for a flow that is none of a peer's, or for which no
	// guard is in place. The flow is complete, and incoming. It does not block, and
	// no error means nothing more than that Admit is worth asking.
	Screen(f Flow) error
}

// screen asks a Protector that is a Screener.
func screen(p Protector, f Flow) error {
	if s, ok := p.(Screener); ok {
		return s.Screen(f)
	}
	return nil
}
