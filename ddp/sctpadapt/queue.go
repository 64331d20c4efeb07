package sctpadapt

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// queue holds chunks that wait for Stream.Receive: copies of the short ones, and of the
// others what the association received them into, if that may be kept.
type queue struct {
	records []byte // length of the chunk(4), flags(4), the chunk if it is copied
	at      int    // of records: the next one
	lent    []lent // the chunks that are not copied, in their order
	taken   int    // of lent

	first, last assoc.Memory // kept: of the record last taken, and of the last one in lent
}

// lent is a chunk in memory of the association.
type lent struct {
	chunk  []byte
	memory assoc.Memory
}

const (
	recordLen  = 8
	recordEnd  = 1 // a Terminate
	recordLent = 2
)

// record is a chunk in the queue.
type record struct {
	flags uint32
	chunk []byte // valid until the next one is taken
}

// put adds a chunk. Memory is kept once for consecutive chunks in it.
func (q *queue) put(msg *assoc.Message, flags uint32) {
	if msg.Memory == nil || len(msg.Payload) < leastLent {
		q.header(msg, flags)
		q.records = append(q.records, msg.Payload...)
		return
	}
	q.header(msg, flags|recordLent)
	if msg.Memory != q.last {
		msg.Memory.Keep()
		q.last = msg.Memory
	}
	q.lent = append(q.lent, lent{msg.Payload, msg.Memory})
}

// header begins a record.
func (q *queue) header(msg *assoc.Message, flags uint32) {
	q.records = binary.BigEndian.AppendUint32(q.records, uint32(len(msg.Payload)))
	q.records = binary.BigEndian.AppendUint32(q.records, flags)
}

// next takes the first chunk. ok is false if there is none left: then no memory is kept
// any more.
func (q *queue) next() (r record, ok bool) {
	if q.at == len(q.records) {
		q.reach(nil)
		return r, false
	}
	b := q.records[q.at:]
	n := int(binary.BigEndian.Uint32(b))
	r.flags = binary.BigEndian.Uint32(b[4:])
	q.at += recordLen
	if r.flags&recordLent == 0 {
		r.chunk = b[recordLen : recordLen+n]
		q.at += n
		return r, true
	}
	l := &q.lent[q.taken]
	q.taken++
	q.reach(l.memory)
	r.chunk = l.chunk
	return r, true
}

// reach releases the memory before m.
func (q *queue) reach(m assoc.Memory) {
	if q.first != nil && q.first != m {
		q.first.Release()
	}
	q.first = m
}

// getQueue and putQueue keep queues while streams do not need them.
func (m *Mux) getQueue() *queue {
	if q, ok := m.queues.Get().(*queue); ok {
		return q
	}
	return new(queue)
}

func (m *Mux) putQueue(q *queue) {
	if cap(q.records) > keepBuffer {
		return
	}
	clear(q.lent)
	*q = queue{records: q.records[:0], lent: q.lent[:0]}
	m.queues.Put(q)
}
