package rtrs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
	"github.com/ironwarp/ironwarp/verbs"
)

// sctpRelay is a Config for a server over SCTP in UDP and one for clients that go
// through a relay. Both ends have to be made afterwards, so that they are closed
// before it.
func sctpRelay(t testing.TB, f sctptest.Faults) (server, client *transport.Config, r *sctptest.Relay) {
	t.Helper()
	server = iwarptest.SCTPInUDP(t)
	r, err := sctptest.NewRelay(netip.AddrPortFrom(sctpLocal.Addr(), server.UDPPort), f, 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	c := *server
	c.UDPPort = r.Addr().Port()
	return server, &c, r
}

// over is a clientConfig over tc.
func over(tc *transport.Config, h *host, name string) ClientConfig {
	cfg := clientConfig(h, sctpLocal, name)
	cfg.Paths[0].Transport = tc
	return cfg
}

// exercise writes and reads back blocks of many sizes, several at a time, each of
// them in a part of its own.
func exercise(t testing.TB, cl *Client, m *memory) {
	t.Helper()
	const workers, rounds = 8, 12
	part := len(m.data) / workers
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(k), 1))
			for range rounds {
				n := 1 + rnd.IntN(min(part, cl.MaxIO()))
				data, got := make([]byte, n), make([]byte, n)
				for i := range data {
					data[i] = byte(rnd.Uint32())
				}
				if e := write(t, cl, k*part, data); e != 0 {
					t.Errorf("write: %v", e)
				}
				if e := read(t, cl, k*part, got); e != 0 || !bytes.Equal(got, data) {
					t.Errorf("read: %v, equal: %v", e, bytes.Equal(got, data))
				}
			}
		})
	}
	wg.Wait()
}

// A session over SCTP: its connections have an association each, or, where the trust
// model has streams share, are streams of one; and I/O works through a network that
// loses, reorders, duplicates and delays.
func TestSessionOverSCTP(t *testing.T) {
	bad := sctptest.Faults{Loss: 0.005, Reorder: 0.02, Duplicate: 0.02, Corrupt: 0.002, Latency: 100 * time.Microsecond}
	for name, c := range map[string]struct {
		trust  verbs.TrustModel
		faults sctptest.Faults
		assocs int
	}{
		"NS-NT, clean": {verbs.NSNT, sctptest.Faults{}, 4},
		"NS-NT, bad":   {verbs.NSNT, bad, 4},
		"S-LT, clean":  {verbs.SLT, sctptest.Faults{}, 1},
		"S-LT, bad":    {verbs.SLT, bad, 1},
	} {
		t.Run(name, func(t *testing.T) {
			server, client, _ := sctpRelay(t, c.faults)
			m := newMemory(1 << 21)
			srv := startServerOn(t, server, sctpLocal, ServerConfig{NewSession: m.session, Trust: c.trust})
			cfg := over(client, newHost(t), "a")
			cfg.Conns, cfg.Trust = 4, c.trust
			cl := connect(t, cfg)
			exercise(t, cl, m)
			flows := make(map[transport.Flow]bool)
			for _, c := range cl.Info().Conns {
				flows[c.Flow] = true
			}
			if len(flows) != c.assocs || len(cl.Info().Conns) != 4 {
				t.Errorf("%d connections of %d associations, want 4 of %d", len(cl.Info().Conns), len(flows), c.assocs)
			}
			cl.Close()
			eventually(t, "the session is gone", func() bool { return len(srv.Sessions()) == 0 })
		})
	}
}

// The end of the association, and a server that was started again, cost a session
// a reconnection and no I/O.
func TestSessionOverSCTPSurvives(t *testing.T) {
	server, client, relay := sctpRelay(t, sctptest.Faults{})
	m := newMemory(1 << 20)
	srv := startServerOn(t, server, sctpLocal, ServerConfig{NewSession: m.session})
	cl := connect(t, over(client, newHost(t), "a"))
	if e := write(t, cl, 0, []byte("before")); e != 0 {
		t.Fatal(e)
	}
	// A NAT forgets the client: its packets come from another port from now on.
	relay.Rebind()
	if e := write(t, cl, 8, []byte("same")); e != 0 || cl.Info().Paths[0].Incarnation != 1 {
		t.Errorf("after a rebinding: %v, incarnation %d", e, cl.Info().Paths[0].Incarnation)
	}
	srv.stop(t)
	eventually(t, "the client notices", func() bool { return cl.Info().State == Reconnecting })
	p, w := get(t, cl), newWaiter()
	p.Submit(Read, header(0), 6, w)
	startServerOn(t, server, sctpLocal, ServerConfig{NewSession: m.session})
	if e := w.wait(t); e != 0 || string(p.Buffer()[:6]) != "before" {
		t.Errorf("%v, %q", e, p.Buffer()[:6])
	}
	cl.Put(p)
}

// A client that was killed is not missed: its successor, who has the same name, is
// let in as soon as it shows that nobody answers for the old session. One that
// answers keeps its session.
func TestSuccessorOfAKilledClient(t *testing.T) {
	t.Run("who answers", func(t *testing.T) {
		server, client, _ := sctpRelay(t, sctptest.Faults{})
		m := newMemory(4096)
		srv := startServerOn(t, server, sctpLocal, ServerConfig{NewSession: m.session, challengeWait: testTimeout}) // however slow the machine is
		old := connect(t, over(client, newHost(t), "a"))
		if err := refused(t, over(server, newHost(t), "a")); err.Errno != syscall.EEXIST {
			t.Errorf("while the first answers: %v, want EEXIST", err)
		}
		if e := write(t, old, 0, []byte("old")); e != 0 || old.Info().Paths[0].Incarnation != 1 {
			t.Errorf("the first, which answers: %v, incarnation %d", e, old.Info().Paths[0].Incarnation)
		}
		if n := len(srv.Sessions()); n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
	t.Run("who was killed", func(t *testing.T) {
		server, client, relay := sctpRelay(t, sctptest.Faults{})
		m := newMemory(4096)
		srv := startServerOn(t, server, sctpLocal, ServerConfig{NewSession: m.session, challengeWait: 500 * time.Millisecond})
		old := connect(t, over(client, newHost(t), "a"))
		if e := write(t, old, 0, []byte("old")); e != 0 {
			t.Error(e)
		}
		relay.SetFaults(sctptest.Faults{Loss: 1})
		next := connect(t, over(server, newHost(t), "a"))
		if e := write(t, next, 0, []byte("new")); e != 0 {
			t.Error(e)
		}
		if err := <-m.closed; !errors.Is(err, ErrHeartbeat) {
			t.Errorf("the old session ended with %v", err)
		}
		if n := len(srv.Sessions()); n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
}
