package chaos

import (
	"cmp"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// byTwoPaths is a scene of two wires, by each of which a path of the session goes: the
// first over kind, the other over second. A silent path is given up after two seconds.
func byTwoPaths(t *testing.T, kind transport.Kind, second string) *scene {
	t.Helper()
	s := &scene{kind: kind, wires: 2, path: "--path", more: ",name=lan,transport=" + cmp.Or(second, kind.String()),
		options: []string{"--transport", kind.String(), "--heartbeat-interval", "500ms", "--heartbeat-misses", "3"}}
	s.start(t)
	return s
}

// TestSessionOfTwoPathsUnderVerifiedIO: one wire of two is cut, then the other; the SA of one path
// is deleted; a path is removed and added. The disk is written and verified meanwhile, and
// nothing of it is in clear on either wire.
func TestSessionOfTwoPathsUnderVerifiedIO(t *testing.T) {
	for name, over := range map[string]struct {
		kind   transport.Kind
		second string // "": the same
	}{
		"TCP":         {transport.TCP, ""},
		"SCTP in UDP": {transport.SCTPUDP, ""},
		"mixed":       {transport.TCP, "sctp-udp"},
	} {
		t.Run(name, func(t *testing.T) {
			s := byTwoPaths(t, over.kind, over.second)
			l := s.begin(t, node.Load{})
			s.pathsUp(t, l, true, true)
			for wire := range 2 {
				other := s.pathBy(t, 1-wire)
				if err := s.beta.Sever(t.Context(), wire, true); err != nil {
					t.Fatal(err)
				}
				cut := time.Now()
				s.pathsUp(t, l, wire != 0, wire != 1)
				s.mustFlow(t, l)
				t.Logf("wire %d is cut: its path was given up and data flowed by the other after %v", wire, time.Since(cut).Round(time.Millisecond))
				if now := s.pathBy(t, 1-wire); now.Writes+now.Reads == other.Writes+other.Reads || now.Reconnects != other.Reconnects {
					t.Errorf("the other path was %+v, and is %+v", other, now)
				}
				if err := s.beta.Sever(t.Context(), wire, false); err != nil {
					t.Fatal(err)
				}
				s.pathsUp(t, l, true, true)
				if p := s.pathBy(t, wire); p.Reconnects == 0 || p.Failovers == 0 {
					t.Errorf("the path that was cut: %+v", p)
				}
			}
			if n, err := s.deleteSAs(t.Context(), s.alpha); err != nil || n == 0 {
				t.Fatalf("%d SAs deleted, %v", n, err)
			}
			s.mustFlow(t, l)
			order := func(n *node.Node, args ...string) {
				t.Helper()
				if _, err := n.Ironwarp(t.Context(), nil, append([]string{"path"}, args...)...); err != nil {
					t.Fatal(err)
				}
			}
			order(s.alpha, "disconnect", "beta", "lan")
			s.pathsUp(t, l, true, false)
			s.mustFlow(t, l)
			order(s.alpha, "reconnect", "beta", "lan")
			s.pathsUp(t, l, true, true)
			// The path goes while its wire is cut and it has data to send, and comes back.
			if err := s.beta.Sever(t.Context(), 1, true); err != nil {
				t.Fatal(err)
			}
			for _, n := range s.nodes() {
				order(n, "rm", s.other(n).Name(), "lan")
			}
			if err := s.beta.Sever(t.Context(), 1, false); err != nil {
				t.Fatal(err)
			}
			s.eventually(t, "one path is left", l, func(context.Context) bool { return len(s.paths(t)) == 1 })
			s.mustFlow(t, l)
			for _, n := range s.nodes() {
				order(n, "add", "--name", "lan", "--transport", cmp.Or(over.second, over.kind.String()), s.other(n).Name(), fmt.Sprintf("%v=%v", s.other(n).AddrOn(1), n.AddrOn(1)))
			}
			s.pathsUp(t, l, true, true)
			s.mustFlow(t, l)
			done := l.end(t)
			s.judge(t, done.Written+done.Read)
		})
	}
}

// paths are those of alpha's session.
func (s *scene) paths(t *testing.T) []api.SessionPath {
	t.Helper()
	st, err := s.alpha.Client().Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range st.Sessions {
		if x.Role == "client" {
			return x.Paths
		}
	}
	return nil
}

// pathBy is the path by a wire.
func (s *scene) pathBy(t *testing.T, wire int) (found api.SessionPath) {
	t.Helper()
	for _, p := range s.paths(t) {
		if (p.Name == "lan") == (wire == 1) {
			found = p
		}
	}
	return found
}

// pathsUp waits until the path by each wire takes I/O or has been given up.
func (s *scene) pathsUp(t *testing.T, l *load, up ...bool) {
	t.Helper()
	var got []api.SessionPath
	err := s.await(t.Context(), "the paths are as they should be", l, func(context.Context) bool {
		got = s.paths(t)
		for wire, up := range up {
			if p := s.pathBy(t, wire); (p.State == "connected" && !p.Avoided) != up {
				return false
			}
		}
		return len(got) == len(up)
	})
	if err != nil {
		t.Fatalf("%v, which is up: %v; they are %s", err, up, fmt.Sprintf("%+v", got))
	}
}

// deleteSAs deletes the child SAs of the second path of a host, and returns how many there
// were.
func (s *scene) deleteSAs(ctx context.Context, n *node.Node) (deleted int, err error) {
	list, err := n.Client().SAs(ctx)
	if err != nil {
		return 0, err
	}
	for _, sa := range list {
		if name := s.other(n).Name() + ".lan-"; len(sa.Child) > len(name) && sa.Child[:len(name)] == name {
			if _, err := n.Ironwarp(ctx, nil, "sa", "delete", "--child", sa.Child, s.other(n).Name()); err != nil {
				return deleted, err
			}
			deleted++
		}
	}
	return deleted, nil
}
