package mad

import (
	"errors"
	"fmt"
)

// segmentHead is what PayloadLength counts of a segment besides its data: the SA's part of the header,
// SA_Key to ComponentMask (section 13.6.2.1).
const segmentHead = 20

// ErrStopped means that the other end has ended a transfer by STOP or ABORT.
var ErrStopped = errors.New("mad: the RMPP transfer was stopped")

// ErrTransfer means that a segment does not belong where it was sent, or breaks the rules of RMPP. What ends a transfer
// is an ABORT or STOP with the reason.
var ErrTransfer = errors.New("mad: wrong RMPP segment")

// Sender cuts an answer into segments and sends those that the receiver's window admits (section 13.6.6).
//
//	          Next: the window has room
//	           ┌───┐
//	NewSender  │   ▼    last segment acknowledged
//	─────────▶ sending ────────────────────────▶ Done
//	              │     STOP, ABORT
//	              └────────────────────────────▶ Done, Acknowledge returns ErrStopped
//
// RDMAP delivers each segment once and in order, so nothing is sent again and no timer runs here: whoever drives a Sender
// gives it up when its receiver is gone or silent. A Sender is for one goroutine at a time.
type Sender struct {
	head   SA
	table  []byte
	count  uint32 // of segments
	sent   uint32
	acked  uint32
	window uint32 // the last segment that may be sent
	done   bool
}

// NewSender returns the sender of an answer. head is the answer's head, as [SA.Answer] makes it, with AttributeOffset; table is what follows,
// kept until the end. An answer without records is one empty segment. It fails if table is longer than [MaxTable].
func NewSender(head SA, table []byte) (*Sender, error) {
	if len(table) > MaxTable {
		return nil, fmt.Errorf("RMPP transfer of %d bytes, at most %d are possible: %w", len(table), MaxTable, ErrTransfer)
	}
	count := max(1, (len(table)+SADataLen-1)/SADataLen)
	return &Sender{head: head, table: table, count: uint32(count), window: 1}, nil
}

// Next returns the next segment that may be sent now, and whether there is one.
func (s *Sender) Next() (m MAD, ok bool) {
	if s.done || s.sent == s.count || s.sent == s.window {
		return m, false
	}
	sa := s.head
	n := copy(sa.Data[:], s.table[int(s.sent)*SADataLen:])
	s.sent++
	sa.RMPP = RMPP{Version: RMPPVersion, Type: RMPPData, ResponseTime: noResponseTime, Flags: RMPPActive, Segment: s.sent}
	if s.sent == 1 {
		sa.RMPP.Flags |= RMPPFirst
		sa.RMPP.Length = uint32(len(s.table)) + segmentHead*s.count // the whole transfer's
	}
	if s.sent == s.count {
		sa.RMPP.Flags |= RMPPLast
		sa.RMPP.Length = uint32(n) + segmentHead
	}
	return sa.MAD(), true
}

// noResponseTime is RRespTime where none is given.
const noResponseTime = 31

// Acknowledge takes what the receiver has sent: an ACK opens the window. It fails with [ErrStopped] after a STOP or ABORT, which end the
// transfer, and with [ErrTransfer] for anything else, which also ends it.
func (s *Sender) Acknowledge(a *SA) error {
	r := a.RMPP
	wrong := RMPPNormal
	switch {
	case a.TransactionID != s.head.TransactionID || !r.Active():
		return fmt.Errorf("transaction %#x awaits ACKs, the segment is of %#x: %w", s.head.TransactionID, a.TransactionID, ErrTransfer)
	case s.done:
		return nil // it has crossed the end
	case r.Type == RMPPStop || r.Type == RMPPAbort:
		s.done = true
		return fmt.Errorf("RMPP status %d after %d of %d segments: %w", r.Status, s.acked, s.count, ErrStopped)
	case r.Type != RMPPAck:
		wrong = RMPPBadType
	case r.Segment > s.sent:
		wrong = RMPPSegmentTooBig
	case r.Length < r.Segment:
		wrong = RMPPWindowTooSmall
	}
	if wrong != RMPPNormal {
		s.done = true
		return fmt.Errorf("type %d, segment %d and window to %d after %d segments (RMPP status %d): %w", r.Type, r.Segment, r.Length, s.sent, wrong, ErrTransfer)
	}
	s.acked = max(s.acked, r.Segment)
	s.window = max(s.window, min(r.Length, s.acked+MaxSend)) // an older ACK takes nothing back
	s.done = s.acked == s.count
	return nil
}

// Done reports whether the transfer has ended, one way or the other.
func (s *Sender) Done() bool { return s.done }

