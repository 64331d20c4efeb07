package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// station is a host with a daemon, which a hostile peer can reach.
type station struct {
	*testing.T
	dir  string
	port uint16
	api  *api.Client
	log  *journal
}

// journal is a log in memory.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// The peers of a station, both on this host.
var (
	mallorys = netip.MustParseAddr("127.0.0.2") // hostile
	friends  = netip.MustParseAddr("127.0.0.3")
)

// daemonAttack is what a hostile peer of a daemon tries.
type daemonAttack struct {
	name   string
	check  checks.Check
	config string // of the station, beside its peers
	try    func(s *station) (succeeded bool)
}

// runDaemon makes attacks, each on a station of its own.
func runDaemon(t *testing.T, attacks ...daemonAttack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			switch succeeded := a.try(newStation(t, a.config)); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// newConfig writes the configuration of a station.
func newConfig(t *testing.T, more string) *station {
	t.Helper()
	s := &station{T: t, dir: must(os.MkdirTemp("", "iwstation"))(t), port: iwarptest.FreePort(t), log: new(journal)}
	t.Cleanup(func() { os.RemoveAll(s.dir) })
	text := fmt.Sprintf("listen: {port: %d, addresses: [127.0.0.1]}\nstate_dir: state\nruntime_dir: run\n%s"+
		"peers:\n  - {name: mallory, address: %v, protection: loopback}\n  - {name: friend, address: %v, protection: loopback}\n", s.port, more, mallorys, friends)
	if err := os.WriteFile(filepath.Join(s.dir, "ironwarp.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.api = api.NewClient(filepath.Join(s.dir, "run", "ironwarp.sock"))
	t.Cleanup(s.api.Close)
	return s
}

func (s *station) options() daemon.Options {
	return daemon.Options{Config: filepath.Join(s.dir, "ironwarp.yaml"), Named: true, Version: "test",
		Log: func(config.Log) *slog.Logger { return slog.New(slog.NewTextHandler(s.log, nil)) }}
}

func newStation(t *testing.T, more string) *station {
	t.Helper()
	s := newConfig(t, more)
	d := must(daemon.Start(t.Context(), s.options()))(t)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// answers reports whether the station answers a peer's request for a stream, even if by
// a refusal. private is the request's private data.
func (s *station) answers(from netip.Addr, private []byte) bool {
	s.Helper()
	d := net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))}
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", s.port))
	if err != nil {
		s.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		s.Fatal(err)
	}
	request := append([]byte("MPA ID Req Frame\x40\x01"), byte(len(private)>>8), byte(len(private)))
	if _, err := c.Write(append(request, private...)); err != nil {
		return false
	}
	reply := make([]byte, 16)
	_, err = io.ReadFull(c, reply)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		s.Fatal("the daemon neither answers nor ends the connection")
	}
	return err == nil && string(reply) == "MPA ID Rep Frame"
}

// blocked reports whether a peer is blocked.
func (s *station) blocked(peer string) bool {
	s.Helper()
	for _, b := range must(s.api.Blocks(s.Context()))(s.T) {
		if b.Peer == peer {
			return true
		}
	}
	return false
}
