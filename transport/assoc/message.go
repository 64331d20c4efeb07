package assoc

import (
	"net/netip"
	"time"
)

// Flags are those of a DATA chunk (RFC 9260 section 3.3.1).
type Flags uint8

// The flags of a DATA chunk.
const (
	End   Flags = 1 << iota // last fragment of its message
	Begin                   // first fragment of its message
	Unordered
	Immediate // the sender waits for the acknowledgement
)

// Whole reports whether the chunk is a whole message.
func (f Flags) Whole() bool { return f&(Begin|End) == Begin|End }

// Message is a received DATA chunk. From a peer that conforms to RFC 5043 it is a whole,
// unordered message. Ordered messages and fragments of other peers are passed on as they
// arrive, in any order, each chunk once: SSN orders the ordered messages of a stream, and
// consecutive TSNs join the fragments of a message (RFC 9260 section 6.9). The kernel
// joins them itself.
type Message struct {
	Stream  uint16
	SSN     uint16
	Flags   Flags
	PPID    uint32 // payload protocol identifier
	TSN     uint32
	Payload []byte // valid only during the Receiver's call, unless Memory is kept
	Memory  Memory // what Payload lies in, if it may be kept; else nil
}

// Memory is memory of a carrier, in which messages lie. It is not used for anything else
// while it is kept. A carrier has little that may be kept: where it runs out of it, messages
// are valid during the Receiver's call only.
type Memory interface {
	// Keep keeps the memory as it is until Release. Only a Receiver may call it, during
	// the call that passes it a message.
	Keep()
	// Release takes one call of Keep back.
	Release()
}

// Outgoing is a message to be sent: unordered, in one DATA chunk, its bytes
// gathered from Bufs.
type Outgoing struct {
	Stream uint16
	PPID   uint32
	Bufs   [][]byte

	// Barrier holds back this message and those behind it until all before it are
	// acknowledged, so that it cannot overtake them.
	Barrier bool
}

// Size is the length of the message in bytes.
func (m *Outgoing) Size() (n int) {
	for _, b := range m.Bufs {
		n += len(b)
	}
	return n
}

// Check returns the length of the message in bytes. It fails with ErrEmpty, with
// ErrTooLong beyond longest bytes, and with ErrStream where there are fewer streams.
func (m *Outgoing) Check(longest, streams int) (n int, err error) {
	n = m.Size()
	switch {
	case n == 0:
		err = ErrEmpty
	case n > longest:
		err = ErrTooLong
	case int(m.Stream) >= streams:
		err = ErrStream
	}
	return n, err
}

// Receiver takes what an association receives. All calls come from the goroutine that
// reads the socket, which serves all its associations, and must not block. They may call
// methods of the Association that do not block.
type Receiver interface {
	// Message takes a message as soon as its chunk arrives. If it returns true, the
	// message's bytes stay charged to the receive window until Association.Release. Users
	// get back-pressure if they keep no more than they hold in this way.
	Message(m *Message) (held bool)

	// Event takes an event of the association.
	Event(e Event)

	// BatchEnd is called after all messages of one read of the socket were passed.
	BatchEnd()
}

// EventKind is what happened.
type EventKind uint8

// The kinds of events.
const (
	EventUp        EventKind = iota + 1 // established; the first event
	EventDown                           // ended, Err says why; the last event
	EventShutdown                       // the peer shuts it down; no message may be sent any more
	EventPathDown                       // the peer has stopped answering (RFC 9260 section 8.2)
	EventPathUp                         // it answers again
	EventPeerError                      // the peer has sent an ERROR: Cause
	EventMoved                          // the peer's UDP port has changed (RFC 6951 section 5.4)
	EventMTU                            // MaxMessage has changed (RFC 8899)
)

func (k EventKind) String() string {
	return [...]string{"event 0", "up", "down", "shutdown", "path down", "path up", "peer error", "moved", "mtu"}[k]
}

// Event is an event of an association.
type Event struct {
	Kind  EventKind
	Err   error          // of EventDown: nil after a shutdown that this end began
	Cause Cause          // of EventPeerError
	Path  netip.AddrPort // of EventPathDown and EventPathUp: the peer's address, if it has several
}

// Stats are counts of one association since it began.
type Stats struct {
	PacketsIn, PacketsOut   uint64
	MessagesIn, MessagesOut uint64 // each once
	BytesIn, BytesOut       uint64 // of user data, each once
	Retransmits             uint64 // DATA chunks sent again
	FastRetransmits         uint64 // losses found by gap reports
	Timeouts                uint64 // expirations of T3-rtx
	TailProbes              uint64 // chunks sent again because an expected SACK was missing
	Duplicates              uint64 // DATA chunks received again
	Dropped                 uint64 // DATA chunks dropped for lack of room
	SacksIn, SacksOut       uint64
	Probes                  uint64 // packets that probed the path's MTU

	// Gauges, sizes in bytes.
	RTT, RTO             time.Duration
	Window, Threshold    int // cwnd and ssthresh
	InFlight, Queued     int // DATA chunks; messages with their overhead
	PeerWindow, HeldHere int
	PathMTU              int // of IP packets
	LostMTU              int // packets of this size are lost although the host takes them; 0 if none are known

	Unanswered int           // retransmissions and heartbeats in a row without an answer
	Silent     time.Duration // since the peer's last packet
	Idle       time.Duration // since a message was received, queued or acknowledged
}
