package sctpadapt

import (
	"encoding/binary"
	"errors"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// putLocked queues a chunk. It reports whether the chunk is charged to the
// receive window.
func (s *Stream) putLocked(msg *assoc.Message, flags uint32) (charged bool) {
	if s.queue == nil {
		s.queue = s.mux.getQueue()
	}
	s.queue.put(msg, flags)
	if !s.touched {
		s.touched = true
		s.mux.touched = append(s.mux.touched, s)
	}
	return s.chargeLocked(len(msg.Payload))
}

// take waits for something in the queue. An error is the end.
func (s *Stream) take() (*queue, error) {
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

// forfeit throws a queue away.
func (s *Stream) forfeit(q *queue) {
	n := 0
	for r, ok := q.next(); ok; r, ok = q.next() {
		n += len(r.chunk)
	}
	s.uncharge(n)
	s.mux.putQueue(q)
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
		for r, ok := q.next(); ok; r, ok = q.next() {
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
		s.mux.putQueue(q)
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
