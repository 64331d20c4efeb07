package chaos

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// everyScene lets TestFaultsOfPathsUnderVerifiedIO run with each transport and each number of
// paths.
const everyScene = "IRONWARP_PATHS"

// byPaths is a scene of so many wires, by each of which a path of the session goes; every
// second one over second, if that is set, and by IPv6, if families says so. A silent path is given up after two seconds.
func byPaths(t *testing.T, paths int, kind transport.Kind, second string, families bool) *scene {
	t.Helper()
	s := &scene{families: families, kind: kind, wires: paths, path: "--path", more: func(wire int) string {
		if wire%2 == 1 {
			return ",transport=" + cmp.Or(second, kind.String())
		}
		return ""
	}, options: []string{"--transport", kind.String(), "--heartbeat-interval", "500ms", "--heartbeat-misses", "3"}}
	s.start(t)
	return s
}

// A fault is done to a path of a session, or to a host, and taken back.
type fault struct {
	name string
	// do does it to a path, and returns what takes it back. A fault that does not last
	// returns nil.
	do func(t *testing.T, s *scene, wire int) (end func() error)
	// silent says that the path takes no I/O while it lasts.
	silent bool
}

// faults of paths.
var faults = []fault{
	{"the link is down", func(t *testing.T, s *scene, wire int) func() error {
		must(t, s.beta.LinkOn(t.Context(), wire, false))
		return func() error { return s.beta.LinkOn(t.Context(), wire, true) }
	}, true},
	{"the wire swallows everything", func(t *testing.T, s *scene, wire int) func() error {
		must(t, s.beta.Sever(t.Context(), wire, true))
		return func() error { return s.beta.Sever(t.Context(), wire, false) }
	}, true},
	{"the wire swallows what the attaching host sends", func(t *testing.T, s *scene, wire int) func() error { return swallow(t, s.alpha, wire) }, true},
	{"the wire swallows what the exporting host sends", func(t *testing.T, s *scene, wire int) func() error { return swallow(t, s.beta, wire) }, true},
	{"the wire comes and goes", func(t *testing.T, s *scene, wire int) func() error {
		for range 5 {
			must(t, errors.Join(s.beta.Sever(t.Context(), wire, true), s.beta.Sever(t.Context(), wire, false)))
		}
		return nil
	}, false},
	{"the wire takes 30 ms", func(t *testing.T, s *scene, wire int) func() error {
		d, err := s.beta.Delay(t.Context(), wire, 15*time.Millisecond)
		must(t, err)
		return func() error { return d.End(t.Context()) }
	}, false},
	{"the SA is deleted from the attaching host", func(t *testing.T, s *scene, wire int) func() error { return s.deleteSAs(t, s.alpha, wire) }, false},
	{"the SA is deleted from the exporting host", func(t *testing.T, s *scene, wire int) func() error { return s.deleteSAs(t, s.beta, wire) }, false},
	{"the path is taken down", func(t *testing.T, s *scene, wire int) func() error {
		_, err := s.alpha.Ironwarp(t.Context(), nil, "path", "disconnect", "beta", s.pathBy(t, wire).Name)
		must(t, err)
		return func() error {
			_, err := s.alpha.Ironwarp(t.Context(), nil, "path", "reconnect", "beta", s.pathBy(t, wire).Name)
			return err
		}
	}, true},
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// swallow makes a wire lose what a host sends.
func swallow(t *testing.T, from *node.Node, wire int) func() error {
	t.Helper()
	held, err := from.Hold(t.Context(), wire, "")
	must(t, err)
	return func() error { return held.Drop(t.Context()) }
}

// TestFaultsOfPathsUnderVerifiedIO does each fault to each path of a session in turn, stops and
// kills the daemons, and removes and adds a path, while the disk is written and verified. I/O
// goes on by the other paths meanwhile, if there are any, and by all of them afterwards;
// nothing of it is in clear on any wire.
func TestFaultsOfPathsUnderVerifiedIO(t *testing.T) {
	for _, over := range []struct {
		name   string
		kind   transport.Kind
		second string // of every second path; "": the same
		paths  int
		six    bool // every second path is by IPv6
		always bool
	}{
		{"TCP", transport.TCP, "", 1, false, false},
		{"TCP", transport.TCP, "", 2, false, false},
		{"TCP", transport.TCP, "", 4, false, true},
		{"TCP, IPv4 and IPv6,", transport.TCP, "", 2, true, false},
		{"SCTP in UDP", transport.SCTPUDP, "", 1, false, false},
		{"SCTP in UDP", transport.SCTPUDP, "", 2, false, true},
		{"SCTP in UDP", transport.SCTPUDP, "", 4, false, false},
		{"mixed", transport.TCP, "sctp-udp", 2, false, false},
		{"mixed, IPv4 and IPv6,", transport.TCP, "sctp-udp", 2, true, true},
		{"mixed", transport.TCP, "sctp-udp", 4, false, false},
	} {
		t.Run(fmt.Sprintf("%s by %d", over.name, over.paths), func(t *testing.T) {
			if !over.always && os.Getenv(everyScene) == "" {
				t.Skipf("%s=1 runs it", everyScene)
			}
			s := byPaths(t, over.paths, over.kind, over.second, over.six)
			l := s.begin(t, node.Load{})
			s.pathsUp(t, l, -1)
			for i, f := range faults {
				t.Run(f.name, func(t *testing.T) { s.suffer(t, l, f, i%over.paths) })
				if t.Failed() {
					return
				}
			}
			if over.paths > 1 {
				t.Run("a path is removed and added", func(t *testing.T) { s.replacePath(t, l) })
			}
			for _, n := range s.nodes() {
				t.Run("the daemon of "+n.Name()+" is stopped", func(t *testing.T) { s.stopDaemon(t, l, n) })
			}
			t.Run("the daemon of the exporting host is killed", func(t *testing.T) {
				s.beta.Kill()
				must(t, s.beta.Start(t.Context()))
				s.mustFlow(t, l)
				s.pathsUp(t, l, -1)
			})
			done := l.end(t)
			s.judge(t, done.Written+done.Read)
		})
	}
}

// suffer does a fault to a path and takes it back.
func (s *scene) suffer(t *testing.T, l *load, f fault, wire int) {
	before := s.pathBy(t, wire)
	begun := time.Now()
	end := f.do(t, s, wire)
	if end != nil {
		defer func() {
			if t.Failed() {
				_ = end()
			}
		}()
	}
	if f.silent {
		s.pathsUp(t, l, wire)
	}
	if s.wires > 1 || !f.silent {
		s.mustFlow(t, l)
		t.Logf("I/O went on %v after it began", time.Since(begun).Round(time.Millisecond))
	}
	if end != nil {
		must(t, end())
	}
	s.pathsUp(t, l, -1)
	s.mustFlow(t, l)
	// Where its SA went first, the path was avoided and is the same one.
	if after := s.pathBy(t, wire); f.silent && after.Reconnects == before.Reconnects && after.Failovers == before.Failovers {
		t.Errorf("the path was %+v, and is %+v", before, after)
	}
}

// replacePath removes the last path on both hosts while its wire is cut and it has data to send,
// and adds it again.
func (s *scene) replacePath(t *testing.T, l *load) {
	last := s.wires - 1
	transport := s.pathBy(t, last).Transport
	must(t, s.beta.Sever(t.Context(), last, true))
	for _, n := range s.nodes() {
		_, err := n.Ironwarp(t.Context(), nil, "path", "rm", s.other(n).Name(), s.addr(s.other(n), last).String())
		must(t, err)
	}
	must(t, s.beta.Sever(t.Context(), last, false))
	s.eventually(t, "the path is gone", l, func(context.Context) bool { return len(s.paths(t)) == last })
	s.mustFlow(t, l)
	for _, n := range s.nodes() {
		_, err := n.Ironwarp(t.Context(), nil, "path", "add", "--transport", transport, s.other(n).Name(), fmt.Sprintf("%v=%v", s.addr(s.other(n), last), s.addr(n, last)))
		must(t, err)
	}
	s.pathsUp(t, l, -1)
	s.mustFlow(t, l)
}

// stopDaemon stops a daemon until the other host has given up every path, and lets it go on.
func (s *scene) stopDaemon(t *testing.T, l *load, n *node.Node) {
	must(t, n.Pause())
	defer func() { must(t, n.Resume()) }()
	s.eventually(t, "every path is given up", l, func(context.Context) bool { return s.up(t, s.other(n)) == 0 })
	must(t, n.Resume())
	s.pathsUp(t, l, -1)
	s.mustFlow(t, l)
}

// paths are those of alpha's session.
func (s *scene) paths(t *testing.T) []api.SessionPath {
	t.Helper()
	for _, x := range s.sessions(t, s.alpha) {
		if x.Role == "client" {
			return x.Paths
		}
	}
	return nil
}

func (s *scene) sessions(t *testing.T, n *node.Node) []api.Session {
	t.Helper()
	st, err := n.Client().Status(t.Context())
	must(t, err)
	return st.Sessions
}

// up is how many paths, or streams of a server's sessions, a host has that take I/O.
func (s *scene) up(t *testing.T, n *node.Node) (up int) {
	t.Helper()
	for _, x := range s.sessions(t, n) {
		if x.Role == "server" {
			up += x.Streams
		}
		for _, p := range x.Paths {
			if takesIO(p) {
				up++
			}
		}
	}
	return up
}

func takesIO(p api.SessionPath) bool { return p.State == "connected" && !p.Avoided }

// pathBy is the path by a wire.
func (s *scene) pathBy(t *testing.T, wire int) (found api.SessionPath) {
	t.Helper()
	for _, p := range s.paths(t) {
		if at, err := netip.ParseAddrPort(p.Address); err == nil && at.Addr() == s.addr(s.beta, wire) {
			return p
		}
	}
	return found
}

// pathsUp waits until the path by each wire takes I/O, except for one that has been given up.
func (s *scene) pathsUp(t *testing.T, l *load, without int) {
	t.Helper()
	err := s.await(t.Context(), "the paths are as they should be", l, func(context.Context) bool {
		for wire := range s.wires {
			if takesIO(s.pathBy(t, wire)) == (wire == without) {
				return false
			}
		}
		return true
	})
	if err != nil {
		t.Fatalf("%v, all up but %d; they are %+v", err, without, s.paths(t))
	}
}

// deleteSAs deletes the child SAs of a path from a host.
func (s *scene) deleteSAs(t *testing.T, n *node.Node, wire int) func() error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), healTimeout)
	defer cancel()
	deleted := 0
	var last error // one that goes by itself meanwhile, to be made anew, cannot be deleted
	err := node.Until(ctx, func() (bool, error) {
		list, err := n.Client().SAs(ctx)
		for _, sa := range list {
			if strings.HasPrefix(sa.RemoteTS, s.addr(s.other(n), wire).String()+"/") {
				if _, err := n.Ironwarp(ctx, nil, "sa", "delete", "--child", sa.Child, s.other(n).Name()); err != nil {
					last = err
					continue
				}
				deleted++
			}
		}
		return deleted > 0, err
	})
	if err != nil {
		t.Fatalf("delete the SAs of wire %d: %v", wire, errors.Join(err, last))
	}
	return nil
}
