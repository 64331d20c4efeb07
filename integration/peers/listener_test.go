package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// TestNoSYNIsAnsweredInClearWhenTheGuardGoes makes a peer ask for connections in clear,
// all the time, while this host's guard against it is removed: if the listener outlived
// the guard, the kernel would answer one with a SYN and ACK. A RST shows that the guard
// is gone, and the answers of another program's listener show that the test would find
// one.
func TestNoSYNIsAnsweredInClearWhenTheGuardGoes(t *testing.T) {
	for name, end := range map[string]func(s *scene){
		"peer rm": func(s *scene) { s.must(s.alpha, "peer", "rm", "beta") },
		"another transport": func(s *scene) {
			s.edit(s.alpha, "beta", "transport: sctp-udp\n", "transport: tcp\n", "")
			s.must(s.alpha, "reload")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", "tcp"); err != nil {
				t.Fatal(err)
			}
			s.ping()                              // alpha listens
			s.must(s.beta, "peer", "rm", "alpha") // from now on beta has no SA and no guard
			at := netip.AddrPortFrom(s.alpha.Addr(), config.DefaultPort)
			accepted, refused := s.answers(s.alpha, transport.ProtoTCP, at)
			defer s.askInClear(s.beta, transport.ProtoTCP, at)()
			s.untilDropped(s.alpha)
			if n := accepted() + refused(); n != 0 {
				t.Errorf("%d answers in clear while there is a guard", n)
			}
			end(s)
			s.until("the guard is gone", func() bool { return refused() > 0 })
			if n := accepted(); n != 0 {
				t.Errorf("%d SYNs were answered in clear when the guard went", n)
			}
			ln, err := s.alpha.Listen(t.Context(), at)
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			s.until("an answer is found", func() bool { return accepted() > 0 })
		})
	}
}

// TestListenerThatMovesLeaksNothing makes a daemon listen at one address, at all, and
// at one again, while a disk is being read and then while the peer asks for connections
// in clear: everything stays in ESP, and no policy of the guard and nothing of its
// table is ever removed. The peer's removal at the end shows that the test would find
// either.
func TestListenerThatMovesLeaksNothing(t *testing.T) {
	for carrier, link := range map[string]transport.Protocol{"tcp": transport.ProtoTCP, "sctp-udp": transport.ProtoUDP} {
		t.Run(carrier, func(t *testing.T) { movingListener(t, carrier, link) })
	}
}

func movingListener(t *testing.T, carrier string, link transport.Protocol) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta, "--transport", carrier); err != nil {
		t.Fatal(err)
	}
	s.attach()
	s.ping()
	own := s.beta.Addr().String()
	main, err := os.ReadFile(s.beta.Config)
	if err != nil {
		t.Fatal(err)
	}
	move := func(to string) {
		t.Helper()
		text := fmt.Sprintf("%slisten: {addresses: [%q]}\n", main, to)
		if err := os.WriteFile(s.beta.Config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.must(s.beta, "reload")
		st, err := s.beta.Client().Status(t.Context())
		if err != nil || len(st.Listeners) != 1 || st.Listeners[0].State != "listening" || !strings.HasPrefix(st.Listeners[0].Address, to+":") {
			t.Fatalf("listening at %s: %+v, %v", to, st.Listeners, err)
		}
	}
	policies, tables := s.removedPolicies(s.beta), s.removedTables(s.beta)
	wire, err := s.beta.Capture(t.Context(), lab.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var socket string
	s.until("the disk is there", func() bool {
		list, err := s.alpha.Client().Attachments(t.Context())
		if err != nil || len(list) != 1 || list[0].State != api.AttachReady {
			return false
		}
		socket = list[0].Socket
		return true
	})
	streams := s.streams()
	moved := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			s.readDisk(socket)
			select {
			case <-moved:
				return
			default:
			}
		}
	})
	for _, to := range []string{own, "0.0.0.0", own, "0.0.0.0", own} {
		move(to)
		s.ping()
		s.readDisk(socket)
	}
	close(moved)
	reading.Wait()
	if now := s.streams(); !slices.Equal(now, streams) {
		t.Errorf("the disk's streams were %v and are %v", streams, now)
	}
	at := netip.AddrPortFrom(s.beta.Addr(), config.DefaultPort)
	if link == transport.ProtoUDP {
		at = netip.AddrPortFrom(s.beta.Addr(), config.DefaultUDPPort)
	}
	if k, err := wire.Stop(); err != nil || k.ClearOf(link, at.Port()) != 0 {
		t.Errorf("in clear on the wire: %v, %v", k, err)
	}

	s.until("the daemon has noticed that its clients have left", func() bool {
		list, err := s.alpha.Client().Attachments(t.Context())
		return err == nil && list[0].Clients == 0
	})
	s.must(s.alpha, "detach", "beta/disk")
	s.must(s.beta, "export", "rm", "disk")
	s.must(s.alpha, "peer", "rm", "beta") // from now on alpha has no SA and no guard
	accepted, refused := s.answers(s.beta, link, at)
	defer s.askInClear(s.alpha, link, at)()
	s.untilDropped(s.beta)
	for _, to := range []string{"0.0.0.0", own, "0.0.0.0", own} {
		move(to)
		s.untilDropped(s.beta)
	}
	if n := accepted() + refused(); n != 0 {
		t.Errorf("%d answers in clear while the listener moved", n)
	}
	if list := append(policies(), tables()...); len(list) > 0 {
		t.Errorf("taken away of the guard while the listener moved: %q", list)
	}
	s.must(s.beta, "peer", "rm", "alpha")
	s.until("a removed guard is found", func() bool { return refused() > 0 && len(policies()) > 0 && len(tables()) > 0 })
}

