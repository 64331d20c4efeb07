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

// Whole tells that the chunk is a whole message.
func (f Flags) Whole() bool { return f&(Begin|End) == Begin|End }

// Message is a received DATA chunk. From a peer that conforms to RFC 5043 it is a
// whole, unordered message. Ordered messages and fragments of other peers come
// as they arrive, in whatever order, each chunk once: SSN tells the order of
// ordered messages in their stream, and TSNs that follow each other join the
// fragments of a message (RFC 9260 section 6.9). The kernel joins them itself.
type Message struct {
	Stream  uint16
	SSN     uint16
	Flags   Flags
	PPID    uint32 // payload protocol identifier
	TSN     uint32
	Payload []byte // valid only during the call that hands it over
}

// Outgoing is a message to be sent: unordered, in one DATA chunk, its bytes
// gathered from Bufs.
type Outgoing struct {
	Stream uint16
	PPID   uint32
	Bufs   [][]byte

	// Barrier holds the message, and those behind it, back until all before it are
	// acknowledged, so that it cannot arrive before them.
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

// Receiver takes what an association receives. All calls come from the goroutine
// that reads the socket, for all associations of it, and must not block.
// They may call methods of the Association that do not block.
type Receiver interface {
	// Message takes a message, as soon as its chunk is here. If it returns true,
	// the user holds it: its bytes stay taken off the receive window until
	// Association.Release. A user who keeps what is held bounded by that window has
	// back-pressure.
	Message(m *Message) (held bool)

	// Event tells what happened to the association.
	Event(e Event)

	// BatchEnd is called when what one read has brought for this association was
	// handed over.
	BatchEnd()
}

// EventKind is what happened.
type EventKind uint8

// What may happen to an association.
const (
	EventUp        EventKind = iota + 1 // it is established; the first event
	EventDown                           // it is over: Err says why. The last event
	EventShutdown                       // the peer shuts it down: no message may be sent any more
	EventPathDown                       // the peer has not answered for long (RFC 9260 section 8.2)
	EventPathUp                         // it answers again
	EventPeerError                      // it has sent an ERROR: Cause
	EventMoved                          // its UDP port has changed (RFC 6951 section 5.4)
	EventMTU                            // MaxMessage has changed (RFC 8899)
)

func (k EventKind) String() string {
	return [...]string{"event 0", "up", "down", "shutdown", "path down", "path up", "peer error", "moved", "mtu"}[k]
}

// Event is something that happened to an association.
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
	FastRetransmits         uint64 // losses that were found by gap reports
	Timeouts                uint64 // expirations of T3-rtx
	TailProbes              uint64 // chunks sent again since no SACK came for long
	Duplicates              uint64 // DATA chunks received again
	Dropped                 uint64 // DATA chunks that had no room
	SacksIn, SacksOut       uint64
	Probes                  uint64 // packets that tried the path's MTU

	// As of now, sizes in bytes.
	RTT, RTO             time.Duration
	Window, Threshold    int // cwnd and ssthresh
	InFlight, Queued     int // DATA chunks; messages with their overhead
	PeerWindow, HeldHere int
	PathMTU              int // of IP packets
	LostMTU              int // such packets get lost although the host takes them, 0: none are known

	Unanswered int           // retransmissions and heartbeats in a row without an answer
	Silent     time.Duration // since a packet of the peer came
	Idle       time.Duration // since a message came, was queued or was acknowledged
}
