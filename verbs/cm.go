package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// DialConfig says where and how Dial connects.
type DialConfig struct {
	Remote    netip.AddrPort // over SCTP the port is SCTP's, also in UDP
	Transport *transport.Config

	// PrivateData is the ULP's part of the request: at most 512 bytes, less 4 for
	// the enhanced set-up and 8 for large FPDUs. Nil: that of MPA.
	PrivateData []byte

	// ClientServer is for a peer that is to send nothing before this end has. MPA's
	// rule (RFC 5044 section 7.1.2) is that an acceptor's data waits for the dialler's
	// first message. So Dial asks a peer of revision 2 for the peer-to-peer model (RFC
	// 6581 section 9.2), in which that message is an empty one that no consumer sees,
	// and both ends may send first. With ClientServer, with a peer that declines, and with
	// one of revision 1, what an acceptor posts waits for the dialler's consumer. Over
	// SCTP there is no such rule.
	ClientServer bool

	// MPA is how MPA starts up; its IRD and ORD come from the QPConfig. Over SCTP only
	// its PeerToPeer, StartupTimeout and Revision count, where 1 stands for a set-up
	// without IRD and ORD (RFC 5043).
	MPA mpa.Config
}

// RejectedError says that the peer refused the stream in start-up (RFC 5044
// section 7.1, RFC 5043 section 6.3). PrivateData is what it said.
type RejectedError struct {
	Remote      netip.AddrPort
	PrivateData []byte
	Depths      Depths // what would have done (RFC 6581 section 9.1)
	Err         error
}

// Depths are what a peer says in start-up of the RDMA Reads and Atomics that
// it takes (IRD) and makes (ORD) at a time; -1: it does not say and leaves them to
// the ULPs (RFC 6581 section 9.1).
type Depths struct{ IRD, ORD int }

func depthsOf(ird, ord uint16) Depths {
	said := func(n uint16) int {
		if n == mpa.DepthULP {
			return -1
		}
		return int(n)
	}
	return Depths{IRD: said(ird), ORD: said(ord)}
}

func (e *RejectedError) Error() string {
	return fmt.Sprintf("verbs: connect to %v: the peer refused the stream: %v", e.Remote, e.Err)
}

func (e *RejectedError) Unwrap() error { return e.Err }

// Dial connects to a listener and returns a queue pair of pd whose stream is
// up, with the private data of the peer's answer. Meanwhile it counts against the ULP's
// and the device's Dials. prepare, which may be nil, is
// called with the queue pair before anything can arrive: the place to post
// receives. Against a peer that knows only MPA revision 1 a second connection
// is made with that (RFC 6581 section 10), and prepare is called again. Over
// SCTP a second session is started on the same association, as RFC 5043 has it.
//
// Over SCTP the streams of a ULP to one Remote with the same *transport.Config
// share an association, which is shut down when the last of them is over. A stream of
// a protection domain whose trust model shares nothing has one of its own. Which
// streams share one that a peer has set up is for the peer to say.
func (u *ULP) Dial(ctx context.Context, pd *PD, cfg QPConfig, dial DialConfig, prepare func(*QP) error) (*QP, []byte, error) {
	if pd.ulp != u && checks.On(checks.ForeignPD) { // R1
		return nil, nil, fmt.Errorf("verbs: dial as ULP %s with a protection domain of ULP %s", u.name, pd.ulp.name)
	}
	if dial.PrivateData == nil {
		dial.PrivateData = dial.MPA.PrivateData
	}
	setup := charge{ulp: &u.acct}
	setup.n[resDials] = 1
	if err := u.dev.prm.take(&setup); err != nil {
		return nil, nil, err
	}
	defer u.dev.prm.give(&setup)
	for {
		qp, private, err := u.dial(ctx, pd, cfg, &dial, prepare)
		var ended *endedError
		var stale staleError
		if errors.As(err, &stale) && ctx.Err() == nil {
			continue
		}
		if err == nil || dial.MPA.Revision == 1 || errors.As(err, &ended) || !mpa.RetryRevision1(err) {
			return qp, private, err
		}
		dial.MPA.Revision = 1
	}
}

// outgoing is a connection that goes through start-up as the initiator.
type outgoing interface {
	Transport
	start(ctx context.Context, cfg *QPConfig, dial *DialConfig) (*started, error)
	drop()
}

// started is a stream that is through start-up.
type started struct {
	llp      ddp.LLP
	ird, ord int
	ready    rdmap.Ready // of the initiator, to be sent
	awaited  bool        // of the responder: one is to come
	private  []byte
}

// connect makes the connection, or takes the association that there is.
func (u *ULP) connect(ctx context.Context, pd *PD, dial *DialConfig) (outgoing, error) {
	if dial.Transport != nil && dial.Transport.Kind != transport.TCP {
		k := assocKey{ulp: u, cfg: dial.Transport, remote: dial.Remote}
		if !pd.trust.ShareStreams && checks.On(checks.StreamTrust) {
			k.pd = pd
		}
		return u.dev.assocs.take(ctx, k)
	}
	conn, err := transport.Dial(ctx, dial.Remote, dial.Transport)
	if err != nil {
		return nil, err
	}
	return &mpaDial{Conn: conn, dev: u.dev}, nil
}

// dial makes one attempt.
func (u *ULP) dial(ctx context.Context, pd *PD, cfg QPConfig, dial *DialConfig, prepare func(*QP) error) (*QP, []byte, error) {
	conn, err := u.connect(ctx, pd, dial)
	if err != nil {
		return nil, nil, err
	}
	qp, err := newQP(pd, cfg, conn)
	if err != nil {
		conn.drop()
		return nil, nil, err
	}
	ctx, stop, err := qp.prepare(ctx, prepare)
	if err != nil {
		conn.drop()
		return nil, nil, err
	}
	defer stop()
	s, err := conn.start(ctx, &cfg, dial)
	if err != nil {
		conn.drop()
		var rej *RejectedError
		if !errors.As(err, &rej) {
			err = fmt.Errorf("verbs: connect to %v: %w", dial.Remote, err)
		}
		return nil, nil, qp.fail(err)
	}
	if err := qp.start(s); err != nil {
		rdmap.Refuse(s.llp, mpa.LocalFault(err)) // RFC 6581 section 9.3
		conn.drop()
		return nil, nil, qp.fail(err)
	}
	return qp, s.private, nil
}
