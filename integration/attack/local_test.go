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
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// The users of this host who attack each other: alice, bob and bill are ULPs, bob and
// bill the same one, mallory is nobody.
const (
	alice, bob, bill, mallory = 53101, 53102, 53103, 53666
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
	m.far, m.farAPI, farPort = m.start("far", "block: {per_second: 4, burst: 64, for: 1h}\n")
	m.dir, m.root, port = m.start("near", fmt.Sprintf(`
ulps:
  - {name: alice, users: [%d], exports: [far/a], peers: [silent]}
  - {name: bob, users: [%d, %d], exports: [far/b, far/c], limits: {attachments: 1, streams: 2}}
peers:
  - {name: far, address: 127.0.0.1, port: %d, protection: loopback}
  - {name: silent, address: 127.0.0.9, port: %d, protection: loopback}
`, alice, bob, bill, farPort, m.silence()))
	m.socket = m.root.Socket()
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.Fatal(err)
	}
	port = uint16(l.Addr().(*net.TCPAddr).Port)
	conf := filepath.Join(dir, "ironwarp.yaml")
	text := fmt.Sprintf("listen: {port: %d}\nstate_dir: state\nruntime_dir: run\n%s", port, more)
	if err := errors.Join(l.Close(), os.Chmod(dir, 0o755), os.WriteFile(conf, []byte(text), 0o600)); err != nil {
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
	for _, r := range regexp.MustCompile(`"((?:GET|POST|DELETE) /v1/[^"]*)"`).FindAllStringSubmatch(string(src), -1) {
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
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	return m.raw(uid, method, path, body)
}

// A user who is no ULP asks for everything (R1).
func TestStrangerAtTheControlSocket(t *testing.T) {
	runLocal(t,
		localAttack{"every call", checks.LocalUser, func(m *machine) (answered bool) {
			for _, r := range append(m.routes("control.go"), m.routes("localroutes.go")...) {
				if strings.HasSuffix(r, "/watch") {
					continue // without an end
				}
				status, text := m.ask(mallory, r)
				if status == 0 {
					m.Fatalf("%s: %s", r, text)
				}
				if status != http.StatusForbidden {
					answered = true
				}
			}
			return answered
		}},
		localAttack{"add a disk", checks.LocalUser, func(m *machine) bool {
			_, err := m.as(mallory).AddExport(m.Context(), api.ExportSpec{Name: "shadow", Path: m.secretFile(), Allow: []string{"far"}})
			return err == nil
		}},
		localAttack{"attach a disk", checks.LocalUser, func(m *machine) bool {
			_, err := m.as(mallory).Attach(m.Context(), api.AttachRequest{Peer: "far", Export: "a"}, nil)
			return err == nil
		}},
	)
}

// secretFile is one that only root may read.
func (m *machine) secretFile() string {
	m.Helper()
	path := filepath.Join(m.dir, "shadow")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		m.Fatal(err)
	}
	return path
}

// A ULP that is not privileged asks for what is root's (R1).
func TestULPWithoutPrivilege(t *testing.T) {
	runLocal(t,
		localAttack{"every call", checks.LocalPrivilege, func(m *machine) (answered bool) {
			mine := map[string]bool{}
			for _, r := range m.routes("localroutes.go") {
				mine[r] = true
			}
			for _, r := range m.routes("control.go") {
				if mine[r] || strings.HasSuffix(r, "/watch") {
					continue
				}
				status, text := m.ask(alice, r)
				if status == 0 {
					m.Fatalf("%s: %s", r, text)
				}
				if status != http.StatusForbidden {
					answered = true
				}
			}
			return answered
		}},
		localAttack{"export a file of root's", checks.LocalPrivilege, func(m *machine) bool {
			_, err := m.as(alice).AddExport(m.Context(), api.ExportSpec{Name: "shadow", Path: m.secretFile(), Allow: []string{"far"}})
			return err == nil
		}},
		localAttack{"make itself another peer", checks.LocalPrivilege, func(m *machine) bool {
			_, err := m.as(alice).AddPeer(m.Context(), api.PeerSpec{Name: "elsewhere", Address: "127.0.0.2", Protection: "loopback"})
			return err == nil
		}},
		localAttack{"kill everybody's streams", checks.LocalPrivilege, func(m *machine) bool {
			m.attach(bob, "b")
			streams, err := m.root.Streams(m.Context())
			if err != nil || len(streams) == 0 {
				m.Fatalf("%+v, %v", streams, err)
			}
			_, err = m.as(alice).KillStream(m.Context(), streams[0].ID)
			return err == nil
		}},
	)
}

