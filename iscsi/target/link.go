package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iscsi/tcp"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// link is a connection of an initiator: what carries its login, and then its session.
type link interface {
	iscsi.Stream
	// offers returns what this target would have of the keys, and whether the login is in RDMA mode.
	offers() (ours *iscsi.Values, inRDMA bool)
	// mover returns what moves data after a login that has agreed on v. It fails if resources are
	// short.
	mover(v *iscsi.Values) (iscsi.Datamover, error)
	Addr() (local, remote net.Addr)
	// peer tells from whom the connection is, as it was authenticated below, "" if nobody knows.
	peer() string
	// paused reports that nothing can come at the moment, since the security association is away.
	paused() bool
	ConnectionTerminate()
	// Close ends the connection, if it has not ended, and frees what it has.
	Close() error
}

// values returns what this target would have of the keys over TCP.
func (cfg *Config) values() iscsi.Values {
	v := iscsi.DefaultValues()
	digests := uint32(iscsi.DigestNone | iscsi.DigestCRC32C)
	if cfg.RequireDigests {
		digests = iscsi.DigestCRC32C
	}
	v[iscsi.KeyHeaderDigest], v[iscsi.KeyDataDigest] = digests, digests
	v[iscsi.KeyInitialR2T] = 0
	v[iscsi.KeyMaxBurstLength], v[iscsi.KeyFirstBurstLength] = maxBurst, firstBurst
	v[iscsi.KeyMaxRecvDataSegmentLength] = maxRecvSegment
	v[iscsi.KeyMaxConnections] = maxConnections
	v[iscsi.KeyMaxOutstandingR2T] = maxR2T
	v[iscsi.KeyDefaultTime2Retain] = time2Retain
	v[iscsi.KeyTaskReporting] = iscsi.ReportRFC3720 | iscsi.ReportResponseFence
	return v
}

// toRDMA has values allow a login over TCP to agree on iSER.
func toRDMA(v *iscsi.Values) {
	v[iscsi.KeyRDMAExtensions] = 1
	v[iscsi.KeyTargetRecvDataSegmentLength], v[iscsi.KeyInitiatorRecvDataSegmentLength] = iser.Segment, iser.Segment
	v[iscsi.KeyMaxOutstandingUnexpectedPDUs] = immediates
}

// inRDMA has values be those of a login in RDMA mode: there are no digests.
func inRDMA(v *iscsi.Values) {
	toRDMA(v)
	v[iscsi.KeyHeaderDigest], v[iscsi.KeyDataDigest] = iscsi.DigestNone, iscsi.DigestNone
	v[iscsi.KeyMaxRecvDataSegmentLength] = iser.Segment
}

// overTCP is a connection over TCP.
type overTCP struct {
	*tcp.Conn
	nc       net.Conn
	ours     *iscsi.Values
	isPaused func(net.Conn) bool   // nil: it never is
	peerOf   func(net.Conn) string // nil: nobody knows
}

func (s *Server) overTCP(nc net.Conn, ours *iscsi.Values) *overTCP {
	nc.SetWriteDeadline(time.Now().Add(loginTime))
	return &overTCP{tcp.NewConn(nc), nc, ours, s.cfg.Paused, s.cfg.PeerOf}
}

func (l *overTCP) paused() bool { return l.isPaused != nil && l.isPaused(l.nc) }

func (l *overTCP) peer() string {
	if l.peerOf == nil {
		return ""
	}
	return l.peerOf(l.nc)
}

func (l *overTCP) offers() (*iscsi.Values, bool) { return l.ours, false }

func (l *overTCP) mover(*iscsi.Values) (iscsi.Datamover, error) {
	return l.Conn, l.nc.SetWriteDeadline(time.Time{})
}

func (l *overTCP) Close() error { return l.nc.Close() }

// overRDMA is a connection that has been in RDMA mode from the beginning.
type overRDMA struct {
	*iser.Conn
	ours *iscsi.Values
	prot transport.Protection
}

func (l *overRDMA) paused() bool { return l.prot.Paused() }

func (l *overRDMA) peer() string { return string(l.prot.Peer()) }