// Receiver puts an answer together from its segments, up to a limit (section 13.6.6).
//
//	            DATA in order: ACK at the end of each window
//	              ┌───┐
//	NewReceiver   │   ▼     last segment: ACK
//	───────────▶ receiving ────────────────────▶ Done, Table is the answer
//	                │       anything else: ABORT or STOP
//	                └──────────────────────────▶ Done, Receive returned an error
//
// Memory grows with what has arrived, never by what a segment announces. Whoever drives a Receiver gives it up when its sender is silent. A
// Receiver is for one goroutine at a time.
type Receiver struct {
	transaction uint64
	limit       int
	window      uint32 // how many segments may be on their way

	head  SA // of the first segment
	table []byte
	got   uint32 // segments
	last  uint32 // the segment that may still arrive before an ACK
	done  bool
}

// NewReceiver returns the receiver of the answer to a transaction: at most limit bytes of records, window segments on their way, which the caller has
// receives for. Both are cut to [MaxTable] and [MaxWindow], window is at least 1.
func NewReceiver(transaction uint64, limit, window int) *Receiver {
	return &Receiver{transaction: transaction, limit: min(limit, MaxTable), window: uint32(min(max(window, 1), MaxWindow)), last: 1}
}

// Receive takes the next MAD of the answer. reply is to be sent to the sender if send is true: an ACK, or the STOP or ABORT that goes with an error.
// A MAD without RMPP is a whole answer, such as an error's, and ends the transfer.
//
// It fails with [ErrTransfer] for a segment that breaks the rules or exceeds the limit, and with [ErrStopped] if the sender gives up.
func (r *Receiver) Receive(s *SA) (reply MAD, send bool, err error) {
	p := s.RMPP
	switch {
	case s.TransactionID != r.transaction || r.done:
		return reply, false, fmt.Errorf("segment of transaction %#x, %#x is awaited: %w", s.TransactionID, r.transaction, ErrTransfer)
	case !p.Active():
		if r.got != 0 {
			return r.fail(s, RMPPAbort, RMPPUnspecified)
		}
		r.head, r.table, r.done = *s, append([]byte(nil), s.Data[:]...), true
		return reply, false, nil
	case p.Version != RMPPVersion:
		return r.fail(s, RMPPAbort, RMPPUnsupportedVersion)
	case p.Type == RMPPStop || p.Type == RMPPAbort:
		r.done = true
		return reply, false, fmt.Errorf("RMPP status %d after %d segments: %w", p.Status, r.got, ErrStopped)
	case p.Type != RMPPData:
		return r.fail(s, RMPPAbort, RMPPBadType)
	case p.Segment != r.got+1 || (p.Flags&RMPPFirst != 0) != (p.Segment == 1):
		return r.fail(s, RMPPAbort, RMPPInconsistentFirst)
	case p.Segment > r.last:
		return r.fail(s, RMPPAbort, RMPPSegmentTooBig)
	}
	length := SADataLen
	if p.Flags&RMPPLast != 0 {
		if p.Length < segmentHead || p.Length > SADataLen+segmentHead {
			return r.fail(s, RMPPAbort, RMPPInconsistentLast)
		}
		length = int(p.Length) - segmentHead
	}
	if len(r.table)+length > r.limit {
		return r.fail(s, RMPPStop, RMPPResourcesExhausted)
	}
	if r.got == 0 {
		r.head = *s
	}
	r.table = append(r.table, s.Data[:length]...)
	r.got++
	r.done = p.Flags&RMPPLast != 0
	if !r.done && r.got < r.last {
		return reply, false, nil
	}
	r.last = r.got + r.window
	return control(s, RMPPAck, RMPPNormal, r.got, r.last), true, nil
}

func (r *Receiver) fail(s *SA, t RMPPType, status RMPPStatus) (MAD, bool, error) {
	err := fmt.Errorf("type %d, flags %d, segment %d, length %d after %d segments and %d of %d bytes (RMPP status %d): %w",
		s.RMPP.Type, s.RMPP.Flags, s.RMPP.Segment, s.RMPP.Length, r.got, len(r.table), r.limit, status, ErrTransfer)
	r.done, r.table = true, nil
	return control(s, t, status, 0, 0), true, err
}

// control returns a segment that answers s: its header, with the response bit turned (section 13.6.2.1).
func control(s *SA, t RMPPType, status RMPPStatus, segment, length uint32) MAD {
	c := SA{Header: s.Header}
	c.Method ^= MethodResponse
	c.RMPP = RMPP{Version: RMPPVersion, Type: t, ResponseTime: noResponseTime, Flags: RMPPActive, Status: status, Segment: segment, Length: length}
	return c.MAD()
}

// Done reports whether the transfer has ended, one way or the other.
func (r *Receiver) Done() bool { return r.done }

// Answer returns the head of the answer and its records, once the transfer is done without error.
func (r *Receiver) Answer() (head SA, table []byte) { return r.head, r.table }
