package ddp

// RecvQueue is the receiving state of one untagged queue over an LLP that
// delivers in order (RFC 5041 sections 5.2 and 7.1).
type RecvQueue struct {
	qn  uint32
	msn uint32 // of the message that is expected or in progress
	mo  uint32 // bytes of it placed so far
	mid bool   // its first segment has been accepted
}

// NewRecvQueue returns the state of queue qn of a fresh stream, whose first
// message has MSN 1 (RFC 5041 section 4.3).
func NewRecvQueue(qn uint32) RecvQueue { return RecvQueue{qn: qn, msn: 1} }

// Accept checks the sequence fields of a segment. first reports that the
// segment starts a message, which therefore consumes a buffer now. A segment
// that repeats or skips is the peer's fault.
func (q *RecvQueue) Accept(u Untagged) (first bool, err error) {
	if u.MSN() != q.msn {
		return false, Faultf(LayerDDP, TypeUntagged, CodeUntaggedMSNRange, u,
			"queue %d: message sequence number %d where %d is due", q.qn, u.MSN(), q.msn)
	}
	if u.MO() != q.mo {
		return false, Faultf(LayerDDP, TypeUntagged, CodeUntaggedInvalidMO, u,
			"queue %d, message %d: offset %d where %d is due", q.qn, q.msn, u.MO(), q.mo)
	}
	return !q.mid, nil
}

// Placed records that n bytes of the accepted segment were placed; last ends
// the message.
func (q *RecvQueue) Placed(n int, last bool) {
	if last {
		q.msn++
		q.mo, q.mid = 0, false
		return
	}
	q.mo += uint32(n)
	q.mid = true
}

// MO is the number of bytes of the current message that have been placed.
func (q *RecvQueue) MO() uint32 { return q.mo }
