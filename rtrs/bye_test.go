package rtrs

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
)

// A session is over when its client has said so by one path, whatever has become of the others.
func TestByeOnOnePathEndsTheSession(t *testing.T) {
	j := newJournal()
	srv := startServer(t, ServerConfig{NewSession: j.session, Linger: time.Hour})
	rs, cfg := roads(t, srv, 2)
	cl := connect(t, cfg)
	allUp(t, cl)
	rs[0].freeze(true)
	if err := cl.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session is over", func() bool { return j.closed.Load() == 1 })
	rs[0].freeze(false)
}

// older is a protector of loopback flows. Those that were admitted before have lost their
// security association.
type older struct {
	transport.Protector
	newest atomic.Int32
}

func (o *older) Admit(ctx context.Context, f transport.Flow, out bool, m transport.Monitored) (transport.Protection, error) {
	p, err := o.Protector.Admit(ctx, f, out, m)
	return olderFlow{p, o, o.newest.Load()}, err
}

type olderFlow struct {
	transport.Protection
	o  *older
	in int32
}

func (f olderFlow) Paused() bool { return f.in < f.o.newest.Load() }

// A client that comes back after its host has crashed, and by another path than the one whose
// SA does not come back, is let in.
func TestPathWhoseSAIsAwayDoesNotShutOutTheNextClient(t *testing.T) {
	j := newJournal()
	o := &older{Protector: transport.LoopbackOnly()}
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), iwarptest.FreePort(t))
	srv := startServerOn(t, &transport.Config{Protector: o}, addr, ServerConfig{NewSession: j.session, Linger: time.Hour, challengeWait: 100 * time.Millisecond})
	rs, cfg := roads(t, srv, 1)
	cfg.Conns = 1
	if e := j.put(t, connect(t, cfg), 0, 512); e != 0 { // the server has all that came before, which would be a sign of life
		t.Error(e)
	}
	rs[0].freeze(true)
	o.newest.Add(1)
	cl := connect(t, clientConfig(newHost(t), srv.addr, "a"))
	if e := j.put(t, cl, 1, 512); e != 0 {
		t.Error(e)
	}
	rs[0].setDown(true)
	rs[0].freeze(false)
}