// A ULP looks for what others have, and touches it (R1).
func TestULPReachesForWhatOthersHave(t *testing.T) {
	runLocal(t,
		localAttack{"see their disks", checks.LocalOwner, func(m *machine) bool {
			m.attach(bob, "b")
			list, err := m.as(alice).Attachments(m.Context())
			if err != nil {
				m.Fatal(err)
			}
			return len(list) > 0
		}},
		localAttack{"see their streams", checks.LocalOwner, func(m *machine) bool {
			m.attach(bob, "b")
			st, err := m.as(alice).Status(m.Context())
			if err != nil {
				m.Fatal(err)
			}
			return len(st.Streams) > 0
		}},
		localAttack{"detach their disk", checks.LocalOwner, func(m *machine) bool {
			m.attach(bob, "b")
			c := m.as(alice)
			first := c.Detach(m.Context(), "far", "b", true)
			second := c.DetachOf(m.Context(), "bob", "far", "b", true)
			return first == nil || second == nil
		}},
		localAttack{"detach root's disk", checks.LocalOwner, func(m *machine) bool {
			if _, err := m.root.Attach(m.Context(), api.AttachRequest{Peer: "far", Export: "a"}, nil); err != nil {
				m.Fatal(err)
			}
			return m.as(alice).DetachOf(m.Context(), "", "far", "a", true) == nil
		}},
		localAttack{"open their disk", checks.LocalSocket, func(m *machine) bool {
			at := m.attach(bob, "b")
			if _, err := m.read(at, bill); err != nil {
				m.Fatalf("bill is of the same ULP: %v", err)
			}
			for _, uid := range []uint32{alice, mallory} {
				if got, err := m.read(at, uid); err == nil && bytes.HasPrefix(got, []byte("disk b")) {
					return true
				}
			}
			return false
		}},
		localAttack{"attach what it may not", checks.LocalPeer, func(m *machine) bool {
			_, err := m.as(alice).Attach(m.Context(), api.AttachRequest{Peer: "far", Export: "secret"}, nil)
			return err == nil
		}},
		localAttack{"see what there is", checks.LocalPeer, func(m *machine) bool {
			offers, err := m.as(alice).Offers(m.Context(), "far")
			if err != nil {
				m.Fatal(err)
			}
			return len(offers) > 1
		}},
	)
}

// read reads the beginning of a disk as a user.
func (m *machine) read(at api.Attachment, uid uint32) ([]byte, error) {
	c, err := otheruser.Dial(at.Socket, uid)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	n, err := nbdtest.Connect(c, at.Export, false)
	if err != nil {
		return nil, err
	}
	const cmdRead = 0
	r, err := n.Do(0, cmdRead, 0, 512, nil)
	if err == nil && r.Error != 0 {
		err = fmt.Errorf("NBD error %d", r.Error)
	}
	return r.Data, err
}

// served tells whether a user is answered, within a time that is no hardship.
func (m *machine) served(uid uint32) bool {
	limit := patience
	if checks.Weakened {
		limit = time.Second // he is not, and need not wait long for that
	}
	ctx, cancel := context.WithTimeout(m.Context(), limit)
	defer cancel()
	_, err := m.as(uid).Info(ctx)
	return err == nil
}

