package tap

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Watcher watches the streams of a Tap.
type Watcher interface {
	// Watch takes what a stream carries next. It is called on the data path, by many streams at once: it must neither
	// block nor keep r or what r refers to.
	Watch(r *Record)
}

// Tap is the place where the streams of a device are watched. The zero value is useful. Its methods are safe for
// concurrent use.
type Tap struct {
	watchers atomic.Pointer[[]Watcher] // nil: nobody watches
}

// On reports whether anybody watches.
func (t *Tap) On() bool { return t != nil && t.watchers.Load() != nil }

// Attach has w watch until detach is called, which may be called again.
func (t *Tap) Attach(w Watcher) (detach func()) {
	t.change(func(all []Watcher) []Watcher { return append(all, w) })
	return func() {
		t.change(func(all []Watcher) []Watcher {
			return slices.DeleteFunc(all, func(x Watcher) bool { return x == w })
		})
	}
}

// change replaces the watchers, whose list is never changed where it is.
func (t *Tap) change(f func([]Watcher) []Watcher) {
	for {
		all := t.watchers.Load()
		var now []Watcher
		if all != nil {
			now = slices.Clone(*all)
		}
		next := &now
		if now = f(now); len(now) == 0 {
			next = nil
		}
		if t.watchers.CompareAndSwap(all, next) {
			return
		}
	}
}

// show passes a record on.
func (t *Tap) show(r *Record) {
	all := t.watchers.Load()
	if all == nil {
		return
	}
	r.At = time.Now()
	for _, w := range *all {
		w.Watch(r)
	}
}

// Protocol is what carries a Link.
type Protocol uint8

// The protocols.
const (
	TCP     Protocol = iota
	SCTP             // the kernel's
	SCTPUDP          // in UDP, RFC 6951
)

// Link is a TCP connection or an SCTP association with an authenticated peer.
type Link struct {
	Tap           *Tap
	Protocol      Protocol
	Local, Remote netip.AddrPort // of TCP or SCTP
	// LocalUDP and RemoteUDP are the ports that carry an SCTPUDP.
	LocalUDP, RemoteUDP uint16
	Peer                string // its identity

	mu             sync.Mutex // guards the fields below it; held while chunks are shown, so that they are in order
	sent, received uint64     // SCTP: chunks shown, by direction
}

// Stream is one end of a DDP stream.
type Stream struct {
	Link      *Link  // of a stream over TCP
	Number    uint16 // SCTP: of the pair of SCTP streams
	Initiator bool   // this end sent the request, or Initiate

	request, reply atomic.Pointer[[]byte]
}

// Startup returns the start-up frames of the initiator and of the responder (RFC 5044 section 7.1.1), or their session
// control messages (RFC 5043 section 5.2.3); nil for one that is not known.
func (s *Stream) Startup() (request, reply []byte) {
	if p := s.request.Load(); p != nil {
		request = *p
	}
	if p := s.reply.Load(); p != nil {
		reply = *p
	}
	return request, reply
}

// SetRequest has the stream remember what its initiator began with. b is kept.
func (s *Stream) SetRequest(b []byte) { s.request.Store(&b) }

// SetReply has the stream remember what its responder answered. b is kept.
func (s *Stream) SetReply(b []byte) { s.reply.Store(&b) }

// Kind is what a Record tells of.
type Kind uint8

// The kinds of records.
const (
	Data    Kind = iota // an FPDU, or a chunk
	Control             // a chunk of DDP Stream Session Control
	Began               // nothing has been sent in full operation yet
	Ended               // nothing more will come
)

// Record is what a stream carries at one time.
type Record struct {
	Link   *Link
	Stream *Stream
	Kind   Kind
	At     time.Time
	Sent   bool     // by this end
	Bytes  [][]byte // as on the stream
	Length int      // of Bytes, in bytes
	// Visible is how many of them, from the first one on, are no payload of a ULP; see Visible.
	Visible int
	// Position counts the bytes of this direction that the stream has shown before, and for SCTP the chunks of the link.
	// It grows by as much while anybody watches, so a gap is what a watcher has missed.
	Position uint64
	// Grid is the distance in bytes from the last place of a marker to the first byte, 0 at such a place, and without
	// markers (RFC 5044 section 4.3).
	Grid int
}

// Show shows an FPDU or another record of a stream over TCP. The caller gives what the fields say but At.
func (s *Stream) Show(r *Record) {
	r.Link, r.Stream = s.Link, s
	s.Link.Tap.show(r)
}

// ShowChunk shows a chunk of a stream over SCTP: ssn is the number of DDP's that it begins with, and segment what follows it.
func (l *Link) ShowChunk(s *Stream, kind Kind, sent bool, bytes [][]byte, visible int) {
	r := Record{Link: l, Stream: s, Kind: kind, Sent: sent, Bytes: bytes}
	for _, b := range bytes {
		r.Length += len(b)
	}
	r.Visible = min(visible, r.Length)
	l.mu.Lock()
	defer l.mu.Unlock()
	n := &l.received
	if sent {
		n = &l.sent
	}
	r.Position = *n
	*n++
	l.Tap.show(&r)
}
