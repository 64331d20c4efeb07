package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// DialConfig describes where and how Dial connects, and the queue pair that it makes.
type DialConfig struct {
	Remote    netip.AddrPort // over SCTP the port is SCTP's, also in UDP
	Transport *transport.Config
	QP        QPConfig

	// Made, if not nil, is a queue pair of CreateQP that gets the stream; of QP only IRD and ORD
	// count. If there is no connection, as when the peer's host refuses it, it stays usable; after any other
	// failure it is over.
	Made *QP

	// Prepare, if not nil, is called with the queue pair before anything can arrive:
	// the place to post receives. Dial returns its error. If Dial makes a second
	// attempt, it is called again with another queue pair.
	Prepare func(*QP) error

	// PrivateData goes to the peer with the request, see ConnRequest.PrivateData: at
	// most 512 bytes, less 4 unless Setup.Plain, and less 16 with Setup.LargeFPDU.
	PrivateData []byte

	// Requested, if not nil, is called over TCP when the request has been sent, again for a second attempt:
	// a request that is begun after it comes to the listener behind it. It must not block.
	Requested func()

	Setup Setup // how the stream starts up
}

// RejectedError means that the peer refused the stream in start-up (RFC 5044
// section 7.1, RFC 5043 section 6.3). PrivateData came with the refusal.
type RejectedError struct {
	Remote      netip.AddrPort
	PrivateData []byte
	Depths      Depths // what the peer would have accepted (RFC 6581 section 9.1)
	Err         error
}

// Depths are the numbers of RDMA Reads and Atomics that a peer, according to its start-up
// message, takes (IRD) and makes (ORD) at a time; -1: it leaves them to the ULPs (RFC 6581
// section 9.1).
type Depths struct{ IRD, ORD int }

func depthsOf(ird, ord uint16) Depths {
	said := func(n uint16) int {
		if n == enhanced.DepthULP {
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

// Dial connects to a listener and returns a queue pair of pd whose stream is up,
// charged to the PD's ULP. Until then it counts against the ULP's and the device's
// Dials. QP.PrivateData is the peer's answer.
//
// A connection that the peer's host gave up before it was up there, because its SA was lost
// meanwhile, is made anew (transport.ErrHalfOpen).
//
// If the peer knows only MPA revision 1, a second connection is made with that revision
// (RFC 6581 section 10). Over SCTP a second session is started on the same
// association, as in RFC 5043.
//
// Over SCTP the streams of a ULP to one Remote with the same *transport.Config
// share an association, which is shut down when the last of them is over. A stream of
// a protection domain whose trust model shares nothing has one of its own. The peer
// decides which streams share an association that it has set up.
//
// It fails with a *RejectedError when the peer's ULP refuses, with a *QuotaError
// when a limit is reached, with what Prepare or the Protector returns, with ctx's
// error when ctx ends first, with ErrClosed after the device's Close, if dial.QP is
// invalid, the trust model forbids it (ErrTrust) or the label of the queue pair may not use its
// partition (ErrPartition, before any packet), if the two ends have no
// depths or ready-to-receive indication in common (RFC 6581 section 9), and otherwise with
// the network's error.
func (pd *PD) Dial(ctx context.Context, dial DialConfig) (*QP, error) {
	u := pd.ulp
	setup := charge{ulp: &u.acct}
	setup.n[resDials] = 1
	if err := u.dev.prm.take(&setup); err != nil {
		return nil, err
	}
	defer u.dev.prm.give(&setup)
	joined := false // there was a connection
	for {
		qp, err := pd.dial(ctx, &dial, &joined)
		var ended *endedError
		var stale staleError
		if (errors.As(err, &stale) || errors.Is(err, transport.ErrHalfOpen)) && ctx.Err() == nil {
			continue
		}
		if err != nil && !dial.Setup.Plain && !errors.As(err, &ended) && mpa.RetryRevision1(err) {
			dial.Setup.Plain = true
			continue
		}
		if err != nil && dial.Made != nil && joined {
			return nil, dial.Made.fail(err)
		}
		return qp, err
	}
}

// outgoing is a connection in start-up as the initiator.
type outgoing interface {
	Transport
	start(ctx context.Context, dial *DialConfig) (*started, error)
	drop()
}

// started is a stream that has completed start-up.
type started struct {
	llp      ddp.LLP
	ird, ord int
	ready    rdmap.Ready // of the initiator, to be sent
	awaited  bool        // of the responder: one is still to arrive
	private  []byte      // of the peer
}

// connect makes the connection, or uses the existing association.
func (pd *PD) connect(ctx context.Context, dial *DialConfig) (outgoing, error) {
	u := pd.ulp
	if dial.Transport != nil && dial.Transport.Kind != transport.TCP {
		k := assocKey{ulp: u, cfg: dial.Transport, remote: dial.Remote, partition: dial.QP.Partition, label: dial.QP.Label}
		if pd.isForOneStream() {
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

// dial makes one attempt; joined becomes true if the queue pair was given to it.
func (pd *PD) dial(ctx context.Context, dial *DialConfig, joined *bool) (*QP, error) {
	if dial.Made != nil && dial.QP.Partition == "" {
		dial.QP.Partition = dial.Made.Partition()
	}
	if err := pd.ulp.dev.deniesDial(cmp.Or(dial.QP.Label, pd.ulp.Label()), dial.QP.Partition); err != nil {
		return nil, err
	}
	conn, err := pd.connect(ctx, dial)
	if err != nil {
		return nil, err
	}
	qp, err := pd.queuePair(dial.Made, &dial.QP, conn)
	if err != nil {
		conn.drop()
		return nil, err
	}
	*joined = true
	ctx, stop, err := qp.prepare(ctx, dial.Prepare)
	if err != nil {
		conn.drop()
		return nil, err
	}
	defer stop()
	s, err := conn.start(ctx, dial)
	if err != nil {
		conn.drop()
		var rej *RejectedError
		if !errors.As(err, &rej) {
			err = fmt.Errorf("verbs: connect to %v: %w", dial.Remote, err)
		}
		return nil, qp.giveUp(err)
	}
	if err := qp.start(s); err != nil {
		rdmap.Refuse(s.llp, mpa.LocalFault(err)) // RFC 6581 section 9.3
		conn.drop()
		return nil, qp.fail(err)
	}
	return qp, nil
}
