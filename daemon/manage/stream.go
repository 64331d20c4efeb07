package manage

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/verbs"
)

// stream is one end of a stream of messages. One goroutine uses it.
type stream struct {
	pd     *verbs.PD
	cq     *verbs.CQ
	memory *verbs.MR // receives, and behind them what is being sent
	qp     *verbs.QP

	sending bool     // the memory behind the receives is in use
	inbox   [][]byte // messages that have arrived while something was sent
}

func newStream(ulp *verbs.ULP) (*stream, error) {
	s := &stream{}
	var err error
	if s.pd, err = ulp.AllocPDAs(verbs.NSNT); err != nil {
		return nil, err
	}
	if s.memory, err = s.pd.RegisterMR(make([]byte, (receives+1)*messageLen), verbs.LocalWrite); err == nil {
		s.cq, err = ulp.CreateCQ(receives+2, nil)
	}
	if err != nil {
		return nil, errors.Join(err, s.free())
	}
	return s, nil
}

func (s *stream) config() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSend: 1, MaxRecv: receives}
}

// prepare gives the stream its queue pair, before anything can arrive.
func (s *stream) prepare(qp *verbs.QP) error {
	s.qp = qp
	for slot := range receives {
		if err := s.post(slot); err != nil {
			return err
		}
	}
	return nil
}

func (s *stream) post(slot int) error {
	return s.qp.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{{MR: s.memory, Off: uint32(slot * messageLen), Len: messageLen}}})
}

// close ends the stream when what was sent has arrived, or after a time, and gives back what it used.
func (s *stream) close() error {
	if s.qp != nil {
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		_ = s.qp.Shutdown(ctx) // it aborts what does not end in time
		<-s.qp.Done()
	}
	return s.free()
}

func (s *stream) free() error {
	var err error
	if s.cq != nil {
		err = s.cq.Destroy()
	}
	if s.memory != nil {
		err = errors.Join(err, s.memory.Deregister())
	}
	return errors.Join(err, s.pd.Dealloc())
}

// advance waits for a completion, and deals with it.
func (s *stream) advance(ctx context.Context) error {
	var wcs [1]verbs.WC
	for s.cq.Poll(wcs[:]) == 0 {
		if err := s.cq.Wait(ctx); err != nil {
			// The stream may have ended just after it had brought what is waited for.
			if s.cq.Poll(wcs[:]) > 0 {
				break
			}
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	wc := &wcs[0]
	switch {
	case wc.Err != nil:
		return wc.Err
	case wc.Op != verbs.WCRecv:
		s.sending = false
		return nil
	case len(s.inbox) >= receives:
		return fmt.Errorf("%w: it was not asked for", errMessage)
	}
	s.inbox = append(s.inbox, append([]byte(nil), s.memory.Bytes()[int(wc.ID)*messageLen:][:wc.Len]...))
	// Where that fails the stream is ending, which the next wait finds.
	_ = s.post(int(wc.ID))
	return nil
}

// untilEnd is a context that ends with the stream: what has arrived by then is still received.
func (s *stream) untilEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-s.qp.Done():
			cancel(cmp.Or(s.qp.Err(), errEnded))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// errEnded is why nothing more arrives in a stream that the other end has closed.
var errEnded = errors.New("the peer has ended the stream")

// receive waits for a message.
func (s *stream) receive(ctx context.Context, kind byte) (payload []byte, last bool, err error) {
	for len(s.inbox) == 0 {
		if err := s.advance(ctx); err != nil {
			return nil, false, err
		}
	}
	m := s.inbox[0]
	s.inbox = s.inbox[1:]
	return parseMessage(m, kind)
}

// send sends a message.
func (s *stream) send(ctx context.Context, kind byte, last bool, payload []byte) error {
	for s.sending {
		if err := s.advance(ctx); err != nil {
			return err
		}
	}
	m := appendMessage(s.memory.Bytes()[receives*messageLen:][:0], kind, last, payload)
	s.sending = true
	return s.qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Signaled, SGL: []verbs.SGE{{MR: s.memory, Off: receives * messageLen, Len: uint32(len(m))}}})
}

// sendAll sends a text in as many messages as it needs, each when the one before was asked for the next.
func (s *stream) sendAll(ctx context.Context, kind byte, text []byte) error {
	for {
		n := min(len(text), chunk)
		part, last := text[:n], n == len(text)
		if err := s.within(ctx, func(ctx context.Context) error {
			if err := s.send(ctx, kind, last, part); err != nil || last {
				return err
			}
			_, _, err := s.receive(ctx, kindMore)
			return err
		}); err != nil || last {
			return err
		}
		text = text[n:]
	}
}

// receiveAll receives a text of up to most bytes.
func (s *stream) receiveAll(ctx context.Context, kind byte, most int) (text []byte, err error) {
	for first := true; ; first = false {
		part, last, err := s.receive(ctx, kind)
		switch {
		case err != nil:
			return nil, err
		case len(part) == 0 && !(first && last), len(text)+len(part) > most:
			return nil, fmt.Errorf("%w: its parts have %d and %d bytes", errMessage, len(text), len(part))
		}
		if text = append(text, part...); last {
			return text, nil
		}
		if err := s.send(ctx, kindMore, true, nil); err != nil {
			return nil, err
		}
	}
}

// within bounds what the other end may take for one message.
func (s *stream) within(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, messageTime)
	defer cancel()
	return f(ctx)
}
