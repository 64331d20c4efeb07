package mpa

import (
	"context"
	"errors"
	"net"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// Request is an initiator's request which the ULP has to answer with Accept or
// Reject, once.
type Request struct {
	// PrivateData is the initiator's ULP's.
	PrivateData []byte
	// Revision is the MPA revision of the request, which the reply follows.
	Revision uint8
	// Enhanced is the initiator's enhanced connection data, nil if it sent none.
	Enhanced *enhanced.Data
	// CRC and Markers are what the initiator asks for.
	CRC, Markers bool

	nc       net.Conn
	cfg      *Config
	hello    *hello
	raw      []byte // as it was sent
	answered atomic.Bool
}

// AcceptOptions is what a responder's ULP decides about one request.
type AcceptOptions struct {
	// PrivateData goes into the reply, in place of Config's if not nil.
	PrivateData []byte
	// IRD and ORD are the responder's, as in Config.
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
	f, raw, _, err := readFrame(nc, false)
	if err != nil {
		err = startupFailed("wait for the MPA request", err)
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
		raw:         raw,
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
	var err error
	if p.reply, err = r.send(ctx, &rep); err != nil {
		r.nc.Close()
		return nil, err
	}
	p.request = r.raw
	return newConn(r.nc, r.cfg, p), nil
}

// Reject refuses the request with the ULP's private data. The underlying
// connection stays open and has no byte of it read ahead, so the ULP may go on
// with it; only an error closes it (RFC 5044 section 7.1.2 rule 2). A reply of revision
// 2 has an IRD and ORD in any case; here they say nothing.
func (r *Request) Reject(ctx context.Context, privateData []byte) error {
	rep, _ := r.reply(AcceptOptions{})
	if rep.Enhanced != nil {
		rep.Enhanced = enhanced.Refuse(r.Enhanced, r.cfg.PeerToPeer)
	}
	return r.reject(ctx, rep, privateData)
}

// RejectDepths is Reject for an initiator that offers too few RDMA Reads: the
// reply names acceptable depths (RFC 6581 section 9.1). ird and ord are as in
// Config. It fails as Reject does.
func (r *Request) RejectDepths(ctx context.Context, privateData []byte, ird, ord uint16) error {
	rep, _ := r.reply(AcceptOptions{})
	if rep.Enhanced != nil {
		rep.Enhanced.IRD, rep.Enhanced.ORD = enhanced.Depth(ird), enhanced.Depth(ord)
	}
	return r.reject(ctx, rep, privateData)
}

func (r *Request) reject(ctx context.Context, rep Frame, privateData []byte) error {
	if !r.answered.CompareAndSwap(false, true) {
		return errAnswered
	}
	rep.Reject, rep.PrivateData = true, privateData
	_, err := r.send(ctx, &rep)
	if err != nil {
		r.nc.Close()
	}
	return err
}

// send sends a reply, and returns its bytes.
func (r *Request) send(ctx context.Context, rep *Frame) (b []byte, err error) {
	if b, err = rep.Append(nil); err != nil {
		return nil, err
	}
	bo := bound(ctx, r.nc, r.cfg.startupTimeout())
	if _, err = r.nc.Write(b); err != nil {
		err = startupFailed("send the MPA reply", err)
	}
	return b, bo.end(err)
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
		agreed:    enhanced.Agreed{IRD: enhanced.Depth(o.IRD), ORD: enhanced.Depth(o.ORD)},
		peer:      r.Enhanced,

		privateData: r.PrivateData,
	}
	if r.Enhanced != nil {
		rep.Enhanced = p.agreed.Answer(r.Enhanced, cfg.PeerToPeer)
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
