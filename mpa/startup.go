package mpa

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
)

// Client starts MPA on nc as initiator: it sends a request and reads the
// reply, and not a byte more. The error is a *RejectedError, which leaves nc
// open, a *NegotiationError, which hands the connection to the caller, or
// another, after which nc is closed; see RetryRevision1.
func Client(ctx context.Context, nc net.Conn, cfg *Config) (*Conn, error) {
	if cfg == nil {
		cfg = &Config{}
	}
	agreed := enhanced.Agreed{IRD: enhanced.Depth(cfg.IRD), ORD: enhanced.Depth(cfg.ORD)}
	req := Frame{Markers: cfg.Markers, CRC: cfg.CRC == CRCPrefer, Revision: cfg.revision()}
	if req.Revision >= 2 {
		req.Enhanced = agreed.Ask(cfg.PeerToPeer)
	}
	large := cfg.largeFPDU()
	if cfg.Markers {
		large = 0
	}
	if large > 0 {
		req.PrivateData = hello{maxULPDU: uint32(large)}.append(nil)
	}
	req.PrivateData = append(req.PrivateData, cfg.PrivateData...)

	b := bound(ctx, nc, cfg.startupTimeout())
	rep, frames, err := exchange(nc, &req, cfg.Requested)
	if err = b.end(err); err != nil {
		nc.Close()
		return nil, err
	}
	if rep.Reject {
		e := &RejectedError{PrivateData: rep.PrivateData, Revision: rep.Revision, IRD: enhanced.DepthULP, ORD: enhanced.DepthULP}
		if rep.Enhanced != nil {
			e.IRD, e.ORD = rep.Enhanced.IRD, rep.Enhanced.ORD
		}
		return nil, e
	}
	p := params{
		initiator: true,
		revision:  min(req.Revision, rep.Revision),
		crc:       req.CRC || rep.CRC,
		txMarkers: rep.Markers,
		rxMarkers: req.Markers,
		agreed:    agreed,
		request:   frames[0],
		reply:     frames[1],
	}
	if h, rest, ok := cutHello(rep.PrivateData); ok && large > 0 {
		p.large = agreeLarge(large, h, rep.Markers)
		rep.PrivateData = rest
	}
	p.privateData = rep.PrivateData
	var failed *ddp.Error
	if req.Enhanced != nil && rep.Enhanced != nil {
		p.peer = rep.Enhanced
		asked := *req.Enhanced
		if cfg.MayDecline && !rep.Enhanced.PeerToPeer {
			asked.PeerToPeer = false
		}
		failed = p.agreed.Take(&asked, rep.Enhanced)
	}
	c := newConn(nc, cfg, p)
	if failed != nil {
		return nil, &NegotiationError{Err: failed, Conn: c}
	}
	return c, nil
}

// exchange sends a request, says so, and reads the reply. It also returns both as they were sent.
func exchange(nc net.Conn, req *Frame, requested func()) (rep Frame, frames [2][]byte, err error) {
	b, err := req.Append(nil)
	if err != nil {
		return Frame{}, frames, err
	}
	if _, err := nc.Write(b); err != nil {
		return Frame{}, frames, startupFailed("send the MPA request", err)
	}
	if requested != nil {
		requested()
	}
	rep, raw, n, err := readFrame(nc, true)
	frames = [2][]byte{b, raw}
	if err == nil && req.Enhanced == nil && rep.Enhanced != nil {
		err = fault(CodeStartup, "an enhanced reply to a request without enhanced connection data (RFC 6581 section 10)")
	}
	if err == nil {
		return rep, frames, nil
	}
	failed := startupFailed("wait for the MPA reply", err)
	if n == 0 && req.Enhanced != nil && (errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET)) {
		return rep, frames, &noReplyError{err: failed}
	}
	return rep, frames, failed
}

// readFrame reads exactly one start-up frame and returns its bytes, and how many came. It
// allocates for the private data only once its length is known to be within
// the limit.
func readFrame(r io.Reader, reply bool) (f Frame, raw []byte, n int, err error) {
	var fixed [startupLen]byte
	n, err = io.ReadFull(r, fixed[:])
	if err != nil {
		return f, nil, n, err
	}
	f, withData, pdLen, err := parseStartup(fixed[:], reply)
	if err != nil {
		return f, nil, n, err
	}
	raw = make([]byte, startupLen+pdLen)
	copy(raw, fixed[:])
	pd := raw[startupLen:]
	m, err := io.ReadFull(r, pd)
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return f, nil, n + m, err
	}
	f.setPrivateData(pd, withData)
	return f, raw, n + m, nil
}

// agreeLarge is the length of large ULPDUs between an offer of ours and the
// peer's, 0 for none. Markers rule them out: a marker's pointer has 16 bits.
func agreeLarge(ours int, theirs hello, markers bool) int {
	if ours == 0 || markers || theirs.maxULPDU < minMULPDU {
		return 0
	}
	n := int(min(uint32(ours), theirs.maxULPDU))
	return n - (n-2)&3
}

// bounds ties a start-up to a context and a timeout by the connection's
// deadlines, which it takes away at the end.
type bounds struct {
	ctx    context.Context
	nc     net.Conn
	fired  chan struct{}
	stop   func() bool
	byCtx  bool // the context's deadline is the nearer one
	within time.Duration
}

func bound(ctx context.Context, nc net.Conn, timeout time.Duration) *bounds {
	b := &bounds{ctx: ctx, nc: nc, fired: make(chan struct{}), within: timeout}
	t := time.Now().Add(timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(t) {
		t, b.byCtx = d, true
	}
	nc.SetDeadline(t) // an error shows in the next read or write
	b.stop = context.AfterFunc(ctx, func() {
		defer close(b.fired)
		nc.SetDeadline(time.Unix(1, 0))
	})
	return b
}

// end turns the outcome of the bounded step into the one to report.
func (b *bounds) end(err error) error {
	if !b.stop() {
		<-b.fired
		return errors.Join(fmt.Errorf("mpa: start-up given up: %w", context.Cause(b.ctx)), err)
	}
	switch {
	case err == nil:
		return b.nc.SetDeadline(time.Time{})
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case b.byCtx:
		return errors.Join(fmt.Errorf("mpa: start-up given up: %w", context.DeadlineExceeded), err)
	}
	return fmt.Errorf("mpa: the peer was silent for %v: %w", b.within, err)
}