// offers has initiators that do not take Sends with Invalidate send no data of their own accord: libiscsi, which is one
// of these, names immediate data in the header of a command, and does not send them over iSER.
func (l *overRDMA) offers() (*iscsi.Values, bool) {
	if l.Invalidates() {
		return l.ours, true
	}
	v := *l.ours
	v[iscsi.KeyImmediateData], v[iscsi.KeyInitialR2T] = 0, 1
	return &v, true
}

func (l *overRDMA) mover(*iscsi.Values) (iscsi.Datamover, error) { return l.Conn, nil }

// streaming is a connection that logs in over TCP, and may go on with RDMA.
type streaming struct {
	*overTCP
	req  *verbs.ConnRequest
	prot transport.Protection
	cfg  iser.Config

	mu    sync.Mutex // guards the fields below it; taken before the mover's
	iser  *iser.Conn // once it is agreed on
	over  bool
	plain bool // it stays with TCP
}

var errOver = errors.New("target: the connection is over")

// mover implements link. When RDMA is agreed on, MPA's request comes after the answer that ends the
// login, and nothing before it (RFC 7145 section 5.1.2).
func (l *streaming) mover(v *iscsi.Values) (iscsi.Datamover, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over:
		return nil, errOver
	case !v.Bool(iscsi.KeyRDMAExtensions):
		l.plain = true
		l.req.Detach()
		return l.overTCP.mover(v)
	case l.Buffered() > 0:
		return nil, fmt.Errorf("target: %d bytes before the login is over: %w", l.Buffered(), iscsi.ErrFormat)
	}
	c, err := iser.Upgrade(l.req, l.cfg)
	if err != nil {
		return nil, err
	}
	l.iser = c
	return c, nil
}

func (l *streaming) paused() bool { return l.prot.Paused() }

func (l *streaming) peer() string { return string(l.prot.Peer()) }

func (l *streaming) ConnectionTerminate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.iser != nil {
		l.iser.ConnectionTerminate()
	} else {
		l.overTCP.ConnectionTerminate()
	}
}

func (l *streaming) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.iser != nil:
		return l.iser.Close()
	case l.plain:
		return l.overTCP.Close()
	}
	return l.req.Reject(context.Background(), nil)
}

// Listener is where ServeRDMA accepts connections: a *verbs.Listener, or what has one.
type Listener interface {
	Accept(ctx context.Context) (*verbs.ConnRequest, error)
	Addr() netip.AddrPort
	Close() error
}

// ServeRDMA accepts initiators from ln until ctx ends, as Serve does: those that begin in RDMA mode, and,
// if ln takes streaming mode, those that begin with a login over TCP, which may go on with RDMA. All that
// they need is charged to ulp. It closes ln. It fails if ln is closed before ctx ends. ln's Setup asks for
// CRCs, which stand for iSCSI's digests (RFC 7145 section 5.1).
func (s *Server) ServeRDMA(ctx context.Context, ln Listener, ulp *verbs.ULP) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer ln.Close()
	cfg := iser.Config{ULP: ulp, Commands: window, Unexpected: immediates, ReadAge: s.cfg.ReadAge}
	first, assisted := s.values, s.values
	toRDMA(&first)
	inRDMA(&assisted)
	for {
		r, err := ln.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			if err == nil {
				r.Reject(ctx, nil)
			}
			return nil
		case err != nil:
			return fmt.Errorf("target: accept on %v: %w", ln.Addr(), err)
		}
		o := Origin{Peer: string(r.Protection().Peer()), Remote: r.Flow().Remote}
		if !s.addLogin(o) {
			r.Reject(ctx, nil)
			continue
		}
		wg.Go(func() {
			if nc := r.Stream(); nc != nil {
				s.serve(ctx, &streaming{overTCP: s.overTCP(nc, &first), req: r, prot: r.Protection(), cfg: cfg}, o)
				return
			}
			peer := r.Flow().Remote
			c, err := iser.Accept(ctx, r, cfg)
			if err != nil {
				s.loginEnded(o)
				s.log.Info("target: connection failed", "initiator", peer.String(), "error", err)
				return
			}
			s.serve(ctx, &overRDMA{c, &assisted, r.Protection()}, o)
		})
	}
}
