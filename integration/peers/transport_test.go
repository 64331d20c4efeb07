package peers

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// TestDiskFollowsTheTransportAndNothingIsEverInClear changes the transport of a link
// repeatedly: the disk reconnects over the new one, the guards of the old one go and
// those of the new one come, and the wire has no clear packet of any. The
// demonstration's control shows that the capture would find clear packets.
func TestDiskFollowsTheTransportAndNothingIsEverInClear(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	capture, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.attach()
	hosts := map[*node.Node]string{s.alpha: "beta", s.beta: "alpha"}
	now := map[*node.Node]string{}
	for _, step := range []struct {
		alpha, beta string
		want        string // over which the disk is attached then; "": what was picked
		why         string // part of what alpha says
	}{
		{"tcp", "tcp", "tcp", "configured"},
		{"sctp-udp", "sctp-udp", "sctp-udp", "configured"},
		{"auto", "auto", "", "the fastest that both hosts have, as measured: "},
		{"auto", "tcp", "tcp", "no sctp-udp: beta has none for this host"},
		{"auto", "auto", "", "the fastest that both hosts have, as measured: "},
		{"tcp", "auto", "tcp", "configured"},
	} {
		for _, n := range []*node.Node{s.beta, s.alpha} { // who asks comes last
			carrier := step.beta
			if n == s.alpha {
				carrier = step.alpha
			}
			if now[n] != carrier {
				s.edit(n, hosts[n], "transport: "+carrier+"\n", "transport: "+now[n]+"\n", "")
				s.must(n, "reload")
				now[n] = carrier
			}
		}
		var last api.Status
		s.until(fmt.Sprintf("the disk is attached over %s, with %s here and %s there", step.want, step.alpha, step.beta), func() bool {
			var err error
			if last, err = s.alpha.Client().Status(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := cmp.Or(step.want, last.Peers[0].Carrier.Transport)
			return len(last.Attachments) == 1 && last.Attachments[0].State == api.AttachReady && strings.Contains(last.Peers[0].Carrier.Why, step.why) && on(last.Streams, want)
		})
		step.want = cmp.Or(step.want, last.Peers[0].Carrier.Transport)
		if c := last.Peers[0].Carrier; c.Transport != step.want || !strings.Contains(c.Why, step.why) {
			t.Errorf("%s: carrier %+v, want %s since %q", step.alpha, c, step.want, step.why)
		}
		s.ping()
		s.readDisk(last.Attachments[0].Socket)
		for n, carrier := range now {
			s.guardsFit(n, config.Transport(carrier))
		}
	}
	counts, err := capture.Stop()
	if err != nil {
		t.Fatal(err)
	}
	for proto, port := range map[transport.Protocol]uint16{transport.ProtoTCP: config.DefaultPort, transport.ProtoSCTP: config.DefaultPort, transport.ProtoUDP: config.DefaultUDPPort} {
		if n := counts.ClearOf(proto, port); n != 0 {
			t.Errorf("%d clear packets of %v port %d: %v", n, proto, port, counts)
		}
	}
	if counts.ESP == 0 {
		t.Errorf("the capture proves nothing: %v", counts)
	}
}

// on reports whether there are streams to attached disks, all of them over that
// transport.
func on(streams []api.Stream, carrier string) bool {
	n := 0
	for _, x := range streams {
		if x.Service != "attachments" {
			continue
		}
		if x.Transport != carrier {
			return false
		}
		n++
	}
	return n > 0
}

// guardsFit waits until the guards in a host's kernel are those of its peer's transport: there has
// to be one for each carrier that streams may have, at once, and no other when nothing is left to send by it.
func (s *scene) guardsFit(n *node.Node, carrier config.Transport) {
	s.t.Helper()
	var want []string
	for _, k := range carrier.Kinds() {
		want = append(want, k.Protocol().String())
	}
	slices.Sort(want)
	s.until(fmt.Sprintf("%s with transport %s guards %v alone", n.Name(), carrier, want), func() bool {
		list, err := guard.List(n.NetNS())
		if err != nil {
			s.t.Fatal(err)
		}
		var have []string
		for _, g := range list {
			have = append(have, g.Protocol.String())
		}
		slices.Sort(have)
		have = slices.Compact(have)
		for _, w := range want {
			if !slices.Contains(have, w) {
				s.t.Fatalf("%s with transport %s guards %v, want %v", n.Name(), carrier, have, want)
			}
		}
		return slices.Equal(have, want)
	})
}

// TestGuardOfALinkThatStaysIsNeverTakenDown changes the transport so that the peer
// keeps TCP, with SCTP in UDP beside it or without. The kernel reports each removed
// policy.
func TestGuardOfALinkThatStaysIsNeverTakenDown(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	said := &lines{}
	monitor := s.alpha.Command(t.Context(), "ip", "xfrm", "monitor", "policy")
	monitor.Stdout = said
	if err := monitor.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = monitor.Process.Kill()
		_ = monitor.Wait()
	}()
	// reported waits until everything that happened before has been reported.
	reported := func(mark string) {
		t.Helper()
		policy := " src 192.0.2.1/32 dst " + mark + "/32 dir out"
		s.until("the kernel reports "+mark, func() bool {
			s.shell(s.alpha, "ip xfrm policy add"+policy+" action block && ip xfrm policy delete"+policy)
			return said.has("Deleted", "dst "+mark+"/32")
		})
	}
	reported("192.0.2.2")
	was := ""
	for _, carrier := range []string{"auto", "tcp"} {
		s.edit(s.alpha, "beta", "transport: "+carrier+"\n", was, "")
		s.must(s.alpha, "reload")
		s.guardsFit(s.alpha, config.Transport(carrier))
		was = "transport: " + carrier + "\n"
	}
	reported("192.0.2.3")
	port := func(p uint16) string { return fmt.Sprintf("port %d ", p) }
	if said.has("Deleted", "proto tcp", port(config.DefaultPort)) {
		t.Errorf("policies of TCP went meanwhile:\n%v", said)
	}
	if !said.has("Deleted", "proto udp", port(config.DefaultUDPPort)) {
		t.Errorf("the removal of UDP's policies is not reported:\n%v", said)
	}
}
