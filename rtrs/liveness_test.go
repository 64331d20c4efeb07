package rtrs

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// manualTicker ticks when the test says so; each tick has been taken when it
// returns.
type manualTicker chan time.Time

func (m manualTicker) ticker(time.Duration) (<-chan time.Time, func()) { return m, func() {} }

func (m manualTicker) tick(t testing.TB, n int) {
	t.Helper()
	for range n {
		select {
		case m <- time.Time{}:
		case <-time.After(testTimeout):
			t.Fatal("nobody waits for a tick")
		}
	}
}

// pausable is a loopback Protector whose connections can be paused.
type pausable struct {
	transport.Protector
	paused *atomic.Bool
	looks  *atomic.Int32
}

func (p pausable) Admit(ctx context.Context, f transport.Flow, out bool, m transport.Monitored) (transport.Protection, error) {
	prot, err := p.Protector.Admit(ctx, f, out, m)
	return pausableProtection{prot, p.paused, p.looks}, err
}

type pausableProtection struct {
	transport.Protection
	paused *atomic.Bool
	looks  *atomic.Int32 // how often somebody has looked; may be nil
}

func (p pausableProtection) Paused() bool {
	if p.looks != nil {
		defer p.looks.Add(1)
	}
	return p.paused.Load()
}

func TestClientGivesUpASilentServer(t *testing.T) {
	beats := make(chan struct{}, 64)
	addr := startRawServer(t, func(p *rawPeer, imm uint64) {
		if immType(imm) == immHB {
			beats <- struct{}{}
		}
	})
	ticks := make(manualTicker)
	var paused atomic.Bool
	var looks atomic.Int32
	cfg := clientConfig(newHost(t), addr, "a")
	cfg.Setup, cfg.Conns = verbs.Setup{}, 1
	cfg.Paths[0].Transport = &transport.Config{Protector: pausable{transport.LoopbackOnly(), &paused, &looks}}
	cfg.Heartbeat = HeartbeatConfig{Interval: time.Second, Missed: 3, ticker: ticks.ticker}
	cl := connect(t, cfg)
	<-beats          // the one that opens the connection
	ticks.tick(t, 2) // INFO_RSP has arrived; a heartbeat is due
	<-beats
	paused.Store(true)
	before := looks.Load()
	ticks.tick(t, 20)
	eventually(t, "the last of these intervals is judged", func() bool { return looks.Load() >= before+20 })
	if i := cl.Info(); i.State != Connected || !i.Conns[0].Paused {
		t.Fatalf("intervals without a security association were counted: %+v", i)
	}
	paused.Store(false)
	ticks.tick(t, 2)
	if i := cl.Info(); i.State != Connected {
		t.Fatalf("given up after 2 of 3 missed heartbeats: %v", i.LastError)
	}
	if len(beats) != 0 {
		t.Errorf("%d more heartbeats while one was unanswered", len(beats))
	}
	ticks.tick(t, 1)
	eventually(t, "the path is given up", func() bool { return cl.Info().Paths[0].Incarnation > 1 })
}

func TestServerReapsASilentClient(t *testing.T) {
	m := newMemory(4096)
	ticks := make(manualTicker)
	srv := startServer(t, ServerConfig{NewSession: m.session, Heartbeat: HeartbeatConfig{Missed: 2, ticker: ticks.ticker}})
	p := rawConnect(t, newHost(t), srv.addr)
	ticks.tick(t, 1+1+2) // INFO_REQ, a heartbeat, two unanswered
	p.gone()
	if err := <-m.closed; !errors.Is(err, ErrHeartbeat) {
		t.Errorf("the handler was told %v", err)
	}
	eventually(t, "the session is gone", func() bool { return len(srv.Sessions()) == 0 })
}

func TestServerAnswersHeartbeats(t *testing.T) {
	m := newMemory(4096)
	srv := startServer(t, ServerConfig{NewSession: m.session})
	p := rawConnect(t, newHost(t), srv.addr)
	p.imm(makeImm(immHB, 0))
	if wc := p.poll(); wc.Op == verbs.WCImmediate || wc.Err != nil || immType(wc.Imm) != immHBAck {
		t.Errorf("answer %+v", wc)
	}
}

func TestClientAnswersHeartbeats(t *testing.T) {
	answered := make(chan struct{})
	addr := startRawServer(t, func(p *rawPeer, imm uint64) {
		switch immType(imm) {
		case immHB:
			p.imm(makeImm(immHB, 0))
		case immHBAck:
			close(answered)
		}
	})
	cfg := clientConfig(newHost(t), addr, "a")
	cfg.Setup, cfg.Conns = verbs.Setup{}, 1
	connect(t, cfg)
	select {
	case <-answered:
	case <-time.After(testTimeout):
		t.Error("no answer")
	}
}

func TestSessionThatIsNeverOpenedIsDropped(t *testing.T) {
	m := newMemory(4096)
	const wait = 500 * time.Millisecond
	srv := startServer(t, ServerConfig{NewSession: m.session, setupWait: wait})
	begin := time.Now()
	p, err := rawDial(t, newHost(t), srv.addr, pathReq(1))
	switch d := time.Since(begin); {
	case err == nil:
		p.gone()
	case d < wait: // else it may have been dropped while it was dialled
		t.Fatal(err)
	}
	eventually(t, "the session is gone", func() bool { return len(srv.Sessions()) == 0 })
}

// Changed heartbeats hold at once, on paths that are up, at the client and at the server.
func TestHeartbeatsCanBeChanged(t *testing.T) {
	slow, fast := HeartbeatConfig{Interval: time.Hour}, HeartbeatConfig{Interval: time.Millisecond, Missed: 3}
	var now atomic.Pointer[HeartbeatConfig]
	now.Store(&slow)
	t.Run("server", func(t *testing.T) {
		m := newMemory(4096)
		srv := startServer(t, ServerConfig{NewSession: m.session, HeartbeatOf: func(transport.Identity) HeartbeatConfig { return *now.Load() }})
		p := rawConnect(t, newHost(t), srv.addr)
		now.Store(&fast)
		srv.HeartbeatsChanged()
		p.gone()
		if err := <-m.closed; !errors.Is(err, ErrHeartbeat) {
			t.Errorf("the handler was told %v", err)
		}
	})
	t.Run("client", func(t *testing.T) {
		addr := startRawServer(t, func(*rawPeer, uint64) {})
		cfg := clientConfig(newHost(t), addr, "a")
		cfg.Setup, cfg.Conns, cfg.Heartbeat = verbs.Setup{}, 1, slow
		cl := connect(t, cfg)
		cl.SetHeartbeat(fast)
		eventually(t, "the path is given up", func() bool { return cl.Info().Paths[0].Incarnation > 1 })
	})
}
