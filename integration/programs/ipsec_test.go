package programs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// alice is a user of these hosts, who has ports of her own; root may use those, too.
const alice = 53101

// hosts are two, each with a daemon and a strongSwan, and a capture of all that is between them.
type hosts struct {
	t           *testing.T
	alpha, beta *node.Node
	bin         string
	over        carried
}

// carried is what carries streams of programs, and the ports that they have for it.
type carried struct {
	transport   string // "": what the ports say
	root, alice uint16 // the first of 64 each
}

var (
	overTCP  = carried{"", 18496, 18432}
	overSCTP = carried{"sctp-udp", 18560, 18624}
)

// newHosts skips where there can be none.
func newHosts(t *testing.T, over carried, programs ...string) *hosts {
	t.Helper()
	lab.Require(t)
	h := &hosts{t: t, bin: ironwarp(t, programs...), over: over}
	if err := os.Chmod(filepath.Dir(h.bin), 0o755); err != nil { // for alice
		t.Fatal(err)
	}
	l := lab.Start(t, lab.Config{})
	h.alpha, h.beta = node.New(l.Host("alpha"), h.bin), node.New(l.Host("beta"), h.bin)
	for _, n := range []*node.Node{h.alpha, h.beta} {
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("daemon of %s:\n%s", n.Name(), n.LogTail(4000))
			}
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if err := node.Join(t.Context(), h.alpha, h.beta); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct{ n, peer *node.Node }{{h.alpha, h.beta}, {h.beta, h.alpha}} {
		kind := ""
		if over.transport != "" {
			kind = ", transport: " + over.transport
		}
		h.declare(x.n, fmt.Sprintf("ulps:\n  - {name: alice, users: [%d], peers: [%[2]s], ports: [%[3]d/64], listen: true%[5]s}\n  - {name: rdma, peers: [%[2]s], ports: [%[4]d/64], listen: true%[5]s}\n",
			alice, x.peer.Name(), over.alice, over.root, kind))
	}
	return h
}

// declare adds to the configuration of a host.
func (h *hosts) declare(n *node.Node, more string) {
	h.t.Helper()
	n.More += more // for its next start
	f, err := os.OpenFile(n.Config, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(more); err != nil {
		h.t.Fatal(err)
	}
	if _, err := n.Ironwarp(h.t.Context(), nil, "reload"); err != nil {
		h.t.Fatal(err)
	}
}

// run starts a program of root's on a host.
func (h *hosts) run(n *node.Node, args ...string) *process {
	h.t.Helper()
	return h.runAs(n, 0, args...)
}

func (h *hosts) runAs(n *node.Node, uid uint32, args ...string) *process {
	h.t.Helper()
	argv := append([]string{h.bin, "run", "--"}, args...)
	if uid != 0 {
		argv = append([]string{"setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", uid), "--clear-groups"}, argv...)
	}
	p := &process{t: h.t, cmd: n.Command(h.t.Context(), argv[0], argv[1:]...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	h.t.Cleanup(func() { p.cmd.Process.Kill() })
	return p
}

// listens waits until somebody listens on a port of a host.
func (h *hosts) listens(n *node.Node, port uint16, p *process) {
	h.t.Helper()
	want := fmt.Sprintf(":%d ", port)
	h.until(fmt.Sprintf("%v listens", p.cmd.Args), func() bool {
		select {
		case err := <-p.done:
			p.done <- err
			h.t.Fatalf("%v has ended: %v\n%s", p.cmd.Args, err, p.out.String())
		default:
		}
		sockets := "-Hltn"
		if h.over.transport != "" {
			sockets = "-Hlun"
		}
		out, err := n.Command(h.t.Context(), "ss", sockets).Output()
		return err == nil && strings.Contains(string(out), want)
	})
}

func (h *hosts) until(what string, is func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), limit)
	defer cancel()
	if err := node.Until(ctx, func() (bool, error) { return is(), ctx.Err() }); err != nil {
		h.t.Fatalf("never happened: %s", what)
	}
}

