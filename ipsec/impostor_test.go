package ipsec

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/pad/padtest"
)

// renamed is saOf with other words at the IKE SA's level.
func renamed(sa tree, conn string, changes map[string]string) tree {
	sa[0][0] = conn
	ike := sa[0][1].(tree)
	for i := range ike {
		if v, ok := changes[ike[i].Key()]; ok {
			ike[i][1] = v
		}
	}
	return sa
}

// TestChildOfAnotherIdentityIsEnded has charon list an SA over the peer's link
// that is not the peer's, while a stream lives.
func TestChildOfAnotherIdentityIsEnded(t *testing.T) {
	for _, tc := range []struct {
		name    string
		conn    string
		changes map[string]string
		ended   string // the command that ends it
		reload  bool
	}{
		{"another connection with the same host", "evil", map[string]string{"remote-id": "mallory"}, "terminate by ike-id", false},
		{"the peer's own connection, changed by hand", "beta", map[string]string{"remote-id": "mallory"}, "terminate by ike-id", true},
		{"a tunnel to a gateway", "vpn", map[string]string{"remote-id": "gate", "remote-host": "203.0.113.1"}, "terminate by child-id", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBench(t)
			p := padtest.Peer("beta", 2)
			b.add(t, p)
			b.f.up(p, "beta-out")
			pr, err := b.Admit(t.Context(), padtest.FlowTo(p), true, &traffic{})
			if err != nil {
				t.Fatal(err)
			}
			defer pr.Release()
			events, cancel := b.Events()
			defer cancel()
			how := make(chan string, 10)
			loads := b.f.Count("load-conn beta")
			b.f.Set(func() {
				b.f.Answer = func(cmd string, req tree) ([]string, tree) {
					if cmd != "terminate" {
						return nil, nil
					}
					for _, key := range []string{"ike-id", "child-id"} {
						if req.Str(key) != "" {
							how <- "terminate by " + key
						}
					}
					b.f.Set(func() { b.f.SAs = []tree{saOf(p, "beta-out")} })
					return nil, tree{{"success", "yes"}, {"terminated", "1"}}
				}
				bad := renamed(saOf(p, "beta-out"), tc.conn, tc.changes)
				b.f.SAs = []tree{saOf(p, "beta-out"), bad}
				if tc.conn == "beta" {
					b.f.SAs = []tree{bad}
				}
			})
			b.f.Raise("child-updown", append(tree{{"up", "yes"}}, renamed(saOf(p, "beta-out"), tc.conn, tc.changes)...))
			e := await(t, events, EventImpostor)
			if e.Peer != "beta" || !strings.Contains(e.Detail, tc.changes["remote-id"]) {
				t.Errorf("event %+v", e)
			}
			if e := await(t, events, EventPaused); e.Child != "beta-out" {
				t.Errorf("event %+v", e)
			}
			if got := <-how; got != tc.ended {
				t.Errorf("ended with %s, want %s", got, tc.ended)
			}
			await(t, events, EventRestored)
			eventually(t, "the stream goes on", func() bool { return !pr.Paused() })
			if reloaded := b.f.Count("load-conn beta") > loads; reloaded != tc.reload {
				t.Errorf("the connection was loaded again: %v", reloaded)
			}
			if st, _ := b.PeerStatus("beta"); st.Counters.Impostors == 0 || st.Live == nil || st.Live.RemoteID != "beta" {
				t.Errorf("status %+v", st)
			}
		})
	}
}

func TestTunnelToElsewhereIsLeftAloneWithoutAStream(t *testing.T) {
	b := newBench(t)
	p := padtest.Peer("beta", 2)
	b.add(t, p)
	b.f.Set(func() {
		b.f.SAs = []tree{renamed(saOf(p, "beta-out"), "vpn", map[string]string{"remote-id": "gate", "remote-host": "203.0.113.1"})}
	})
	b.compareAll()
	q, _ := b.peer("beta")
	eventually(t, "seen", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return len(q.lanes[0].impostors) == 1 })
	err := b.Prepare(t.Context(), padtest.FlowTo(p))
	if !errors.Is(err, pad.ErrWrongIdentity) || !strings.Contains(err.Error(), "narrow its traffic selectors") {
		t.Errorf("dialling: %v", err)
	}
	if n := b.f.Count("terminate"); n != 0 {
		t.Errorf("somebody's tunnel was ended %d times although no stream lives", n)
	}
}

// TestCharonThatStopsAnsweringIsLeftAndFoundAgain: its socket stays open, and no
// answer comes.
func TestCharonThatStopsAnsweringIsLeftAndFoundAgain(t *testing.T) {
	m := newBenchOf(t, Config{CallTimeout: time.Second, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	f := m.f
	p := padtest.Peer("beta", 2)
	eventually(t, "added", func() bool { // a busy machine's may be as slow once
		err := m.AddPeer(t.Context(), p)
		if err != nil && !errors.Is(err, charon.ErrGone) && !errors.Is(err, charon.ErrHangs) {
			t.Fatal(err)
		}
		return err == nil
	})
	f.up(p, "beta-out")
	eventually(t, "up", func() bool { st, _ := m.PeerStatus("beta"); return st.State == StateUp })
	f.Set(func() { f.Hang["list-sas"], f.Hang["version"] = true, true })
	if _, err := m.SAs(t.Context()); !errors.Is(err, charon.ErrGone) && !errors.Is(err, ErrNotConnected) {
		t.Errorf("a list: %v", err)
	}
	eventually(t, "it is said", func() bool {
		st := m.DaemonStatus()
		return !st.Connected && strings.Contains(st.LastError, "does not answer")
	})
	f.Set(func() { f.Hang = map[string]bool{} })
	eventually(t, "all is back", func() bool {
		st, _ := m.PeerStatus("beta")
		return m.DaemonStatus().Connected && st.Loaded && st.State == StateUp
	})
}
