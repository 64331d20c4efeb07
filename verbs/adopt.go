package verbs

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// AdoptConfig is an LLP whose start-up is over.
type AdoptConfig struct {
	LLP      ddp.LLP
	Conn     Transport   // what LLP runs on; its Protection is released when the stream ends
	IRD, ORD int         // as negotiated, -1: as the QPConfig says. IRD is no more than the queue pair's, or 1 (RFC 6581 section 9.2)
	Ready    rdmap.Ready // sent before anything else (RFC 6581 section 9.2)
}

// AdoptMPA describes a connection that has gone through mpa.Client or
// Request.Accept on conn, be it at once or after a phase in which the ULP used
// it as a stream of bytes (RFC 5044 section 7.1.3). initiator: by mpa.Client.
func AdoptMPA(m *mpa.Conn, conn Transport, initiator bool) AdoptConfig {
	d := depthsOf(m.IRD(), m.ORD())
	a := AdoptConfig{LLP: m, Conn: conn, IRD: d.IRD, ORD: d.ORD}
	if initiator {
		a.Ready = readyFor(m.RTR())
	}
	return a
}

// Adopt makes a queue pair of pd on an LLP that the caller has set up. prepare,
// which may be nil, is called before anything is received: the place to post
// receives. After an error the LLP is still the caller's.
func (u *ULP) Adopt(pd *PD, cfg QPConfig, a AdoptConfig, prepare func(*QP) error) (*QP, error) {
	if a.IRD == -1 {
		a.IRD = cfg.IRD
	}
	if a.ORD == -1 {
		a.ORD = cfg.ORD
	}
	switch {
	case pd.ulp != u && checks.On(checks.ForeignPD): // R1
		return nil, fmt.Errorf("verbs: adopt a stream as ULP %s with a protection domain of ULP %s", u.name, pd.ulp.name)
	case a.LLP == nil || a.Conn == nil:
		return nil, errors.New("verbs: adopt a stream: LLP and Conn are needed")
	case a.IRD > max(1, cfg.IRD) || a.ORD > maxReadDepth || a.IRD < 0 || a.ORD < 0:
		return nil, fmt.Errorf("verbs: adopt a stream with IRD %d and ORD %d: the queue pair has IRD %d, and %d is the most", a.IRD, a.ORD, cfg.IRD, maxReadDepth)
	}
	qp, err := newQP(pd, cfg, a.Conn)
	if err != nil {
		return nil, err
	}
	_, stop, err := qp.prepare(context.Background(), prepare)
	if err != nil {
		return nil, err
	}
	defer stop()
	if err := qp.start(&started{llp: a.LLP, ird: a.IRD, ord: a.ORD, ready: a.Ready}); err != nil {
		return nil, qp.fail(err)
	}
	return qp, nil
}
