package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// The users of this host who attack each other: alice, bob and bill are ULPs, bob and
// bill the same one, mallory is nobody.
const (
	alice, bob, bill, mallory = 53101, 53102, 53103, 53666
	// carol is a ULP with programs that take connections.
	carol = 53104
	// dave and erin are ULPs with programs over SCTP in UDP, of whom erin's take associations.
	dave, erin = 53105, 53106
	// dora is a ULP with programs in a partition that her label may not use.
	dora = 53107
	// firstPort is the first of alice's for programs, and behind them are carol's, dave's, erin's and dora's.
	firstPort = 9792 // below those of iwarptest.FreePort
)

// machine is a host with a daemon, which alice and bob share.
type machine struct {
	*testing.T
	dir    string
	socket string
	root   *api.Client
	far    string // the directory of the host with the disks
	farAPI *api.Client
}

// localAttack is what a hostile user of the machine tries.
type localAttack struct {
	name  string
	check checks.Check
	try   func(m *machine) (succeeded bool)
}

// runLocal makes attacks, each on a machine of its own.
func runLocal(t *testing.T, attacks ...localAttack) {
	t.Helper()
	otheruser.Need(t)
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			m := newMachine(t)
			switch succeeded := a.try(m); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// newMachine links two daemons over loopback. The far one offers disks a, b and
// secret.
func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{T: t}
	var port, farPort uint16
	rules := filepath.Join(t.TempDir(), "lab.te")
	if err := os.WriteFile(rules, []byte("module lab 1.0;\nrequire { class rdma_partition { modify }; }\ntype hpc_t;\ntype viewer_t;\ntype lab_part_t;\nallow hpc_t lab_part_t : rdma_partition { modify };\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	m.far, m.farAPI, farPort = m.start("far", "block: {per_second: 4, burst: 64, for: 1h}\n")
	m.dir, m.root, port = m.start("near", fmt.Sprintf(`
ulps:
  - {name: alice, users: [%d], exports: [far/a], peers: [silent], ports: [%d/16]}
  - {name: bob, users: [%d, %d], exports: [far/b, far/c], limits: {attachments: 1, streams: 2}}
  - {name: carol, users: [%d], peers: [far, silent], ports: [%d/16], listen: true, limits: {streams: 2}}
  - {name: dave, users: [%d], peers: [silent], ports: [%d/16], transport: sctp-udp, limits: {streams: 2}}
  - {name: erin, users: [%d], peers: [silent], ports: [%d/16], transport: sctp-udp, listen: true}
  - {name: dora, users: [%d], peers: [silent], ports: [%d/16], listen: true, partition: lab, label: %q}
labels: {policy: %q, engine: policy}
partitions: [{name: lab, pkey: 1, label: %q, port: %d, membership: full, members: {127.0.0.9: full}}]
peers:
  - {name: far, address: 127.0.0.1, port: %d, protection: loopback}
  - {name: silent, address: 127.0.0.9, port: %d, protection: loopback}
`, alice, firstPort, bob, bill, carol, firstPort+16, dave, firstPort+32, erin, firstPort+48, dora, firstPort+64, viewerLabel, rules, labLabel, iwarptest.FreePort(t), farPort, m.silence()))
	m.socket = filepath.Join(m.dir, "run", "ironwarp.sock")
	if _, err := m.farAPI.AddPeer(t.Context(), api.PeerSpec{Name: "near", Address: "127.0.0.1", Port: port, Protection: "loopback"}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b", "c", "secret"} {
		path := filepath.Join(m.far, name+".img")
		if err := os.WriteFile(path, bytes.Repeat([]byte("disk "+name+"!!"), 4096/8*8)[:32<<10], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.farAPI.AddExport(t.Context(), api.ExportSpec{Name: name, Path: path, Allow: []string{"near"}}); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// silence is the port of a host that takes connections and says nothing.
func (m *machine) silence() uint16 {
	m.Helper()
	l, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { l.Close() })
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

func (m *machine) start(name, more string) (dir string, root *api.Client, port uint16) {
	m.Helper()
	dir, err := os.MkdirTemp("", "iw"+name)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { os.RemoveAll(dir) })
	port = iwarptest.FreePort(m)
	conf := filepath.Join(dir, "ironwarp.yaml")
	text := fmt.Sprintf("listen: {port: %d}\nstate_dir: state\nruntime_dir: run\n%s", port, more)
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(conf, []byte(text), 0o600)); err != nil {
		m.Fatal(err)
	}
	d, err := daemon.Start(m.Context(), daemon.Options{Config: conf, Named: true, Version: "test"})
	if err != nil {
		m.Fatal(err)
	}
	root = api.NewClient(filepath.Join(dir, "run", "ironwarp.sock"))
	m.Cleanup(func() {
		root.Close()
		if err := d.Close(); err != nil {
			m.Error(err)
		}
	})
	return dir, root, port
}

// as is the daemon's API for a user.
func (m *machine) as(uid uint32) *api.Client {
	c := api.NewClientOn(m.socket, func(context.Context) (net.Conn, error) { return otheruser.Dial(m.socket, uid) })
	m.Cleanup(c.Close)
	return c
}

// raw makes any request as a user.
func (m *machine) raw(uid uint32, method, path string, body io.Reader) (status int, answer string) {
	m.Helper()
	c := http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return otheruser.Dial(m.socket, uid) }}}
	defer c.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://x"+path, body)
	if err != nil {
		m.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, string(data)
}

func (m *machine) attach(uid uint32, export string) api.Attachment {
	m.Helper()
	at, err := m.as(uid).Attach(m.Context(), api.AttachRequest{Peer: "far", Export: export}, nil)
	if err != nil {
		m.Fatal(err)
	}
	return at
}

// routes are the calls of the control API that a source file of the daemon has.
func (m *machine) routes(file string) (list []string) {
	m.Helper()
	src, err := os.ReadFile(filepath.Join("..", "..", "daemon", file))
	if err != nil {
		m.Fatal(err)
	}
	for _, r := range regexp.MustCompile(`"([A-Z]+ /v1/[^"]*)"`).FindAllStringSubmatch(string(src), -1) {
		list = append(list, r[1])
	}
	if len(list) < 10 {
		m.Fatalf("%s has the calls %q, which can't be all", file, list)
	}
	return list
}

// ask makes a call with names in its path and an empty body.
func (m *machine) ask(uid uint32, route string) (status int, answer string) {
	m.Helper()
	method, path, _ := strings.Cut(route, " ")
	path = strings.NewReplacer("{peer}", "far", "{export}", "a", "{name}", "far", "{id}", "1").Replace(path)
	var body io.Reader
	if method == http.MethodPost || method == http.MethodPatch {
		body = strings.NewReader("{}")
	}
	return m.raw(uid, method, path, body)
}
