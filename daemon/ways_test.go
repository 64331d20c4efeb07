package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// byPaths declares alpha and beta to each other at 127.0.1.1 and 127.0.1.2, and with what
// more says, where THEIRS and OURS are the hosts' addresses in 127.0.2.0/24.
func byPaths(t *testing.T, alpha, beta *host, more string) {
	t.Helper()
	alpha.declareBy(beta, "beta", 2, more)
	beta.declareBy(alpha, "alpha", 1, more)
}

func (h *host) declareBy(other *host, name string, n int, more string) {
	h.t.Helper()
	with := strings.NewReplacer("THEIRS", fmt.Sprintf("127.0.2.%d", n), "OURS", fmt.Sprintf("127.0.2.%d", 3-n), "UDP", fmt.Sprint(other.udp))
	h.write("peers.d/"+name+".yaml", fmt.Sprintf("name: %s\naddress: 127.0.1.%d\nlocal_address: 127.0.1.%d\nport: %d\nprotection: loopback\n", name, n, 3-n, other.port)+with.Replace(more))
	if _, err := h.api.Reload(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// Declarations of a further path.
const (
	overUDP = "paths: [{name: lan, address: THEIRS, local_address: OURS, transport: sctp-udp}]\nudp_port: UDP\n"
	overTCP = "paths: [{name: lan, address: THEIRS, local_address: OURS}]\n"
)

// paths are the paths of alpha's session with beta, by name.
func (h *host) paths() map[string]api.SessionPath {
	out := map[string]api.SessionPath{}
	for _, s := range h.status().Sessions {
		if s.Role == "client" {
			for _, p := range s.Paths {
				out[p.Name] = p
			}
		}
	}
	return out
}

func (h *host) allUp(n int) {
	h.t.Helper()
	eventually(h.t, fmt.Sprintf("%d paths are up", n), func() bool {
		up := 0
		for _, p := range h.paths() {
			if p.State == "connected" {
				up++
			}
		}
		return up == n
	})
}

// verified writes and reads a disk until it is stopped, and fails the test where that does.
func verified(t *testing.T, h *host) (stop func() (rounds int)) {
	t.Helper()
	c := h.attach("disk")
	quit, done := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { done <- n }()
		for ; ; n++ {
			select {
			case <-quit:
				return
			default:
			}
			want := bytes.Repeat([]byte{byte(n + 1)}, 4096)
			at := uint64(n%64) * 4096
			if e, _ := do(t, c, cmdWrite, at, 4096, want); e != 0 {
				t.Errorf("write %d: error %d", n, e)
				return
			}
			if e, got := do(t, c, cmdRead, at, 4096, nil); e != 0 || !bytes.Equal(got, want) {
				t.Errorf("read %d: error %d, or other data", n, e)
				return
			}
		}
	}()
	return func() int {
		close(quit)
		return <-done
	}
}

// TestSessionGoesByAllDeclaredPaths: over one transport and over two, a session has the paths
// that both hosts declare, I/O goes by both, and by the other one when one is lost.
func TestSessionGoesByAllDeclaredPaths(t *testing.T) {
	for name, more := range map[string]string{"TCP": overTCP, "TCP and SCTP in UDP": overUDP} {
		t.Run(name, func(t *testing.T) {
			alpha, beta := newHost(t, ""), newHost(t, "")
			byPaths(t, alpha, beta, more)
			beta.export("disk", beta.image("disk.img", 1<<20), false)
			stop := verified(t, alpha)
			alpha.allUp(2)
			for _, path := range []string{"lan", "127.0.1.2"} {
				before := alpha.paths()
				other := map[string]string{"lan": "127.0.1.2", "127.0.1.2": "lan"}[path]
				alpha.d.abortStreamsAt("loopback:127.0.1.2", []netip.Addr{netip.MustParseAddrPort(before[path].Address).Addr()}, errors.New("cut by a test"))
				eventually(t, "the path comes back, and I/O goes on by the other", func() bool {
					now := alpha.paths()
					return now[path].Reconnects > before[path].Reconnects && now[path].State == "connected" && now[other].Writes > before[other].Writes
				})
			}
			p := alpha.paths()
			if p["lan"].Address != fmt.Sprintf("127.0.2.2:%d", beta.port) || p["lan"].LocalAddress != "127.0.2.1" || p["127.0.1.2"].LocalAddress != "127.0.1.1" || p["127.0.1.2"].Transport != "tcp" {
				t.Errorf("%+v", p)
			}
			if want := map[string]string{"TCP": "tcp", "TCP and SCTP in UDP": "sctp-udp"}[name]; p["lan"].Transport != want {
				t.Errorf("the further path is over %s", p["lan"].Transport)
			}
			if got := alpha.metric("ironwarp_session_path_connected"); got != "[127.0.1.2 beta : 1] [lan beta : 1]" {
				t.Errorf("connected: %s", got)
			}
			// A path that was being made when it was cut may have come back more than once.
			if got, want := alpha.metric("ironwarp_session_path_reconnects_total"), fmt.Sprintf("[127.0.1.2 beta : %d] [lan beta : %d]", p["127.0.1.2"].Reconnects, p["lan"].Reconnects); got != want {
				t.Errorf("reconnects: %s, want %s", got, want)
			}
			stop()
		})
	}
}

// TestPathsComeAndGoUnderIO: a reload on either side adds and removes a path, and changes
// what carries it, while a disk is written and read. The first path's streams stay.
func TestPathsComeAndGoUnderIO(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	byPaths(t, alpha, beta, "")
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	stop := verified(t, alpha)
	alpha.allUp(1)
	first := func() (ids []string) {
		for _, s := range alpha.status().Streams {
			if strings.Contains(s.Flow, "127.0.1.2") {
				ids = append(ids, s.ID)
			}
		}
		return ids
	}
	streams := first()
	for range 3 {
		byPaths(t, alpha, beta, overTCP)
		alpha.allUp(2)
		alpha.declareBy(beta, "beta", 2, overUDP) // beta does not await it there yet
		alpha.declareBy(beta, "beta", 2, "")
		if p := alpha.paths(); len(p) != 1 {
			t.Errorf("a path that is removed is there: %+v", p)
		}
		byPaths(t, alpha, beta, overUDP)
		alpha.allUp(2)
		beta.declareBy(alpha, "alpha", 1, "") // the exporting host removes it first
		eventually(t, "the path is lost", func() bool { p := alpha.paths()["lan"]; return p.State != "connected" && p.Problem != nil })
		alpha.declareBy(beta, "beta", 2, "")
	}
	if now := first(); !slices.Equal(now, streams) {
		t.Errorf("the streams of the first path are %v, and were %v", now, streams)
	}
	if n := stop(); n == 0 {
		t.Error("nothing was written")
	}
	for _, s := range append(alpha.status().Streams, beta.status().Streams...) {
		if strings.Contains(s.Flow, "127.0.2.") {
			t.Errorf("a stream of a path that is gone: %+v", s)
		}
	}
	for _, l := range beta.status().Listeners {
		if strings.Contains(l.Address, "127.0.2.") {
			t.Errorf("a listener where nobody is awaited any more: %+v", l)
		}
	}
}

// TestUndeclaredPathIsRefused: a peer that comes from an address of a path that this host does
// not declare, or by another pair than the declared ones, or over another transport, gets
// nothing. The control is TestSessionGoesByAllDeclaredPaths.
func TestUndeclaredPathIsRefused(t *testing.T) {
	for name, theirs := range map[string]string{
		"no such path":      "paths: [{address: 127.0.3.1, local_address: OURS}]\n",
		"another pair":      "paths: [{address: THEIRS, local_address: 127.0.3.2}, {address: 127.0.3.1, local_address: OURS}]\n",
		"another transport": "paths: [{address: THEIRS, local_address: OURS, transport: sctp-udp}, {address: 127.0.3.1, local_address: 127.0.3.2}]\nudp_port: UDP\nlocal_address: 127.0.1.2\n",
	} {
		t.Run(name, func(t *testing.T) {
			alpha, beta := newHost(t, ""), newHost(t, "")
			beta.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d, addresses: [0.0.0.0]}\nstate_dir: state\nruntime_dir: run\n", beta.port, beta.udp))
			alpha.declareBy(beta, "beta", 2, overTCP)
			beta.declareBy(alpha, "alpha", 1, strings.Replace(theirs, "local_address: 127.0.1.2\n", "", 1))
			beta.export("disk", beta.image("disk.img", 1<<20), false)
			alpha.attach("disk")
			eventually(t, "the path is refused", func() bool {
				p := alpha.paths()["lan"]
				return p.Failures > 1 && p.Problem != nil && beta.status().Refused > 0
			})
			if p := alpha.paths()["lan"]; p.State == "connected" || p.Writes+p.Reads > 0 {
				t.Errorf("%+v", p)
			}
		})
	}
}

