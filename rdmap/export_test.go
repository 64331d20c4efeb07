package rdmap

import "github.com/ironwarp/ironwarp/ddp"

// SetMSNs makes n the next message sequence number of the queues 0, 1 and 3 in
// both directions, as after very many messages.
func (s *Stream) SetMSNs(n uint32) {
	s.tx.sqMSN, s.tx.rrMSN, s.tx.arMSN = n, n, n
	for _, qn := range []uint32{QNSend, QNReadRequest, QNAtomicResponse} {
		s.rx.q[qn] = ddp.NewRecvQueue(qn, n)
	}
}