// streams are those of programs on a host.
func (h *hosts) streams(n *node.Node) []api.Stream {
	h.t.Helper()
	list, err := n.Client().Streams(h.t.Context())
	if err != nil {
		return nil // there is no daemon now
	}
	return slices.DeleteFunc(list, func(s api.Stream) bool { return s.Program == "" })
}

func (h *hosts) must(n *node.Node, args ...string) {
	h.t.Helper()
	if _, err := n.Ironwarp(h.t.Context(), nil, args...); err != nil {
		h.t.Fatal(err)
	}
}

// TestProgramsInIPsec: programs on two hosts, over TCP and SCTP in UDP, with all that they send in ESP, whatever becomes of
// SAs and daemons. The lab's captures judge each packet.
func TestProgramsInIPsec(t *testing.T) {
	if os.Getenv("IRONWARP_VM_CACHE") == "" && os.Getenv("IRONWARP_PROGRAMS") == "" {
		t.Skip("make interop runs it; alone it is run with IRONWARP_PROGRAMS=1")
	}
	t.Run("tcp", func(t *testing.T) {
		inIPsec(t, overTCP, "in IPsec, between two hosts: ", slices.Concat(scenes, []scene{{"what a program may not have", mayNotHave}}))
	})
	t.Run("sctp-udp", func(t *testing.T) {
		inIPsec(t, overSCTP, "over SCTP in UDP, in IPsec, between two hosts: ", slices.Concat(scenes, []scene{{"ports are taken back", portsRemoved}}))
	})
	t.Run("controls", controlOfAsksNobody)
}

// scene is a part of these tests.
type scene struct {
	name string
	f    func(*testing.T, *hosts)
}

var scenes = []scene{
	{"both hosts dial", bothHostsDial},
	{"a file of the canary", canaryCopied},
	{"SAs are deleted under traffic", deletedUnderTraffic},
	{"daemons come and go", daemonsComeAndGo},
	{"a stream is killed, and a peer is blocked", killedAndBlocked},
	{"a program is killed", programKilled},
	{"a program that asks nobody", asksNobody},
}

