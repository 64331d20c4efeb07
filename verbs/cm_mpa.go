package verbs

import (
	"context"
	"errors"

	"github.com/ironwarp/ironwarp/internal/turn"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// mpaDial is a TCP connection before and during MPA start-up (RFC 5044 section 7.1).
type mpaDial struct {
	*transport.Conn
	dev *Device
}

func (c *mpaDial) drop() { c.Close() }

func (c *mpaDial) start(ctx context.Context, dial *DialConfig) (*started, error) {
	mc := dial.Setup.mpa(c.dev, c.Conn)
	mc.PrivateData, mc.IRD, mc.ORD = dial.PrivateData, uint16(dial.QP.IRD), uint16(dial.QP.ORD)
	mc.PeerToPeer, mc.Requested = dial.Setup.offer(), dial.Requested
	if mc.PeerToPeer == 0 && !dial.Setup.ClientServer {
		// All that there are (RFC 6581 section 9.2); chooseRTR chooses.
		mc.PeerToPeer, mc.MayDecline = RTRWrite|RTRRead|RTRSend, true
	}
	m, err := mpa.Client(ctx, c.Conn, mc)
	if err != nil {
		var rej *mpa.RejectedError
		var neg *mpa.NegotiationError
		switch {
		case errors.As(err, &rej):
			err = &RejectedError{Remote: dial.Remote, PrivateData: rej.PrivateData, Depths: depthsOf(rej.IRD, rej.ORD), Err: err}
		case errors.As(err, &neg):
			rdmap.Refuse(neg.Conn, neg.Err)
		}
		return nil, err
	}
	return &started{llp: m, ird: int(m.IRD()), ord: int(m.ORD()), ready: chooseRTR(m.RTR()), private: m.PrivateData()}, nil
}

// runTCP accepts connections.
func (l *Listener) runTCP(ln *transport.Listener) {
	var line turn.Line
	for {
		conn, err := ln.Accept(l.ctx)
		if err != nil {
			return
		}
		half, err := l.dev.halfOpen(conn.Protection().Peer())
		if err != nil {
			l.refuse(conn, err)
			reset(conn)
			continue
		}
		mine := line.Join()
		l.wg.Go(func() { l.startup(conn, half, mine) })
	}
}

// startup reads one connection's MPA request, unless it begins in streaming mode.
func (l *Listener) startup(conn *transport.Conn, half *hold, mine *turn.Turn) {
	defer mine.End()
	if l.cfg.Streaming {
		switch streaming, err := l.streams(conn); {
		case err != nil:
			conn.Close()
			half.release()
			l.failed(conn.Flow(), err)
			return
		case streaming:
			l.offer(&streamRequest{conn}, half)
			return
		}
	}
	req, err := mpa.Server(l.ctx, conn, l.setup(conn).mpa(l.dev, conn))
	if err != nil {
		conn.Close()
		half.release()
		l.failed(conn.Flow(), err)
		return
	}
	mine.Let()
	l.offer(&mpaRequest{Conn: conn, req: req}, half)
}

// mpaRequest is a connection whose MPA request has been read.
type mpaRequest struct {
	*transport.Conn
	req *mpa.Request
}

func (r *mpaRequest) drop() { r.Close() }

func (r *mpaRequest) privateData() []byte { return r.req.PrivateData }

func (r *mpaRequest) depths() Depths {
	e := r.req.Enhanced
	if e == nil {
		return Depths{IRD: -1, ORD: -1}
	}
	return depthsOf(e.IRD, e.ORD)
}

func (r *mpaRequest) accept(ctx context.Context, private []byte, ird, ord uint16) (*started, error) {
	m, err := r.req.Accept(ctx, mpa.AcceptOptions{PrivateData: private, IRD: ird, ORD: ord})
	if err != nil {
		return nil, err
	}
	return &started{llp: m, ird: int(m.IRD()), ord: int(m.ORD()), awaited: m.RTR() != 0, private: r.req.PrivateData}, nil
}

func (r *mpaRequest) reject(ctx context.Context, private []byte) error {
	return r.req.Reject(ctx, private)
}

func (r *mpaRequest) rejectDepths(ctx context.Context, private []byte, ird, ord uint16) error {
	return r.req.RejectDepths(ctx, private, ird, ord)
}
