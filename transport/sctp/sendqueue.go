package sctp

import (
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// blockPool supplies memory for queued messages, in blocks of blockSize bytes.
type blockPool struct{ p sync.Pool }

type block [blockSize]byte

func (p *blockPool) get() *block {
	if b, ok := p.p.Get().(*block); ok {
		return b
	}
	return new(block)
}

func (p *blockPool) put(b *block) { p.p.Put(b) }

// chunkState is the state of a queued DATA chunk.
type chunkState uint8

const (
	chunkQueued chunkState = iota // not sent yet
	chunkFlying                   // sent
	chunkLost                     // to be sent again
	chunkAcked                    // in a Gap Ack Block of the last SACK
)

// txChunk is a queued DATA chunk. Its TSN follows from its position.
type txChunk struct {
	room   []byte // in a block: place for a common header, the chunk with its padding
	size   uint16 // of its user data
	state  chunkState
	sent   uint8  // how many times
	last   bool   // Outgoing.Barrier
	offset uint16 // its offset in the packet that last carried it
	packet uint32 // number of that packet
	sentAt uint32 // when last sent, in microseconds
}

// data returns the chunk with its padding.
func (c *txChunk) data() []byte { return c.room[headerLen:] }

// sendQueue holds the DATA chunks from the Cumulative TSN Ack Point on. Messages get
// their TSNs when they are queued, and are sent in that order.
//
//	acked | flying, lost, acked in gaps ... | unsent ... | next
type sendQueue struct {
	acked  uint32 // Cumulative TSN Ack Point
	unsent uint32 // the first TSN never sent
	next   uint32 // the next message's TSN

	ring   []txChunk // TSN modulo its length, a power of two
	bytes  int       // queued and in flight, including overhead
	lost   int       // chunks to be sent again
	scan   uint32    // no lost chunk precedes this TSN
	gapped int       // chunks acknowledged by gap blocks only

	pool   *blockPool
	blocks []usedBlock
	used   int      // used bytes of the last block
	lent   bool     // packets in the blocks are being sent, so they stay as they are
	later  []*block // freed meanwhile
}

// usedBlock is a block and the TSN of the last chunk in it.
type usedBlock struct {
	mem  *block
	last uint32
}

func (q *sendQueue) init(tsn uint32, pool *blockPool) {
	*q = sendQueue{acked: tsn - 1, unsent: tsn, next: tsn, scan: tsn, pool: pool}
}

func (q *sendQueue) at(tsn uint32) *txChunk { return &q.ring[int(tsn)&(len(q.ring)-1)] }

// len returns the number of chunks.
func (q *sendQueue) len() int { return int(q.next - q.acked - 1) }

// user returns the number of bytes of messages queued and in flight.
func (q *sendQueue) user() int { return q.bytes - q.len()*assoc.MessageOverhead }

// outstanding reports whether something sent is not acknowledged.
func (q *sendQueue) outstanding() bool { return q.unsent != q.acked+1 }

// room reports whether a message of n bytes may be queued within limit bytes. One message
// always may.
func (q *sendQueue) room(n, limit int) bool {
	return q.len() == 0 || q.len() < maxQueued && q.bytes+n+assoc.MessageOverhead <= limit
}

// push queues a message of n bytes, which it copies.
func (q *sendQueue) push(m *assoc.Outgoing, n int) {
	if q.len() == len(q.ring) {
		q.grow()
	}
	need := headerLen + padded(dataHeaderLen+n)
	if len(q.blocks) == 0 || q.used+need > blockSize {
		q.blocks = append(q.blocks, usedBlock{mem: q.pool.get()})
		q.used = 0
	}
	u := &q.blocks[len(q.blocks)-1]
	b := u.mem[q.used : q.used+headerLen : q.used+need]
	b = appendDataHeader(b, flagB|flagE|flagU, q.next, m.Stream, 0, m.PPID, n)
	for _, p := range m.Bufs {
		b = append(b, p...)
	}
	b = pad(b, len(b)-headerLen)
	u.last = q.next
	q.used += need
	*q.at(q.next) = txChunk{room: b, size: uint16(n), last: m.Barrier}
	q.bytes += n + assoc.MessageOverhead
	q.next++
}

func (q *sendQueue) grow() {
	old := *q
	q.ring = make([]txChunk, max(16, 2*len(q.ring)))
	for tsn := q.acked + 1; tsn != q.next; tsn++ {
		*q.at(tsn) = *old.at(tsn)
	}
}

// pop removes the first chunk, which the peer has.
func (q *sendQueue) pop() {
	q.acked++
	c := q.at(q.acked)
	q.bytes -= int(c.size) + assoc.MessageOverhead
	switch c.state {
	case chunkLost:
		q.lost--
	case chunkAcked:
		q.gapped--
	}
	*c = txChunk{}
}

// release frees memory after chunks were popped.
func (q *sendQueue) release() {
	n := 0
	for n < len(q.blocks) && !before(q.acked, q.blocks[n].last) {
		q.free(q.blocks[n].mem)
		n++
	}
	if n > 0 {
		k := copy(q.blocks, q.blocks[n:])
		clear(q.blocks[k:]) // the pool owns them
		q.blocks = q.blocks[:k]
	}
}

// free gives a block back to the pool, which others use, once nothing in it is being sent.
func (q *sendQueue) free(b *block) {
	if q.lent {
		q.later = append(q.later, b)
		return
	}
	q.pool.put(b)
}

// sent reports that packets that were lent have been sent.
func (q *sendQueue) sent() {
	q.lent = false
	for i, b := range q.later {
		q.pool.put(b)
		q.later[i] = nil
	}
	q.later = q.later[:0]
}

// idle frees the ring if nothing is queued.
func (q *sendQueue) idle() {
	if q.len() == 0 {
		q.ring = nil
		if cap(q.blocks) > 16 {
			q.blocks = nil
		}
		if !q.lent {
			q.later = nil
		}
	}
}

// discard drops everything.
func (q *sendQueue) discard() {
	for _, u := range q.blocks {
		q.free(u.mem)
	}
	*q = sendQueue{acked: q.next - 1, unsent: q.next, next: q.next, scan: q.next, pool: q.pool, lent: q.lent, later: q.later}
}

// sendable reports whether a message may be queued in this state (RFC 9260 section 9.2),
// and its length.
func (t *tcb) sendable(m *assoc.Outgoing) (n int, err error) {
	switch {
	case t.state == stateClosed && t.err != nil:
		return 0, t.err
	case t.state == stateClosed || t.state >= stateShutdownPending:
		return 0, assoc.ErrShutdown
	}
	return m.Check(t.maxMessage(), int(t.peer.out))
}

// maxMessage returns the length of the longest message in bytes.
func (t *tcb) maxMessage() int { return (t.size - headerLen - dataHeaderLen) &^ 3 }

// armT3 starts T3-rtx (RFC 9260 section 6.3.2).
func (t *tcb) armT3(now time.Duration) {
	t.timers[t3] = now + t.path.rto
	t.armTail(now)
}

// expireT3 handles an expiry of T3-rtx (RFC 9260 section 6.3.3).
func (t *tcb) expireT3(now time.Duration) {
	q := &t.tx
	if !q.outstanding() {
		// The peer's window is closed: probe it (RFC 9260 section 6.1 A).
		t.flow.probe = q.unsent != q.next
		t.path.backOff(t.maxRTO())
		return
	}
	heard := t.flow.probing && t.flow.heard
	if heard {
		t.flow.heard = false
	} else if !t.countError() {
		return
	}
	t.stats.Timeouts++
	if !t.flow.probing {
		t.path.control.timedOut(&t.path.window)
		t.loss.fast = false
	}
	t.path.backOff(t.maxRTO())
	t.again()
	t.armT3(now)
	if !heard { // otherwise the peer has no room, whatever the length
		t.lostAgain(now)
	}
}

// again marks everything in flight to be sent again, one packet at first.
func (t *tcb) again() {
	q := &t.tx
	t.path.timing = false
	t.loss.solo = true
	t.lossProbe.at = 0
	for tsn := q.acked + 1; tsn != q.unsent; tsn++ {
		c := q.at(tsn)
		if c.state == chunkFlying {
			t.lose(c)
		}
	}
	q.scan = q.acked + 1
}

// lose marks a chunk for retransmission (RFC 9260 section 6.2.1 C).
func (t *tcb) lose(c *txChunk) {
	c.state = chunkLost
	t.tx.lost++
	t.path.flight -= len(c.data())
	t.flow.rwnd += int(c.size)
}
