package transport

import "context"

// Protector decides whether a Flow may carry data, and authenticates its peer.
type Protector interface {
	// Prepare is called before the first packet of an outgoing flow. When it returns, the
	// guard is in place and an SA is up. The flow's local port may be 0 and its local
	// address invalid. It blocks until ctx ends, after which nobody dials any more
	// because of this call.
	Prepare(ctx context.Context, f Flow) error

	// Admit is called with the complete flow before a byte of it is read or written;
	// outgoing reports whether this host dialled. It proves that an installed SA covers
	// the flow and returns the protection of the connection. It blocks until ctx ends. c
	// stays usable until the Protection is released.
	Admit(ctx context.Context, f Flow, outgoing bool, c Monitored) (Protection, error)
}

// Monitored lets a Protector see whether a flow has traffic waiting.
type Monitored interface {
	// Outq returns the number of written bytes that the peer has not acknowledged
	// (SIOCOUTQ).
	Outq() (int, error)
}

// Protection is the protection of one connection. Its methods may be called from several
// goroutines and do not block.
type Protection interface {
	// Peer returns the authenticated peer.
	Peer() Identity
	// Paused reports that the SA is down at the moment; the stream waits for it.
	Paused() bool
	// Kind describes the protection: "ipsec (kernel ESP)", "ipsec (userland ESP)",
	// "loopback", "plaintext".
	Kind() string
	// Release ends the protection of the flow. It is idempotent; Conn.Close
	// calls it.
	Release()
}

// PortChooser is a Protector that wants outgoing flows to have certain local ports, for
// example to spread the flows over several SAs per peer. Dial asks it before Prepare.
type PortChooser interface {
	// LocalPorts returns the range, both ends included, of ports that the flow may be
	// bound to; 0 and 0 allow any port. The flow's local port is 0 and its local address
	// may be invalid. It does not block.
	LocalPorts(ctx context.Context, f Flow) (lo, hi uint16, err error)
}

// Screener is a Protector that knows at once which flows it will never admit, so that
// packets of unknown hosts get no answer. Where the kernel has no say, as with SCTP in
// UDP, a listener asks it about each packet that belongs to no association.
type Screener interface {
	// Screen fails for a flow that is no peer's, or for which no guard is in place. The
	// flow is complete, and incoming. It does not block. Success means only that Admit is
	// worth asking.
	Screen(f Flow) error
}

// screen asks a Protector if it is a Screener.
func screen(p Protector, f Flow) error {
	if s, ok := p.(Screener); ok {
		return s.Screen(f)
	}
	return nil
}
