package sctpadapt

import (
	"encoding/binary"
	"errors"

	"github.com/ironwarp/ironwarp/ddp"
)

// Records in the queue: length of the chunk(4), flags(4), the chunk.
const (
	recordLen = 8
	recordEnd = 1 // a Terminate
)

// putLocked queues a chunk. It reports whether the chunk is charged to the
// receive window.
func (s *Stream) putLocked(chunk []byte, flags uint32) (charged bool) {
	if s.queue == nil {
		s.queue = s.mux.getBuffer()
	}
	b := binary.BigEndian.AppendUint32(*s.queue, uint32(len(chunk)))
	b = binary.BigEndian.AppendUint32(b, flags)
	*s.queue = append(b, chunk...)
	if !s.touched {
		s.touched = true
		s.mux.touched = append(s.mux.touched, s)
	}
	return s.chargeLocked(len(chunk))
}

// take waits for something in the queue. An error is the end.
func (s *Stream) take() (*[]byte, error) {
	for {
		s.mu.Lock()
		q, err := s.queue, s.err
		s.queue = nil
		s.mu.Unlock()
		if q != nil && err != ddp.ErrClosed {
			return q, nil
		}
		if q != nil {
			s.forfeit(q)
		}
		if err != nil {
			return nil, err
		}
		<-s.signal
	}
}

// forfeit throws a buffer of records away.
func (s *Stream) forfeit(q *[]byte) {
	n := 0
	for b := *q; len(b) > 0; {
		var r record
		r, b = cutRecord(b)
		n += len(r.chunk)
	}
	s.uncharge(n)
	s.mux.putBuffer(q)
}

// drop throws away what is in the queue.
func (s *Stream) drop() {
	s.mu.Lock()
	q := s.queue
	s.queue = nil
	s.mu.Unlock()
	if q != nil {
		s.forfeit(q)
	}
}

type record struct {
	flags uint32
	chunk []byte
}

// cutRecord takes the first record off b, which put has made.
func cutRecord(b []byte) (r record, rest []byte) {
	n := recordLen + int(binary.BigEndian.Uint32(b))
	return record{binary.BigEndian.Uint32(b[4:]), b[recordLen:n]}, b[n:]
}

// Receive hands segments to sink until the session ends; see ddp.LLP. A
// ddp.Placer gets them as they come, others in their order (RFC 5043 section
// 10). It returns io.EOF after the peer's Terminate, a *SessionError after a
// chunk that conforms to no legal sequence, an error that matches
// ErrConnectionLost when the association ends.
func (s *Stream) Receive(sink ddp.Sink) error {
	if s.over == nil {
		s.order = ddp.NewReorder(sink, 1, ddp.MaxReorder) // 0 was the session's first message
		s.over = s.receive(sink, func(r record) error {
			ssn := binary.BigEndian.Uint16(r.chunk)
			if r.flags&recordEnd != 0 {
				return s.order.End(ssn)
			}
			return s.order.Segment(ssn, r.chunk[ssnLen:])
		})
		s.order = nil
	}
	return s.over
}

// releaseEvery is how many bytes are handed over before the receive window gets
// them back.
const releaseEvery = 32 << 10

func (s *Stream) receive(sink ddp.Sink, each func(record) error) error {
	for {
		q, err := s.take()
		if err != nil {
			return err
		}
		n := 0
		for b := *q; len(b) > 0; {
			var r record
			r, b = cutRecord(b)
			if err == nil {
				err = each(r)
			}
			if n += len(r.chunk); n >= releaseEvery {
				s.uncharge(n)
				n = 0
			}
		}
		if sink != nil {
			sink.BatchEnd()
		}
		s.uncharge(n) // after an answer, which takes the SACK along
		s.mux.putBuffer(q)
		if err == nil {
			continue
		}
		var out *ddp.SequenceError
		if errors.As(err, &out) {
			err = &SessionError{Stream: s.id, Text: "a number is out of the window", Err: err}
			s.fail(err)
		}
		return err
	}
}

// getBuffer and putBuffer keep receive buffers while streams do not need them.
func (m *Mux) getBuffer() *[]byte {
	if b, ok := m.bufs.Get().(*[]byte); ok {
		return b
	}
	return new([]byte)
}

func (m *Mux) putBuffer(b *[]byte) {
	if cap(*b) <= keepBuffer {
		*b = (*b)[:0]
		m.bufs.Put(b)
	}
}
