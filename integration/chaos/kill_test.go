package chaos

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// TestKilledProcessesUnderVerifiedIO kills strongSwan and the daemon with
// SIGKILL, alone, together and on both hosts, and starts them again. Streams have
// to survive wherever the process that holds their TCP connection lives; fio has
// to go on without an error wherever the NBD server it talks to lives.
func TestKilledProcessesUnderVerifiedIO(t *testing.T) { killAll(t, newScene(t)) }

// SCTP in UDP is a part of the daemon that is killed: its peer has to learn from the
// next association that the old one is gone.
func TestKilledProcessesOverSCTPInUDP(t *testing.T) {
	killAll(t, newSceneOver(t, transport.SCTPUDP))
}

func killAll(t *testing.T, s *scene) {
	alpha, beta := []*node.Node{s.alpha}, []*node.Node{s.beta}
	cases := []struct {
		name            string
		charon, daemons []*node.Node
	}{
		{"strongSwan of the attaching host", alpha, nil},
		{"strongSwan of the exporting host", beta, nil},
		{"strongSwan of both", s.nodes(), nil},
		{"daemon of the exporting host", nil, beta},
		{"daemon of the attaching host", nil, alpha},
		{"strongSwan and daemon of the exporting host", beta, beta},
		{"strongSwan and daemon of the attaching host", alpha, alpha},
		{"everything", s.nodes(), s.nodes()},
	}
	var carried int64
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			l := s.begin(t, node.Load{})
			var all sync.WaitGroup
			for _, n := range c.charon {
				all.Go(n.KillCharon)
			}
			for _, n := range c.daemons {
				all.Go(n.Kill)
			}
			all.Wait()
			nbdDied := slices.Contains(c.daemons, s.alpha)
			if nbdDied {
				<-l.ended // fio has lost its server
			}
			for _, n := range c.charon {
				if err := n.StartCharon(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range c.daemons {
				if err := n.Start(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			back := time.Now()
			if nbdDied {
				// The disk is attached again without being asked for.
				s.eventually(t, "the disk is attached again", nil, func(ctx context.Context) bool {
					list, err := s.alpha.Client().Attachments(ctx)
					return err == nil && len(list) == 1 && list[0].State == api.AttachReady
				})
				l = s.begin(t, node.Load{})
			}
			s.mustFlow(t, l)
			t.Logf("data flowed %v after the last start", time.Since(back).Round(time.Millisecond))
			if len(c.daemons) == 0 {
				s.sameStreams(t, l)
			}
			done := l.end(t)
			carried += done.Written + done.Read
		})
	}
	s.judge(t, carried)
}

// TestPeerHostRebootsUnderVerifiedIO makes beta lose everything at once, as a
// reset does: no process says goodbye, no TCP connection, no SA and no kernel
// policy is left.
func TestPeerHostRebootsUnderVerifiedIO(t *testing.T) { reboot(t, newScene(t)) }

func TestPeerHostRebootsOverSCTPInUDP(t *testing.T) {
	reboot(t, newSceneOver(t, transport.SCTPUDP))
}

func reboot(t *testing.T, s *scene) {
	l := s.begin(t, node.Load{})
	if err := s.beta.Link(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	s.beta.KillCharon()
	s.beta.Kill()
	// A reboot would also clear what the dead processes leave in the namespace's kernel.
	// The link is down, so the peer notices nothing.
	for _, args := range [][]string{{"ip", "xfrm", "policy", "flush"}, {"ip", "xfrm", "state", "flush"}, {"ss", "-K", "-t", "sport", "=", ":7471"}} {
		if _, err := s.beta.Run(t.Context(), args[0], args[1:]...); err != nil && args[2] != "state" {
			t.Fatal(err)
		}
	}
	if out, err := s.beta.Run(t.Context(), "ss", "-Htna", "sport", "=", ":7471"); err != nil || out != "" {
		t.Fatalf("TCP connections have outlived the reset: %v\n%s", err, out)
	}
	if err := s.beta.Link(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if err := s.beta.StartCharon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.beta.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	up := time.Now()
	s.mustFlow(t, l)
	t.Logf("data flowed %v after the host was up", time.Since(up).Round(time.Millisecond))
	done := l.end(t)
	s.judge(t, done.Written+done.Read)
}
