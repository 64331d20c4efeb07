package ddp

// RecvQueue is the receiving state of one untagged queue, in the order of
// delivery (RFC 5041 sections 5.2 and 7.1).
type RecvQueue struct {
	qn  uint32
	msn uint32 // of the message that is expected or in progress
	mo  uint32 // bytes of it placed so far
}

// FirstMSN is the message sequence number of the first message of each queue
// (RFC 5041 section 4.3). The one after 0xffffffff is 0.
const FirstMSN = 1

// NewRecvQueue returns the state of queue qn before the message of number msn,
// FirstMSN on a fresh stream.
func NewRecvQueue(qn, msn uint32) RecvQueue { return RecvQueue{qn: qn, msn: msn} }

// Accept checks the sequence fields of a segment whose turn it is. One that
// repeats or skips is the peer's fault. The error is a *Error, for a Terminate.
func (q *RecvQueue) Accept(u Untagged) error {
	if u.MSN() != q.msn {
		return Faultf(LayerDDP, TypeUntagged, CodeUntaggedMSNRange, u,
			"queue %d: message sequence number %d where %d is due", q.qn, u.MSN(), q.msn)
	}
	if u.MO() != q.mo {
		return Faultf(LayerDDP, TypeUntagged, CodeUntaggedInvalidMO, u,
			"queue %d, message %d: offset %d where %d is due", q.qn, q.msn, u.MO(), q.mo)
	}
	return nil
}

// Placed records that n bytes of the accepted segment were placed; last ends
// the message.
func (q *RecvQueue) Placed(n int, last bool) {
	if last {
		q.msn++
		q.mo = 0
		return
	}
	q.mo += uint32(n)
}

// Ahead is by how many messages u is ahead of the one that is expected or in
// progress. Numbers wrap, so a past message is very far ahead (RFC 5041 section
// 4.3).
func (q *RecvQueue) Ahead(u Untagged) uint32 { return u.MSN() - q.msn }
