package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// Users of this host in tests; nobody else has such numbers.
const (
	alice, bob, carol = 53101, 53102, 53103
	staff             = 53200 // a group
)

// as is the daemon's API for another user.
func (h *host) as(uid uint32, groups ...uint32) *api.Client {
	h.t.Helper()
	path := filepath.Join(h.dir, "run", "ironwarp.sock")
	c := api.NewClientOn(path, func(context.Context) (net.Conn, error) { return otheruser.Dial(path, uid, groups...) })
	h.t.Cleanup(c.Close)
	return c
}

// nbdAs opens an NBD socket as another user.
func (h *host) nbdAs(at api.Attachment, uid uint32) (*nbdtest.Client, error) {
	c, err := otheruser.Dial(at.Socket, uid)
	if err != nil {
		return nil, err
	}
	h.t.Cleanup(func() { c.Close() })
	// Who is refused is cut off without a word.
	if err := c.SetDeadline(time.Now().Add(waitTime)); err != nil {
		return nil, err
	}
	return nbdtest.Connect(c, at.Export, false)
}

// twoUsers is a host where alice may attach beta's exports a and shared, bob b and
// shared, and beta, which offers them and another one.
func twoUsers(t *testing.T) (alpha, beta *host) {
	t.Helper()
	otheruser.Need(t)
	alpha, beta = newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	for _, name := range []string{"a", "b", "shared", "secret"} {
		beta.export(name, beta.image(name+".img", 1<<20), false)
	}
	alpha.ulps(fmt.Sprintf(`
  - {name: alice, users: [%d], exports: [beta/a, beta/shared]}
  - {name: bob, users: [%d], exports: [beta/b, beta/shared]}
`, alice, bob))
	return alpha, beta
}

// ulps writes the main file anew, with ULPs, and reloads it.
func (h *host) ulps(list string) {
	h.t.Helper()
	if list != "" {
		list = "ulps:" + list
	}
	h.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n%s", h.port, h.udp, list))
	if err := os.Chmod(h.dir, 0o755); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.api.Reload(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

func attachAs(t *testing.T, c *api.Client, export string) api.Attachment {
	t.Helper()
	at, err := c.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: export}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func TestTwoUsersShareADaemonWithoutSeeingEachOther(t *testing.T) {
	alpha, _ := twoUsers(t)
	a, b := alpha.as(alice), alpha.as(bob)
	ata, atb := attachAs(t, a, "a"), attachAs(t, b, "b")
	sharedA, sharedB := attachAs(t, a, "shared"), attachAs(t, b, "shared")
	if sharedA.Socket == sharedB.Socket {
		t.Errorf("both have %s", sharedA.Socket)
	}
	for _, at := range []struct {
		api.Attachment
		uid uint32
	}{{ata, alice}, {atb, bob}, {sharedA, alice}, {sharedB, bob}} {
		var st syscall.Stat_t
		if err := syscall.Stat(at.Socket, &st); err != nil || st.Uid != at.uid || st.Mode&0o777 != 0o600 {
			t.Errorf("%s: user %d, mode %o, %v", at.Socket, st.Uid, st.Mode&0o777, err)
		}
	}
	c, err := alpha.nbdAs(ata, alice)
	if err != nil {
		t.Fatal(err)
	}
	ok(t, c, cmdWrite, 0, 512, make([]byte, 512))
	for _, who := range []struct {
		name string
		c    *api.Client
		sees []string
	}{{"alice", a, []string{"beta/a", "beta/shared"}}, {"bob", b, []string{"beta/b", "beta/shared"}}} {
		list, err := who.c.Attachments(t.Context())
		if err != nil || len(list) != 2 || list[0].Name() != who.sees[0] || list[1].Name() != who.sees[1] || list[0].ULP != who.name {
			t.Errorf("%s sees %+v, %v", who.name, list, err)
		}
		st, err := who.c.Status(t.Context())
		if err != nil || len(st.Attachments) != 2 || len(st.Sessions) != 1 || len(st.Streams) == 0 || len(st.Peers) != 1 || len(st.Exports)+len(st.Listeners) != 0 {
			t.Errorf("%s has the status %+v, %v", who.name, st, err)
		}
		for _, s := range st.Streams {
			if s.Service != who.name {
				t.Errorf("%s sees a stream of %s", who.name, s.Service)
			}
		}
		offers, err := who.c.Offers(t.Context(), "beta")
		if err != nil || len(offers) != 2 || !offers[0].Attached {
			t.Errorf("%s is offered %+v, %v", who.name, offers, err)
		}
		if _, err := who.c.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 2}, nil); err != nil {
			t.Errorf("%s can't ping: %v", who.name, err)
		}
		ulps, err := who.c.ULPs(t.Context())
		if err != nil || len(ulps) != 1 || ulps[0].Name != who.name || ulps[0].Attachments != 2 {
			t.Errorf("%s is %+v, %v", who.name, ulps, err)
		}
	}
	// Root sees them all, and whose they are.
	if list := alpha.status().Attachments; len(list) != 4 || list[2].ULP != "alice" || list[3].ULP != "bob" {
		t.Errorf("root sees %+v", list)
	}
	if err := a.Detach(t.Context(), "beta", "shared", false); err != nil {
		t.Error(err)
	}
	says(t, a.Detach(t.Context(), "beta", "b", true), api.CodeNotFound, "not attached")
	if err := alpha.api.DetachOf(t.Context(), "bob", "beta", "shared", false); err != nil {
		t.Error(err)
	}
	if list := alpha.status().Attachments; len(list) != 2 {
		t.Errorf("root sees %+v", list)
	}
}