// TestAttachingDoesNotWaitForAPathThatIsAway: the first path leads nowhere, and the disk is
// attached by the other at once.
func TestAttachingDoesNotWaitForAPathThatIsAway(t *testing.T) {
	alpha, beta := newHost(t, ""), newHost(t, "")
	alpha.declareBy(beta, "beta", 2, strings.Replace(overTCP, "THEIRS", "127.0.1.22", 1))
	beta.declareBy(alpha, "alpha", 1, overTCP)
	// The address that is first for alpha is no place where beta listens.
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.9.9\nlocal_address: 127.0.1.1\nport: %d\nprotection: loopback\npaths: [{address: 127.0.2.2, local_address: 127.0.2.1}]\n", beta.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	began := time.Now()
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{7}, 512))
	if took := time.Since(began); took > waitTime/4 {
		t.Errorf("it took %v", took)
	}
	eventually(t, "what is wrong with the first path is told", func() bool { return alpha.paths()["127.0.9.9"].Problem != nil })
	if p := alpha.paths(); p["127.0.2.2"].State != "connected" || p["127.0.9.9"].State == "connected" {
		t.Errorf("%+v", p)
	}
	if d := alpha.status().Attachments[0]; d.State != api.AttachReady {
		t.Errorf("%+v", d)
	}
}

