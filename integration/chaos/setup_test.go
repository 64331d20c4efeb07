package chaos

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// steps are the moments between "no such peer" and the first byte of its disk, in
// order, and the daemon's log line for each. The test itself sees those without a
// pattern.
var steps = []struct {
	name    string
	pattern *regexp.Regexp
}{
	{"peer add: guard, self-test, strongSwan has key and connection", nil},
	{"IKE_SA_INIT and IKE_AUTH, which makes the first child (RFC 7296 1.2)", regexp.MustCompile(`event=ike-up `)},
	{"first stream: proof of its SA, TCP, MPA", regexp.MustCompile(`msg="stream up"`)},
	{"RTRS session with all its streams, disk open", regexp.MustCompile(`msg="remote disk open"`)},
	{"attach returns", nil},
	{"first byte over NBD", nil},
}

// TestTimeFromPeerAddToFirstByte measures that time from a start with nothing but two
// daemons, and prints the median of some rounds, step by step.
func TestTimeFromPeerAddToFirstByte(t *testing.T) {
	s := newScene(t)
	// The daemon takes its own file away with the peer.
	secret := filepath.Join(t.TempDir(), "psk")
	if b, err := os.ReadFile(config.SecretPath(s.alpha.Config, "beta")); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(secret, b, 0o600); err != nil {
		t.Fatal(err)
	}
	spec := api.PeerSpec{Name: "beta", Address: s.beta.Addr().String(), PSKFile: secret}
	const rounds = 5
	took := make([][]time.Duration, len(steps))
	for range rounds {
		s.forget(t)
		from := len(s.alpha.LogTail(1 << 30))
		begin := time.Now()
		at := make([]time.Time, len(steps))
		if _, err := s.alpha.Client().AddPeer(t.Context(), spec); err != nil {
			t.Fatal(err)
		}
		at[0] = time.Now()
		disk, err := s.alpha.Client().Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: s.export()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		at[len(at)-2] = time.Now()
		s.firstByte(t, disk.Socket)
		at[len(at)-1] = time.Now()
		for i, st := range steps {
			if st.pattern == nil {
				continue
			}
			// The log may be a moment behind.
			s.eventually(t, "the daemon's log has "+st.pattern.String(), nil, func(context.Context) (found bool) {
				at[i], found = logged(t, s.alpha.LogTail(1 << 30)[from:], st.pattern)
				return found
			})
		}
		for i := range at {
			took[i] = append(took[i], at[i].Sub(begin))
		}
	}
	var text strings.Builder
	for i, st := range steps {
		slices.Sort(took[i])
		fmt.Fprintf(&text, "%8.1f ms  %s\n", float64(took[i][rounds/2].Microseconds())/1000, st.name)
	}
	t.Logf("from `peer add` to the first byte, median of %d rounds, each step's end counted from the beginning:\n%s", rounds, text.String())
	s.judge(t, 0)
}

// forget takes alpha's attachment and peer away, and waits until beta has no SA
// left either.
func (s *scene) forget(t *testing.T) {
	t.Helper()
	if err := s.alpha.Client().Detach(t.Context(), "beta", s.export(), true); err != nil {
		t.Fatal(err)
	}
	if _, err := s.alpha.Client().RemovePeer(t.Context(), "beta", false); err != nil {
		t.Fatal(err)
	}
	s.eventually(t, "beta has no SA left", nil, func(ctx context.Context) bool {
		list, err := s.beta.Client().SAs(ctx)
		return err == nil && len(list) == 0
	})
}

// firstByte reads a block of the disk.
func (s *scene) firstByte(t *testing.T, socket string) {
	t.Helper()
	c := s.nbd(t, s.alpha, socket)
	defer c.Close()
	r, err := c.Do(0, nbdRead, 0, 4096, nil)
	if err != nil || r.Error != 0 || !bytes.Equal(r.Data, make([]byte, 4096)) {
		t.Fatalf("read the first block: %v, error %d", err, r.Error)
	}
}

// NBD's commands and an error, as its protocol document numbers them.
const (
	nbdRead, nbdWrite = 0, 1
	nbdEPERM          = 1
)

// nbd connects to an attached disk of a host.
func (s *scene) nbd(t *testing.T, n *node.Node, socket string) *nbdtest.Client {
	t.Helper()
	c, err := net.Dial("unix", filepath.Join(n.RunDir(), strings.TrimPrefix(socket, "/run/")))
	must(t, err)
	t.Cleanup(func() { c.Close() })
	client, err := nbdtest.Connect(c, s.export(), false)
	must(t, err)
	return client
}

// logged returns when a line of the log was written.
func logged(t *testing.T, log string, pattern *regexp.Regexp) (at time.Time, found bool) {
	t.Helper()
	for line := range strings.Lines(log) {
		if !pattern.MatchString(line) {
			continue
		}
		stamp, _, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil {
			t.Fatal(err)
		}
		return at, true
	}
	return at, false
}
