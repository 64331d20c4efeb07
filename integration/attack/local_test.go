package attack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// A user who is no ULP makes every call (R1).
func TestStrangerAtTheControlSocket(t *testing.T) {
	runLocal(t,
		localAttack{"every call", checks.LocalUser, func(m *machine) (answered bool) {
			for _, r := range append(m.routes("control.go"), m.routes("ulproutes.go")...) {
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

// ulpCalls are those that a ULP without privilege has. Whoever adds one adds an attack to
// TestULPReachesForWhatOthersHave.
var ulpCalls = []string{
	"GET /v1/info", "GET /v1/status", "GET /v1/ulps", "GET /v1/resources", "GET /v1/streams",
	"GET /v1/peers", "GET /v1/peers/{name}", "GET /v1/peers/{name}/exports",
	"GET /v1/attachments", "POST /v1/attachments", "DELETE /v1/attachments/{peer}/{export}", "POST /v1/ping", "POST /v1/flows",
}

// A ULP that is not privileged asks for what is root's (R1).
func TestULPWithoutPrivilege(t *testing.T) {
	runLocal(t,
		localAttack{"every call", checks.LocalPrivilege, func(m *machine) (answered bool) {
			for _, r := range m.routes("control.go") {
				if slices.Contains(ulpCalls, r) || checks.Weakened && strings.HasSuffix(r, "/watch") { // which has no end
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

// A user who may manage the host, and is not root, looks at what ESP protects (R4).
func TestCaptureByOthersThanRoot(t *testing.T) {
	runLocal(t, localAttack{"capture what others read", checks.CaptureUser, func(m *machine) bool {
		if _, err := m.root.AddULP(m.Context(), api.ULPSpec{Name: "ops", Users: []string{fmt.Sprint(mallory)}, Privileged: true}); err != nil {
			m.Fatal(err)
		}
		_, file, err := m.as(mallory).Capture(m.Context(), api.CaptureRequest{Payload: true})
		if err != nil {
			return false
		}
		return file.Close() == nil
	}})
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
		localAttack{"names that lead elsewhere", checks.LocalOwner, func(m *machine) bool {
			m.attach(bob, "b")
			for _, r := range [][2]string{
				{"DELETE", "/v1/attachments/far/b?force=1&ulp=bob"}, {"DELETE", "/v1/attachments/far/b?force=1&ulp=bob&ulp=alice"},
				{"DELETE", "/v1/attachments/far/b?force=1&ulp=alice&ulp=bob"}, {"DELETE", "/v1/attachments/far/b?force=1&ulp=bob%00"},
				{"DELETE", "/v1/attachments/..%2fbob%2ffar/b?force=1"}, {"DELETE", "//v1/attachments/far/b?force=1"},
				{"DELETE", "/v1/ulps/../attachments/far/b?force=1"}, {"DELETE", "/V1/attachments/far/b?force=1"},
				{"POST", "/v1/attachments|{\"peer\": \"far\", \"export\": \"../bob/far-b\"}"}, {"POST", "/v1/attachments|{\"peer\": \"../bob/far\", \"export\": \"b\"}"},
				{"POST", "/v1/attachments|{\"peer\": \"far\", \"export\": \"a\", \"ulp\": \"bob\"}"}, {"POST", "/v1/attachments|{\"peer\": \"far\", \"export\": \"a\\u0000\"}"},
			} {
				path, body, _ := strings.Cut(r[1], "|")
				if status, text := m.raw(alice, r[0], path, strings.NewReader(body)); status == 0 {
					m.Fatal(text)
				}
			}
			list, err := m.root.Attachments(m.Context())
			if err != nil {
				m.Fatal(err)
			}
			return len(list) != 1 || list[0].ULP != "bob" || list[0].State != api.AttachReady
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

// served reports whether a user is answered within a reasonable time.
func (m *machine) served(uid uint32) bool {
	limit := patience
	if checks.Weakened {
		limit = time.Second // no answer is expected, and no long wait for it
	}
	ctx, cancel := context.WithTimeout(m.Context(), limit)
	defer cancel()
	_, err := m.as(uid).Info(ctx)
	return err == nil
}

// A ULP takes more than its share of the daemon (R2).
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
			within := 60.0
			if checks.Weakened {
				within = 10 // it is not to get it
			}
			_, err := m.as(bob).Attach(m.Context(), api.AttachRequest{Peer: "far", Export: "b", TimeoutSeconds: within}, nil)
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

// spaces is an endless row of blanks.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}
