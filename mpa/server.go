package mpa

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
)

// Request is an initiator's request which the ULP has to answer with Accept or
// Reject, once.
type Request struct {
	// PrivateData is the initiator's ULP's.
	PrivateData []byte
	// Revision is the MPA revision of the request, which the reply follows.
	Revision uint8
	// Enhanced is the initiator's enhanced connection data, nil if it sent none.
	Enhanced *Enhanced
	// CRC and Markers are what the initiator asks for.
	CRC, Markers bool

	nc       net.Conn
	cfg      *Config
	hello    *hello
	answered atomic.Bool
}

// AcceptOptions is what a responder's ULP decides about one request.
type AcceptOptions struct {
	// PrivateData goes into the reply, in place of Config's if not nil.
	PrivateData []byte
	// IRD and ORD, if not 0, stand in place of Config's.
	IRD, ORD uint16
}

var errAnswered = errors.New("mpa: the request has been answered already")

// Server starts MPA on nc as responder: it waits for a request. Any error
// closes nc.
func Server(ctx context.Context, nc net.Conn, cfg *Config) (*Request, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	b := bound(ctx, nc, cfg.startupTimeout())
	f, _, err := readFrame(nc, false)
	if err != nil {
		err = fmt.Errorf("mpa: wait for the MPA request: %w", err)
	}
	if err = b.end(err); err != nil {
		nc.Close()
		return nil, err
	}
	r := &Request{
		PrivateData: f.PrivateData,
		Revision:    f.Revision,
		Enhanced:    f.Enhanced,
		CRC:         f.CRC,
		Markers:     f.Markers,
		nc:          nc,
		cfg:         cfg,
	}
	if h, rest, ok := cutHello(f.PrivateData); ok {
		r.hello, r.PrivateData = &h, rest
	}
	return r, nil
}

// Accept answers the request and enters full operation. The connection sends
// nothing before it has received the first FPDU (RFC 5044 section 7.1.2
// rule 4). An error closes the underlying connection.
func (r *Request) Accept(ctx context.Context, o AcceptOptions) (*Conn, error) {
	if !r.answered.CompareAndSwap(false, true) {
		return nil, errAnswered
	}
	rep, p := r.reply(o)
	if err := r.send(ctx, &rep); err != nil {
		r.nc.Close()
		return nil, err
	}
	return newConn(r.nc, r.cfg, p), nil
}

// Reject refuses the request with the ULP's private data. The underlying
// connection stays open, unless there is an error.
func (r *Request) Reject(ctx context.Context, privateData []byte) error {
	if !r.answered.CompareAndSwap(false, true) {
		return errAnswered
	}
	rep, _ := r.reply(AcceptOptions{})
	rep.Reject, rep.PrivateData = true, privateData
	err := r.send(ctx, &rep)
	if err != nil {
		r.nc.Close()
	}
	return err
}

func (r *Request) send(ctx context.Context, rep *Frame) error {
	b, err := rep.Append(nil)
	if err != nil {
		return err
	}
	bo := bound(ctx, r.nc, r.cfg.startupTimeout())
	if _, err = r.nc.Write(b); err != nil {
		err = fmt.Errorf("mpa: send the MPA reply: %w", err)
	}
	return bo.end(err)
}

// reply negotiates on the responder's side.
func (r *Request) reply(o AcceptOptions) (Frame, params) {
	cfg := r.cfg
	rep := Frame{
		Reply:       true,
		Markers:     cfg.Markers,
		CRC:         r.CRC || cfg.CRC == CRCPrefer,
		Revision:    r.Revision,
		PrivateData: cfg.PrivateData,
	}
	if o.PrivateData != nil {
		rep.PrivateData = o.PrivateData
	}
	p := params{
		revision:  r.Revision,
		crc:       rep.CRC,
		txMarkers: r.Markers,
		rxMarkers: cfg.Markers,
		ird:       depth(cfg.IRD),
		ord:       depth(cfg.ORD),
		peer:      r.Enhanced,

		privateData: r.PrivateData,
	}
	if o.IRD != 0 {
		p.ird = depth(o.IRD)
	}
	if o.ORD != 0 {
		p.ord = depth(o.ORD)
	}
	if r.Enhanced != nil {
		rep.Enhanced = p.answer(r.Enhanced, cfg.PeerToPeer)
	}
	if r.hello != nil {
		ours := cfg.largeFPDU()
		p.large = agreeLarge(ours, *r.hello, r.Markers || cfg.Markers)
		if p.large == 0 {
			ours = 0
		}
		rep.PrivateData = append(hello{maxULPDU: uint32(ours)}.append(nil), rep.PrivateData...)
	}
	return rep, p
}

// answer is the enhanced data of the reply to req (RFC 6581 sections 9.1, 9.2).
func (p *params) answer(req *Enhanced, supported RTR) *Enhanced {
	rep := &Enhanced{PeerToPeer: req.PeerToPeer}
	if req.PeerToPeer {
		if supported == 0 {
			supported = RTRWrite | RTRRead
		}
		if rep.RTR = supported & req.RTR; rep.RTR == 0 {
			rep.RTR = supported
		}
		p.rtr = rep.RTR
	}
	if req.ORD == DepthULP {
		rep.IRD = DepthULP
	} else {
		want := req.ORD
		if rep.RTR&RTRRead != 0 {
			want = max(want, 1)
		}
		if p.ird == DepthULP {
			rep.IRD = DepthULP
		} else {
			p.ird = min(p.ird, want)
			rep.IRD = p.ird
		}
	}
	if req.IRD == DepthULP {
		rep.ORD = DepthULP
	} else {
		if p.ord != DepthULP {
			p.ord = min(p.ord, req.IRD)
		} else {
			p.ord = req.IRD
		}
		rep.ORD = p.ord
	}
	return rep
}