func inIPsec(t *testing.T, over carried, row string, scenes []scene) {
	h := newHosts(t, over, "rping", "ib_write_bw", "ib_send_lat", "rcopy", "setpriv")
	if _, err := h.beta.CaptureAll(t.Context(), lab.CaptureOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, x := range scenes {
		t.Run(x.name, func(t *testing.T) {
			t.Attr("row", row+x.name)
			at := *h
			at.t = t
			x.f(t, &at)
		})
	}
}

func bothHostsDial(t *testing.T, h *hosts) {
	for _, x := range []struct{ server, client *node.Node }{{h.beta, h.alpha}, {h.alpha, h.beta}} {
		for uid, port := range map[uint32]uint16{0: h.over.root + 4, alice: h.over.alice + 8} {
			server := h.runAs(x.server, uid, "rping", "-s", "-p", fmt.Sprint(port), "-C", "3")
			h.listens(x.server, port, server)
			ends(t, server, h.runAs(x.client, uid, "rping", "-c", "-v", "-a", x.server.Addr().String(), "-p", fmt.Sprint(port), "-C", "3"), "rdma-ping-2")
		}
	}
	// A port that nobody has named is one of the ULP's.
	port := h.over.root + 5
	server := h.run(h.beta, "ib_send_bw", "-F", "-R", "-p", fmt.Sprint(port), "-n", "200")
	h.listens(h.beta, port, server)
	ends(t, server, h.run(h.alpha, "ib_send_bw", "-F", "-R", "-p", fmt.Sprint(port), "-n", "200", h.beta.Addr().String()), "65536      200")
	server = h.run(h.alpha, "ib_send_lat", "-F", "-R", "-p", fmt.Sprint(port), "-n", "200")
	h.listens(h.alpha, port, server)
	ends(t, server, h.run(h.beta, "ib_send_lat", "-F", "-R", "-p", fmt.Sprint(port), "-n", "200", h.alpha.Addr().String()), " 200 ")
}

func canaryCopied(t *testing.T, h *hosts) {
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	want := h.alpha.Canary().Bytes(3 << 20)
	if err := os.WriteFile(from, want, 0o600); err != nil {
		t.Fatal(err)
	}
	server := h.run(h.beta, "rcopy", "-p", fmt.Sprint(h.over.root+14))
	h.listens(h.beta, h.over.root+14, server)
	client := h.run(h.alpha, "rcopy", from, h.beta.Addr().String()+":"+to, "-p", fmt.Sprint(h.over.root+14))
	if err := client.within(limit); err != nil {
		t.Fatalf("%v\n%s\nthe server:\n%s", err, client.out.String(), server.out.String())
	}
	h.until("the file is written", func() bool {
		got, err := os.ReadFile(to)
		return err == nil && bytes.Equal(got, want)
	})
	server.cmd.Process.Kill()
}

// traffic is that of two ib_write_bw, for so many seconds: perftest knows no other end.
type traffic struct {
	server, client *process
	over           time.Time // not before it the streams end by themselves
}

func (f *traffic) isOver() bool { return time.Now().After(f.over) }

// underTraffic calls f while data flow, and again with more time if f says that there was not enough, as on a busy machine.
func (h *hosts) underTraffic(port uint16, seconds int, f func(*traffic) (enough bool)) {
	h.t.Helper()
	for ; ; seconds *= 4 {
		x := h.flood(port, seconds)
		enough := f(x)
		ends(h.t, x.server, x.client, "65536")
		if enough {
			return
		}
		if seconds > 100 {
			h.t.Fatalf("%d seconds are not enough", seconds)
		}
		h.t.Logf("%d seconds are not enough", seconds)
	}
}

// flood has ib_write_bw write for some seconds.
func (h *hosts) flood(port uint16, seconds int) *traffic {
	h.t.Helper()
	p, d := fmt.Sprint(port), fmt.Sprint(seconds)
	server := h.run(h.beta, "ib_write_bw", "-F", "-R", "-p", p, "-D", d)
	h.listens(h.beta, port, server)
	f := &traffic{server: server, over: time.Now().Add(time.Duration(seconds) * time.Second)}
	f.client = h.run(h.alpha, "ib_write_bw", "-F", "-R", "-p", p, "-D", d, h.beta.Addr().String())
	h.until("data flow", func() bool {
		return f.isOver() || slices.ContainsFunc(h.streams(h.alpha), func(s api.Stream) bool { return s.Program == "ib_write_bw" && s.BytesOut > 1<<20 })
	})
	return f
}

func ids(list []api.Stream) (out []string) {
	for _, s := range list {
		out = append(out, s.ID)
	}
	slices.Sort(out)
	return out
}

func deletedUnderTraffic(t *testing.T, h *hosts) {
	h.underTraffic(h.over.root+6, 8, func(f *traffic) (enough bool) {
		before := ids(h.streams(h.alpha))
		for _, n := range []*node.Node{h.alpha, h.beta, h.alpha} {
			peer := h.beta.Name()
			if n == h.beta {
				peer = h.alpha.Name()
			}
			h.must(n, "sa", "delete", peer)
			bytesOf := func() (sum uint64) {
				for _, s := range h.streams(h.alpha) {
					sum += s.BytesOut
				}
				return sum
			}
			at := bytesOf()
			h.until("data flow again", func() bool { return bytesOf() > at+1<<20 || f.isOver() })
		}
		after := ids(h.streams(h.alpha))
		if f.isOver() {
			return false
		}
		if !slices.Equal(before, after) {
			t.Errorf("the streams are not the same: %v and %v", before, after)
		}
		return true
	})
}

// daemonsComeAndGo: one ends in order, one is killed; the programs go on, and are known again.
func daemonsComeAndGo(t *testing.T, h *hosts) {
	h.underTraffic(h.over.root+7, 12, func(f *traffic) (enough bool) {
		for _, n := range []*node.Node{h.alpha, h.beta} {
			flows := func() (all []string) {
				for _, s := range h.streams(n) {
					all = append(all, s.Flow)
				}
				slices.Sort(all)
				return all
			}
			before := flows()
			if n == h.beta {
				n.Kill()
			} else if err := n.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := n.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.until("the next daemon knows the streams", func() bool { return slices.Equal(before, flows()) || f.isOver() })
		}
		return !f.isOver()
	})
}

func killedAndBlocked(t *testing.T, h *hosts) {
	for _, x := range []struct {
		name string
		end  func()
	}{
		{"kill", func() {
			h.must(h.alpha, "stream", "kill", h.streams(h.alpha)[0].ID) // perftest has two, and ends the other one
		}},
		{"block", func() { h.must(h.beta, "block", "add", "--for", "60s", h.alpha.Name()) }},
	} {
		f := h.flood(h.over.root+8, 60)
		x.end()
		h.until(x.name+" ends the streams", func() bool {
			return len(h.streams(h.alpha))+len(h.streams(h.beta)) == 0 || x.name == "block" && len(h.streams(h.beta)) == 0
		})
		if x.name == "block" {
			h.must(h.beta, "block", "rm", h.alpha.Name())
		}
		f.client.cmd.Process.Kill()
		f.server.cmd.Process.Kill()
	}
	h.until("nothing is left", func() bool { return len(h.streams(h.alpha))+len(h.streams(h.beta)) == 0 })
}

func programKilled(t *testing.T, h *hosts) {
	f := h.flood(h.over.root+9, 60)
	f.client.cmd.Process.Kill()
	<-f.client.done
	h.until("both daemons have forgotten its streams", func() bool { return len(h.streams(h.alpha))+len(h.streams(h.beta)) == 0 })
	f.server.cmd.Process.Kill()
}

func mayNotHave(t *testing.T, h *hosts) {
	addr := h.beta.Addr().String()
	for _, x := range []struct {
		uid  uint32
		args []string
		want string
	}{
		{0, []string{"rping", "-c", "-a", addr, "-p", "7174", "-C", "1"}, "port 7174 is none of those that root has with peer beta: 18432 to 18495, 18496 to 18559"},
		{alice, []string{"rping", "-c", "-a", addr, "-p", "18500", "-C", "1"}, "port 18500 is none of those that ULP alice has with peer beta: 18432 to 18495"},
		{0, []string{"rping", "-s", "-p", "7174"}, "port 7174 is none of those at which others may reach programs of yours"},
		{0, []string{"rping", "-c", "-a", "10.99.0.77", "-p", "18500", "-C", "1"}, "10.99.0.77 is not the address of a peer that root may use"},
		{53102, []string{"true"}, "user id 53102 may not use the control socket of this daemon"},
	} {
		p := h.runAs(h.alpha, x.uid, x.args...)
		if err := p.within(limit); err == nil || !strings.Contains(p.out.String(), x.want) {
			t.Errorf("%v: %v\n%s\nwant %q", x.args, err, p.out.String(), x.want)
		}
	}
}

// portsRemoved has the ports taken back while a program that writes by them is stopped, as by a debugger: it goes on when
// their guard has gone, and not a packet of its stream leaves.
func portsRemoved(t *testing.T, h *hosts) {
	f := h.flood(h.over.root+10, 60)
	if err := f.client.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(h.alpha.Config)
	if err != nil {
		t.Fatal(err)
	}
	without, _, found := strings.Cut(string(b), "ulps:")
	if !found {
		t.Fatalf("no ULPs in\n%s", b)
	}
	h.alpha.More = ""
	if err := os.WriteFile(h.alpha.Config, []byte(without), 0o600); err != nil {
		t.Fatal(err)
	}
	h.must(h.alpha, "reload")
	h.until("the guard of its ports has gone", func() bool {
		guards, err := guard.List(h.alpha.NetNS())
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(guards, func(p guard.Policy) bool { return p.Size > 1 })
	})
	if err := f.client.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := f.client.within(limit); err == nil {
		t.Errorf("it goes on:\n%s", f.client.out.String())
	}
	f.server.cmd.Process.Kill()
}

// asksNobody: a program dials, and takes connections, as any local user may, without a word to the daemon. What it sends is
// in ESP or stays here. controlOfAsksNobody shows that a capture would find it.
func asksNobody(t *testing.T, h *hosts) {
	kind := "tcp"
	if h.over.transport != "" {
		kind = "udp"
	}
	for _, n := range []*node.Node{h.alpha, h.beta} {
		for _, peer := range []string{"alpha", "beta"} {
			for _, way := range []string{"in", "out"} { // of this host's peer, and if it is there
				_, _ = n.Ironwarp(t.Context(), nil, "sa", "delete", peer, "--child", fmt.Sprintf("%s-%s-%s%d", peer, way, kind, h.over.root))
			}
		}
	}
	for _, port := range []uint16{h.over.root, h.over.root + 34, h.over.root + 63} { // the block's ends, too
		for _, x := range []struct{ from, to *node.Node }{{h.alpha, h.beta}, {h.beta, h.alpha}} {
			if err := h.sendAlone(x.from, x.to, port, aWhile); err != nil {
				t.Logf("port %d, from %s, as it should be where there is no SA: %v", port, x.from.Name(), err)
			}
		}
	}
}

// aWhile is for what is not to come.
const aWhile = 3 * time.Second

// sendAlone sends the canary to a port of another host, where somebody takes it, by sockets that nobody else knows. It fails
// with what the kernel says, or after a time.
func (h *hosts) sendAlone(from, to *node.Node, port uint16, within time.Duration) error {
	h.t.Helper()
	at, data := netip.AddrPortFrom(to.Addr(), port), h.alpha.Canary().Bytes(1<<16)
	ctx, cancel := context.WithTimeout(h.t.Context(), within)
	defer cancel()
	if h.over.transport != "" {
		return from.Do(func() error {
			c, err := net.ListenUDP("udp4", nil)
			if err != nil {
				return err
			}
			defer c.Close()
			for i := 0; i < len(data) && err == nil; i += 1 << 10 {
				_, err = c.WriteToUDPAddrPort(data[i:i+1<<10], at)
			}
			return err
		})
	}
	ln, err := to.Listen(h.t.Context(), netip.AddrPortFrom(netip.IPv4Unspecified(), port))
	if err != nil {
		h.t.Fatal(err)
	}
	defer ln.Close()
	c, err := from.Dial(ctx, at)
	if err != nil {
		return err
	}
	defer c.Close()
	// An SA of another program's was there, or came: all of this is in it.
	_, err = c.Write(data)
	return err
}

// controlOfAsksNobody: where the guard is overridden, what such a program sends is found in clear.
func controlOfAsksNobody(t *testing.T) {
	for _, over := range []carried{overTCP, overSCTP} {
		t.Run(cmp.Or(over.transport, "tcp"), func(t *testing.T) {
			t.Attr("row", "a control: with the guard overridden, clear packets of a program that asks nobody are found, over "+cmp.Or(over.transport, "tcp"))
			h := newHosts(t, over)
			wire, err := h.beta.Capture(t.Context(), lab.CaptureOptions{Unjudged: "a control: what it sends is in clear"})
			if err != nil {
				t.Fatal(err)
			}
			protocol := transport.ProtoTCP
			if over.transport != "" {
				protocol = transport.ProtoUDP
			}
			port := over.root + 34
			clear := func(k lab.Counts) int { return k.ClearTCP[port] + k.ClearUDP[port] }
			for _, overridden := range []bool{false, true} {
				if overridden {
					if err := errors.Join(h.alpha.OverrideGuardOf(protocol, h.beta.Host, port), h.beta.OverrideGuardOf(protocol, h.alpha.Host, port)); err != nil {
						t.Fatal(err)
					}
				}
				within := aWhile
				if overridden {
					within = limit
				}
				err := h.sendAlone(h.alpha, h.beta, port, within)
				k, kerr := wire.Count()
				if kerr != nil {
					t.Fatal(kerr)
				}
				if found := len(k.Canary) > 0 && clear(k) > 0; found != overridden {
					t.Errorf("the guard is overridden: %v; the canary is found in %v, and %d packets in clear (%v)", overridden, k.Canary, clear(k), err)
				}
			}
		})
	}
}