// A path that says no port or transport of its own has its peer's, also when that changes.
func TestPathFollowsItsPeer(t *testing.T) {
	main := filepath.Join(t.TempDir(), "ironwarp.yaml")
	peer := filepath.Join(filepath.Dir(main), "peers.d", "beta.yaml")
	if err := errors.Join(os.WriteFile(main, nil, 0o600), os.Mkdir(filepath.Dir(peer), 0o700), os.WriteFile(peer, []byte("name: beta\naddress: 127.0.1.2\nlocal_address: 127.0.1.1\nprotection: loopback\n"+
		"paths: [{address: 127.0.2.2, local_address: 127.0.2.1}, {address: 127.0.3.2, local_address: 127.0.3.1, transport: auto, port: 7000}]\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := SetPeer(main, api.PeerChange{PeerSpec: api.PeerSpec{Name: "beta", Transport: "sctp-udp", Port: 7472}, Set: []string{"transport", "port"}}); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(main, false)
	if err != nil {
		t.Fatal(err)
	}
	p, _ := cfg.Peer("beta")
	for i, want := range []string{"127.0.2.2 7472 sctp-udp", "127.0.3.2 7000 auto"} {
		if q := p.Paths[i]; fmt.Sprint(q.Address, " ", q.Port, " ", q.Transport) != want {
			t.Errorf("path %d: %+v, want %s", i, q, want)
		}
	}
}
