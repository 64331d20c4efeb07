package verbs

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// AdoptConfig is an LLP whose start-up is over, and what Adopt makes on it.
type AdoptConfig struct {
	QP       QPConfig
	Prepare  func(*QP) error // if not nil, called before anything is received: the place to post receives
	LLP      ddp.LLP
	Conn     Transport   // what LLP runs on; its Protection is released when the stream ends
	IRD, ORD int         // as negotiated, -1: as the QPConfig says. IRD is no more than the queue pair's, or 1 (RFC 6581 section 9.2)
	Ready    rdmap.Ready // sent before anything else (RFC 6581 section 9.2)
}

// AdoptMPA describes a queue pair on a connection that has gone through mpa.Client or
// Request.Accept on conn, either at once or after the ULP has used it as a stream of
// bytes (RFC 5044 section 7.1.3). initiator: by mpa.Client.
func AdoptMPA(qp QPConfig, m *mpa.Conn, conn Transport, initiator bool) AdoptConfig {
	d := depthsOf(m.IRD(), m.ORD())
	a := AdoptConfig{QP: qp, LLP: m, Conn: conn, IRD: d.IRD, ORD: d.ORD}
	if initiator {
		a.Ready = chooseRTR(m.RTR())
	}
	return a
}

// Adopt makes a queue pair of pd on an LLP that the caller has set up. It fails with a
// *QuotaError, ErrTrust, ErrClosed, Prepare's error, or if the configuration is invalid;
// the LLP then remains the caller's.
func (pd *PD) Adopt(a AdoptConfig) (*QP, error) {
	cfg := a.QP
	if a.IRD == -1 {
		a.IRD = cfg.IRD
	}
	if a.ORD == -1 {
		a.ORD = cfg.ORD
	}
	switch {
	case a.LLP == nil || a.Conn == nil:
		return nil, errors.New("verbs: adopt a stream: LLP and Conn are needed")
	case a.IRD > max(1, cfg.IRD) || a.ORD > maxReadDepth || a.IRD < 0 || a.ORD < 0:
		return nil, fmt.Errorf("verbs: adopt a stream with IRD %d and ORD %d: the queue pair has IRD %d, and %d is the most", a.IRD, a.ORD, cfg.IRD, maxReadDepth)
	}
	qp, err := newQP(pd, cfg, a.Conn)
	if err != nil {
		return nil, err
	}
	_, stop, err := qp.prepare(context.Background(), a.Prepare)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := qp.start(&started{llp: a.LLP, ird: a.IRD, ord: a.ORD, ready: a.Ready}); err != nil {
		return nil, qp.fail(err)
	}
	return qp, nil
}
