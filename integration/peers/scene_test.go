package peers

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// program is shared by all tests.
var program node.Program

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := program.Remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(code)
	}))
}

// healTime bounds waits that normally take a second; a busy machine must not fail a
// test.
const healTime = 2 * time.Minute

const metricsPort = "9471"

// serveMetrics has a daemon serve them there.
const serveMetrics = "metrics: {listen: \"127.0.0.1:" + metricsPort + "\"}\n"

// scene is two hosts whose daemons do not know each other.
type scene struct {
	t           *testing.T
	alpha, beta *node.Node
	pki         string
}

func newScene(t *testing.T) *scene {
	t.Helper()
	lab.Require(t)
	binary := program.Path(t)
	l := lab.Start(t, lab.Config{})
	s := &scene{t: t, alpha: node.New(l.Host("alpha"), binary), beta: node.New(l.Host("beta"), binary)}
	for _, n := range []*node.Node{s.alpha, s.beta} {
		n.More = serveMetrics
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
	return s
}

// certificates makes a lab's authority and adds the hosts to each other with its
// certificates. more are further flags of alpha's.
func (s *scene) certificates(more func(pki string) []string) {
	s.t.Helper()
	s.pki = filepath.Join(s.alpha.Dir(), "pki")
	s.must(s.alpha, "pki", "init", "--dir", s.pki)
	for _, n := range []*node.Node{s.alpha, s.beta} {
		s.issue(n, n.Name())
	}
	s.add(s.alpha, s.beta, "alpha", more(s.pki)...)
	s.add(s.beta, s.alpha, "beta")
}

func (s *scene) issue(n *node.Node, name string) {
	s.t.Helper()
	s.must(s.alpha, "pki", "issue", "--dir", s.pki, "--san", n.Addr().String(), name)
}

// add adds a peer to a host with the certificate of that name.
func (s *scene) add(n, peer *node.Node, cert string, more ...string) {
	s.t.Helper()
	args := append([]string{"peer", "add", "--cert-file", filepath.Join(s.pki, cert+".pem"), "--key-file", filepath.Join(s.pki, cert+".key"), "--ca-file", filepath.Join(s.pki, "ca.pem")}, more...)
	s.must(n, append(args, peer.Name(), peer.Addr().String())...)
}

// diskSize is the size in bytes of the disk that attach attaches.
const diskSize = 1 << 20

// attach makes alpha attach a disk of beta's, which is full of the canary, and returns its NBD socket.
func (s *scene) attach() (socket string) {
	s.t.Helper()
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.must(s.beta, "export", "add", "--allow", "id:"+s.alpha.Addr().String(), "disk", image)
	return strings.TrimSpace(s.must(s.alpha, "attach", "--quiet", "beta/disk"))
}

func (s *scene) must(n *node.Node, args ...string) string {
	s.t.Helper()
	out, err := n.Ironwarp(s.t.Context(), nil, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(out)
}

// readDisk reads the disk at a socket that attach has returned.
func (s *scene) readDisk(socket string) {
	s.t.Helper()
	c, err := net.Dial("unix", filepath.Join(s.alpha.RunDir(), strings.TrimPrefix(socket, "/run/")))
	if err != nil {
		s.t.Fatal(err)
	}
	defer c.Close()
	client, err := nbdtest.Connect(c, "disk", false)
	if err != nil {
		s.t.Fatal(err)
	}
	const read = 0 // NBD_CMD_READ
	r, err := client.Do(0, read, 0, diskSize, nil)
	if err != nil || r.Error != 0 || !bytes.Equal(r.Data, s.beta.Canary().Bytes(diskSize)) {
		s.t.Errorf("read the disk: %v, %+v", err, r)
	}
}

// ping waits until a ping gets through: an attempt that began before a change may
// still fail after it.
func (s *scene) ping() {
	s.t.Helper()
	s.until("a ping gets through", func() bool {
		_, err := s.alpha.Ironwarp(s.t.Context(), nil, "ping", "--timeout", "10s", "--count", "1", "beta")
		if err != nil {
			s.t.Logf("not yet: %v", err)
		}
		return err == nil
	})
}

// streams are the ids of alpha's streams to beta, without those of pings.
func (s *scene) streams() []string {
	s.t.Helper()
	list, err := s.alpha.Streams(s.t.Context(), "beta")
	if err != nil {
		s.t.Fatal(err)
	}
	var ids []string
	for _, x := range list {
		if x.Service == "attachments" {
			ids = append(ids, x.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func (s *scene) until(what string, ok func() bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), healTime)
	defer cancel()
	if err := node.Until(ctx, func() (bool, error) { return ok(), nil }); err != nil {
		s.t.Fatalf("never happened: %s: %v", what, err)
	}
}

// edit replaces a text in the file of a host's peer, and adds lines to it.
func (s *scene) edit(n *node.Node, peer string, add string, replace ...string) {
	s.t.Helper()
	file := filepath.Join(filepath.Dir(n.Config), "peers.d", peer+".yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.NewReplacer(replace...).Replace(string(data)) + add
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *scene) peer(n *node.Node, name string) api.Peer {
	s.t.Helper()
	p, err := n.Client().Peer(s.t.Context(), name)
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

// lines collects lines of output.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) has(parts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range strings.Split(l.b.String(), "\n") {
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			return true
		}
	}
	return false
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