// A ULP takes more than its share of what all need (R2).
func TestULPTakesAllOfTheDaemon(t *testing.T) {
	runLocal(t,
		localAttack{"all connections", checks.LocalShare, func(m *machine) bool {
			for range 300 {
				c, err := otheruser.Dial(m.socket, alice)
				if err != nil {
					m.Fatal(err)
				}
				defer c.Close()
			}
			return !m.served(bob) || !m.served(0)
		}},
		localAttack{"all requests", checks.LocalShare, func(m *machine) bool {
			slots := 8
			if checks.Weakened {
				slots = 64 // there are no others
			}
			ctx, cancel := context.WithCancel(m.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			begun := make(chan struct{}, 100)
			for i := range 100 {
				wg.Go(func() {
					// It waits for a peer that does not answer, or for its turn.
					_, _ = m.as(alice).Attach(ctx, api.AttachRequest{Peer: "silent", Export: fmt.Sprint("x", i)}, func(ev api.Event) {
						if strings.HasPrefix(ev.Progress, "connecting") {
							begun <- struct{}{}
						}
					})
				})
			}
			for range slots {
				select {
				case <-begun:
				case <-time.After(patience):
					m.Fatal("the requests do not begin")
				}
			}
			return !m.served(bob) || !m.served(0)
		}},
		localAttack{"the peer's ping service", checks.LocalShare, func(m *machine) bool {
			ctx, cancel := context.WithCancel(m.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for range 4 {
				came := make(chan struct{})
				once := sync.OnceFunc(func() { close(came) })
				wg.Go(func() {
					defer once()
					_, _ = m.as(alice).Ping(ctx, api.PingRequest{Peer: "far", Count: 2, IntervalSeconds: 3600}, func(ev api.Event) {
						if ev.Reply != nil {
							once()
						}
					})
				})
				<-came
			}
			_, err := m.as(bob).Ping(m.Context(), api.PingRequest{Peer: "far", Count: 1}, nil)
			return err != nil
		}},
		localAttack{"have the host blocked by its peer", checks.LocalShare, func(m *machine) bool {
			limit := 2 * time.Second
			if checks.Weakened {
				limit = patience
			}
			ctx, cancel := context.WithTimeout(m.Context(), limit)
			defer cancel()
			c := m.as(alice)
			for range 100 { // of two streams each
				if _, err := c.Attach(ctx, api.AttachRequest{Peer: "far", Export: "a"}, nil); err != nil {
					break
				}
				if err := c.Detach(ctx, "far", "a", true); err != nil {
					break
				}
			}
			_, err := m.as(bob).Attach(m.Context(), api.AttachRequest{Peer: "far", Export: "b", TimeoutSeconds: 10}, nil)
			return err != nil
		}},
		localAttack{"more disks than it may", checks.LocalShare, func(m *machine) bool {
			m.attach(bob, "b")
			_, err := m.as(bill).Attach(m.Context(), api.AttachRequest{Peer: "far", Export: "c"}, nil)
			return err == nil
		}},
		localAttack{"more streams than it may", checks.PeerQuota, func(m *machine) bool {
			m.attach(bob, "b") // with two
			_, err := m.as(bob).Ping(m.Context(), api.PingRequest{Peer: "far", Count: 1}, nil)
			if err != nil && !strings.Contains(err.Error(), "ULP bob has 2 of the 2 streams that it may have") {
				m.Errorf("refused with: %v", err)
			}
			return err == nil
		}},
		localAttack{"a giant request", checks.LocalBody, func(m *machine) bool {
			const size = 256 << 10
			body := io.MultiReader(strings.NewReader(`{"peer": "far",`), io.LimitReader(spaces{}, size), strings.NewReader(`"export": "none"}`))
			status, text := m.raw(alice, http.MethodPost, "/v1/attachments", body)
			if status != http.StatusOK && status != 0 && !strings.Contains(text, "too large") {
				m.Errorf("%d %s", status, text)
			}
			return status == http.StatusOK
		}},
	)
}

// spaces is a blank without end.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}