// removedTables watches a host's nf_tables, and returns what was removed so far.
func (s *scene) removedTables(n *node.Node) func() []string {
	s.t.Helper()
	var c *netlink.Conn
	err := n.Do(func() (err error) {
		c, err = netlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	if err == nil {
		err = errors.Join(c.SetReadBuffer(8<<20), c.JoinGroup(unix.NFNLGRP_NFTABLES))
	}
	if err != nil {
		s.t.Fatal(err)
	}
	var seen lines
	var watching sync.WaitGroup
	over := make(chan struct{})
	watching.Go(func() {
		kinds := map[netlink.HeaderType]string{unix.NFT_MSG_DELTABLE: "table", unix.NFT_MSG_DELCHAIN: "chain", unix.NFT_MSG_DELRULE: "rule",
			unix.NFT_MSG_DELSET: "set", unix.NFT_MSG_DELSETELEM: "element"}
		for {
			msgs, err := c.Receive()
			if err != nil {
				select {
				case <-over:
				default:
					s.t.Errorf("watch nf_tables: %v", err)
				}
				return
			}
			for _, m := range msgs {
				if kind := kinds[m.Header.Type&0xff]; kind != "" {
					fmt.Fprintf(&seen, "a %s of nf_tables: %q\n", kind, m.Data)
				}
			}
		}
	})
	s.t.Cleanup(func() {
		close(over)
		_ = c.Close()
		watching.Wait()
	})
	return func() []string { return slices.Collect(strings.Lines(seen.String())) }
}

// removedPolicies watches the XFRM policies of a host, and returns what was removed so
// far.
func (s *scene) removedPolicies(n *node.Node) func() []string {
	s.t.Helper()
	var seen lines
	ctx, stop := context.WithCancel(s.t.Context())
	cmd := n.Command(ctx, "ip", "xfrm", "monitor", "policy")
	cmd.Stdout = &seen
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		stop()
		_ = cmd.Wait()
	})
	const other = "198.51.100.1"
	s.until("a policy is seen to go", func() bool {
		for _, verb := range []string{"add", "delete"} {
			more := map[string]string{"add": " action allow priority 5000"}[verb]
			s.shell(n, "ip xfrm policy "+verb+" src "+other+"/32 dst "+other+"/32 dir out"+more)
		}
		return seen.has("Deleted src " + other)
	})
	return func() (all []string) {
		for _, line := range strings.Split(seen.String(), "\n") {
			if strings.HasPrefix(line, "Deleted") && !strings.Contains(line, other) {
				all = append(all, line)
			}
		}
		return all
	}
}

// answers counts a host's answers in clear to requests for its port: those of its
// listener, and those of the kernel where none listens.
func (s *scene) answers(n *node.Node, link transport.Protocol, at netip.AddrPort) (accepted, refused func() int) {
	s.t.Helper()
	count := func(filter string) func() int {
		wire, err := n.Capture(s.t.Context(), lab.CaptureOptions{Unjudged: "the control at the end has to find answers",
			Filter: fmt.Sprintf("src host %s and %s", at.Addr(), filter)})
		if err != nil {
			s.t.Fatal(err)
		}
		return func() (n int) {
			k, err := wire.Count()
			if err != nil {
				s.t.Fatal(err)
			}
			for _, of := range k.Kinds {
				n += of
			}
			return n
		}
	}
	if link == transport.ProtoUDP {
		return count(fmt.Sprintf("udp src port %d", at.Port())), count("icmp[icmptype] = icmp-unreach")
	}
	syn := fmt.Sprintf("tcp src port %d and tcp[tcpflags] & ", at.Port())
	return count(syn + "(tcp-syn|tcp-ack) = (tcp-syn|tcp-ack)"), count(syn + "tcp-rst != 0")
}

// untilDropped waits until a host's guard has dropped another packet.
func (s *scene) untilDropped(n *node.Node) {
	s.t.Helper()
	dropped := "grep XfrmInPolBlock /proc/net/xfrm_stat | awk '{ print $2 }'"
	was, err := n.Run(s.t.Context(), "sh", "-c", dropped)
	if err != nil {
		s.t.Fatal(err)
	}
	s.until("the guard drops what the peer asks", func() bool {
		now, err := n.Run(s.t.Context(), "sh", "-c", dropped)
		return err == nil && now != was
	})
}

// askInClear makes a host send a SYN, or a datagram, each millisecond until stop is
// called.
func (s *scene) askInClear(n *node.Node, link transport.Protocol, at netip.AddrPort) (stop func()) {
	s.t.Helper()
	kind := unix.SOCK_STREAM
	if link == transport.ProtoUDP {
		kind = unix.SOCK_DGRAM
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		err := n.Do(func() error {
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-done:
					return nil
				case <-tick.C:
				}
				fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
				if err != nil {
					return err
				}
				_ = unix.Connect(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}) // goes on
				if kind == unix.SOCK_DGRAM {
					_, _ = unix.Write(fd, []byte("anybody there?"))
				}
				if err := unix.Close(fd); err != nil {
					return err
				}
			}
		})
		if err != nil {
			s.t.Error(err)
		}
	})
	return func() { close(done); wg.Wait() }
}
