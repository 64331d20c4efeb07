package rping

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// side is the common part of client and server: a queue pair, the messages, and
// buffers for the payload.
type side struct {
	pd   *verbs.PD
	cq   *verbs.CQ
	qp   *verbs.QP
	msgs *verbs.MR   // what is received, then what is sent
	data []*verbs.MR // of MaxSize bytes each, which the peer may not reach yet
}

func newSide(ulp *verbs.ULP, trust verbs.TrustModel, access ...verbs.Access) (_ *side, err error) {
	s := &side{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.pd, err = ulp.AllocPDAs(trust.Alone()); err != nil {
		return nil, err
	}
	if s.cq, err = ulp.CreateCQ(2*queueDepth, nil); err != nil {
		return nil, err
	}
	if s.msgs, err = s.pd.RegisterMR(make([]byte, 2*infoLen), verbs.LocalWrite); err != nil {
		return nil, err
	}
	for _, a := range access {
		mr, err := s.pd.RegisterMR(make([]byte, MaxSize), a)
		if err != nil {
			return nil, err
		}
		s.data = append(s.data, mr)
	}
	return s, nil
}

func (s *side) config() verbs.QPConfig {
	return verbs.QPConfig{SendCQ: s.cq, RecvCQ: s.cq, MaxSend: queueDepth, MaxRecv: 1, IRD: readDepth, ORD: readDepth}
}

// close ends the stream and frees everything.
func (s *side) close() error {
	if s.qp != nil {
		s.qp.Close()
		<-s.qp.Done()
	}
	var err error
	for _, mr := range append(s.data, s.msgs) {
		if mr != nil {
			err = errors.Join(err, mr.Deregister())
		}
	}
	if s.cq != nil {
		err = errors.Join(err, s.cq.Destroy())
	}
	if s.pd != nil {
		err = errors.Join(err, s.pd.Dealloc())
	}
	return err
}

// listen posts the receive for the next message.
func (s *side) listen(qp *verbs.QP) error {
	return qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{{MR: s.msgs, Len: infoLen}}})
}

// say sends a message.
func (s *side) say(i info) error {
	i.append(s.msgs.Bytes()[: infoLen : 2*infoLen])
	return s.qp.PostSend(&verbs.SendWR{Op: verbs.OpSend, Flags: verbs.Inline, SGL: []verbs.SGE{{MR: s.msgs, Off: infoLen, Len: infoLen}}})
}

// errEnded means that the peer closed the stream.
var errEnded = errors.New("rping: the peer closed the stream")

// wait waits for the completion of op.
func (s *side) wait(ctx context.Context, op verbs.WCOp) (verbs.WC, error) {
	var wcs [1]verbs.WC
	for s.cq.Poll(wcs[:]) == 0 {
		if err := s.cq.Wait(ctx); err != nil {
			return wcs[0], fmt.Errorf("rping: wait for the peer: %w", err)
		}
	}
	wc := wcs[0]
	switch {
	case wc.Err == nil && wc.Op == op:
		return wc, nil
	case wc.Err == nil:
		return wc, fmt.Errorf("rping: the peer answered out of turn: %v, want %v", wc.Op, op)
	case errors.Is(wc.Err, rdmap.ErrPeerClosed):
		return wc, errEnded
	}
	return wc, fmt.Errorf("rping: %w", wc.Err)
}

// hear waits for the peer's next message and posts the receive for the one
// after it.
func (s *side) hear(ctx context.Context) (info, error) {
	wc, err := s.wait(ctx, verbs.WCRecv)
	if err != nil {
		return info{}, err
	}
	i, err := parseInfo(s.msgs.Bytes()[:infoLen][:wc.Len])
	if err != nil {
		return info{}, err
	}
	return i, s.listen(s.qp)
}
