package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/internal/nsdo"
)

// nameServer is the DNS server of one host, which says what the test wants it to.
type nameServer struct {
	conn  *net.UDPConn
	ended chan struct{}

	mu      sync.Mutex // guards the fields below it
	answers []netip.Addr
	silent  bool
	asked   int
}

// newNameServer starts a server on a host's loopback, and has the host's processes ask it.
func newNameServer(t *testing.T, h *lab.Host) *nameServer {
	t.Helper()
	dir := filepath.Join("/etc/netns", h.Namespace()) // which ip netns exec mounts over /etc
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte("nameserver 127.0.0.1\noptions timeout:1 attempts:2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := &nameServer{silent: true, ended: make(chan struct{})}
	if err := nsdo.Do(h.NetNS(), func() (err error) {
		s.conn, err = net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 53})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go s.serve()
	t.Cleanup(func() { s.conn.Close(); <-s.ended })
	return s
}

// say has it answer so from now on; without an address it is silent.
func (s *nameServer) say(answers ...netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers, s.silent = answers, len(answers) == 0
}

func (s *nameServer) serve() {
	defer close(s.ended)
	buf := make([]byte, 4096)
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var m dnsmessage.Message
		if err != nil || m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		s.mu.Lock()
		answers, silent := s.answers, s.silent
		s.asked++
		s.mu.Unlock()
		if silent {
			continue
		}
		q := m.Questions[0]
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		for _, a := range answers {
			head := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: 1}
			switch {
			case a.Is4() && q.Type == dnsmessage.TypeA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: a.As4()}})
			case a.Is6() && q.Type == dnsmessage.TypeAAAA:
				m.Answers = append(m.Answers, dnsmessage.Resource{Header: head, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
			}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = s.conn.WriteToUDPAddrPort(out, from)
		}
	}
}

// TestPeerByNameIsWhereItsNameSaysAndWhoIKESays: alpha's peer beta is declared as beta.example, and its DNS server is silent,
// lies, flaps and tells the truth. Nothing is ever in clear, no other host gets a stream, and what runs goes on, until beta has another
// address.
func TestPeerByNameIsWhereItsNameSaysAndWhoIKESays(t *testing.T) {
	lab.Require(t)
	l := lab.Start(t, lab.Config{Hosts: []string{"alpha", "beta", "gamma"}})
	dns := newNameServer(t, l.Host("alpha"))
	binary := program.Path(t)
	s := &scene{t: t, alpha: node.New(l.Host("alpha"), binary), beta: node.New(l.Host("beta"), binary)}
	gamma := node.New(l.Host("gamma"), binary)
	for _, n := range []*node.Node{s.alpha, s.beta, gamma} {
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("daemon of %s:\n%s", n.Name(), n.LogTail(6000))
			}
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
	wire, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}

	// Silent: no address, and the peer says so.
	s.must(s.alpha, "peer", "add", "--generate-psk", "beta", "beta.example")
	secret := config.SecretPath(s.alpha.Config, "beta")
	s.must(s.beta, "peer", "add", "--psk-file", secret, "--local-id", "beta.example", "alpha", s.alpha.Addr().String())
	s.must(gamma, "peer", "add", "--generate-psk", "--local-id", "gamma.example", "alpha", s.alpha.Addr().String())
	said := func(words string) {
		t.Helper()
		s.until("the peer says: "+words, func() bool {
			p := s.peer(s.alpha, "beta")
			return strings.Contains(p.NameNote, words) || p.Problem != nil && strings.Contains(p.Problem.Message, words)
		})
	}
	said("no address yet: its name cannot be looked up: no answer in time")
	// Lies that are no other host's address.
	dns.say(netip.MustParseAddr("127.0.0.1"), s.alpha.Addr(), netip.MustParseAddr("224.0.0.5"))
	said("127.0.0.1: it is on this host")
	said("224.0.0.5: it is not that of one host")
	said(s.alpha.Addr().String() + ": it is this host's own")
	if p := s.peer(s.alpha, "beta"); p.Resolved != "" {
		t.Errorf("%q at %q", p.NameNote, p.Resolved)
	}
	// A host of another identity: the link is guarded there, and IKE refuses.
	dns.say(gamma.Addr())
	at := func(a netip.Addr) {
		t.Helper()
		s.until(fmt.Sprintf("the peer is at %s", a), func() bool { return s.peer(s.alpha, "beta").Resolved == a.String() })
	}
	at(gamma.Addr())
	s.until("the link is guarded there", func() bool { return s.peer(s.alpha, "beta").IPsec != nil })
	if out, err := s.alpha.Ironwarp(t.Context(), nil, "ping", "--timeout", "10s", "--count", "1", "beta"); err == nil {
		t.Errorf("gamma answers for beta: %s", out)
	}
	if c, err := dialFrom(t, s.alpha, netip.AddrPortFrom(gamma.Addr(), config.DefaultPort)); err == nil {
		c.Close()
		t.Error("a connection in clear gets to the port of streams")
	}
	if streams, err := s.alpha.Client().Streams(t.Context()); err != nil || len(streams) > 0 {
		t.Errorf("%+v, %v", streams, err)
	}
	// The truth.
	dns.say(s.beta.Addr())
	at(s.beta.Addr())
	s.ping()
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "export", "add", "--allow", "alpha", "disk", image)
	s.must(s.alpha, "attach", "beta/disk")
	before := s.streams()
	// A lie while streams run ends none of them.
	dns.say(gamma.Addr())
	s.must(s.alpha, "reload")
	said("streams run at " + s.beta.Addr().String())
	if after := s.streams(); !slices.Equal(before, after) {
		t.Errorf("streams %v, then %v", before, after)
	}
	// A daemon that starts again has the peer where it was, though nobody answers.
	dns.say()
	if err := s.alpha.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := s.alpha.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.ready()
	if p := s.peer(s.alpha, "beta"); p.Resolved != s.beta.Addr().String() {
		t.Errorf("after a restart it is at %q", p.Resolved)
	}
	// beta gets another address: the disk comes back there.
	moved := netip.MustParseAddr("10.99.0.77")
	for _, change := range []string{"del " + s.beta.Addr().String() + "/24", "add " + moved.String() + "/24"} {
		args := append([]string{"addr"}, strings.Fields(change+" dev "+s.beta.Dev())...)
		if _, err := s.beta.Run(t.Context(), "ip", args...); err != nil {
			t.Fatal(err)
		}
	}
	dns.say(moved)
	at(moved)
	s.ping()
	s.ready()
	if _, err := wire.Stop(); err != nil {
		t.Error(err)
	}
}

// ready waits until alpha's disk is.
func (s *scene) ready() {
	s.t.Helper()
	s.until("the disk is ready", func() bool {
		list, err := s.alpha.Client().Attachments(s.t.Context())
		return err == nil && len(list) == 1 && list[0].State == api.AttachReady
	})
}

// dialFrom connects from a host, as a program does that knows nothing of IronWarp.
func dialFrom(t *testing.T, h *node.Node, to netip.AddrPort) (c net.Conn, err error) {
	t.Helper()
	err = nsdo.Do(h.NetNS(), func() (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var d net.Dialer
		c, err = d.DialContext(ctx, "tcp", to.String())
		return err
	})
	return c, err
}
