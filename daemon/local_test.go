package daemon

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/iwarptest"
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
	for _, name := range []string{"a", "b", "secret"} {
		beta.export(name, beta.image(name+".img", 1<<20), false)
	}
	beta.offer(api.ExportSpec{Name: "shared", Path: beta.image("shared.img", 1<<20), Writers: "shared"})
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
	for _, dir := range []string{"run/ulp", "run/ulp/alice"} { // nobody puts anything else there, or looks
		var st syscall.Stat_t
		if err := syscall.Stat(filepath.Join(alpha.dir, dir), &st); err != nil || st.Uid != 0 || st.Mode&0o777 != 0o711 {
			t.Errorf("%s: user %d, mode %o, %v", dir, st.Uid, st.Mode&0o777, err)
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

func TestULPsAreToldByTheirGroups(t *testing.T) {
	alpha, _ := twoUsers(t)
	alpha.ulps(fmt.Sprintf("\n  - {name: staff, groups: [%d], exports: [beta/a]}\n", staff))
	var many []uint32 // more than are asked for at first
	for g := range uint32(300) {
		many = append(many, 54000+g)
	}
	says(t, ulpsError(t, alpha.as(carol, many...)), api.CodeForbidden, "user id 53103 may not use")
	at := attachAs(t, alpha.as(carol, append(many, staff)...), "a")
	if at.ULP != "staff" {
		t.Errorf("attached as %q", at.ULP)
	}
	// The others of the group may use the disk, too.
	if _, err := alpha.nbdAs(at, bob); err == nil {
		t.Error("somebody else may")
	}
	c, err := otheruser.Dial(at.Socket, bob, staff)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := nbdtest.Connect(c, "a", false); err != nil {
		t.Error(err)
	}
	// The group of the process counts as well as its supplementary ones.
	if err := ulpsError(t, alpha.as(staff)); err != nil {
		t.Error(err)
	}
}

func ulpsError(t *testing.T, c *api.Client) error {
	t.Helper()
	_, err := c.ULPs(t.Context())
	return err
}

func TestReloadTakesAwayWhatAULPMayNotAnyMore(t *testing.T) {
	alpha, _ := twoUsers(t)
	const list = "\n  - {name: alice, users: [%s], exports: [%s]%s}\n  - {name: bob, users: [53102], exports: [beta/b]}\n"
	alpha.ulps(fmt.Sprintf(list, "53101, 53103", "beta/a, beta/shared", ""))
	a, b := alpha.as(alice), alpha.as(bob)
	at, shared, other := attachAs(t, a, "a"), attachAs(t, a, "shared"), attachAs(t, b, "b")
	open := func(at api.Attachment, uid uint32) *nbdtest.Client {
		c, err := alpha.nbdAs(at, uid)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ca, cc, cs := open(at, alice), open(at, carol), open(shared, alice)
	cut := func(c *nbdtest.Client) bool {
		_, err := c.Do(0, cmdRead, 0, 512, nil)
		return err != nil
	}
	// A user less: his NBD clients are cut off, the others' go on.
	alpha.ulps(fmt.Sprintf(list, "53101", "beta/a, beta/shared", ""))
	if !cut(cc) {
		t.Error("a user who is not of the ULP any more goes on with its disk")
	}
	says(t, ulpsError(t, alpha.as(carol)), api.CodeForbidden)
	ok(t, ca, cmdRead, 0, 512, nil)
	// A disk less.
	alpha.ulps(fmt.Sprintf(list, "53101", "beta/a", ", limits: {streams: 2}"))
	if !cut(cs) {
		t.Error("a disk that the ULP may not attach any more is still there")
	}
	ok(t, ca, cmdRead, 0, 512, nil)
	_, err := a.Ping(t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil)
	says(t, err, api.CodeUnavailable, "ULP alice has 2 of the 2 streams that it may have, and would need 1 more")
	// Another trust model: its streams end, and its disks connect anew.
	alpha.ulps(fmt.Sprintf(list, "53101", "beta/a", ", trust: S-LT"))
	eventually(t, "the disk is back, in streams of that trust", func() bool {
		list, err := a.Attachments(t.Context())
		if err != nil || len(list) != 1 || list[0].State != api.AttachReady {
			return false
		}
		streams, err := a.Streams(t.Context())
		return err == nil && len(streams) == 2 && streams[0].Trust == "S-LT"
	})
	for range 2 { // what a start forgets, the next one does not find
		alpha.stop()
		alpha.start()
	}
	eventually(t, "the disk is back after a restart", func() bool {
		list, err := alpha.as(alice).Attachments(t.Context())
		return err == nil && len(list) == 1 && list[0].State == api.AttachReady
	})
	eventually(t, "bob has his", func() bool {
		return len(alpha.status().Attachments) == 2 && alpha.status().Attachments[1].State == api.AttachReady
	})
	a = alpha.as(alice)
	cb := open(other, bob)
	// No ULP: the socket is root's again, and nothing is left.
	alpha.ulps("")
	if _, err := a.Info(t.Context()); err == nil {
		t.Error("still answered")
	}
	if !cut(cb) {
		t.Error("the disk of a ULP that has gone is still there")
	}
	eventually(t, "the RNIC has no such consumers", func() bool { return len(alpha.d.dev.Resources().ULPs) == len(config.ServiceNames()) })
	st, err := os.Stat(filepath.Join(alpha.dir, "run", "ironwarp.sock"))
	if err != nil || st.Mode().Perm()&0o006 != 0 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if left := alpha.status().Attachments; len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}

// silentPeer is a host where alice may use a peer that takes connections and says
// nothing.
func silentPeer(t *testing.T) *host {
	t.Helper()
	otheruser.Need(t)
	silent, err := net.Listen("tcp", "127.0.0.9:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { silent.Close() })
	h := newHost(t, "")
	if _, err := h.api.AddPeer(t.Context(), api.PeerSpec{Name: "silent", Address: "127.0.0.9", Port: uint16(silent.Addr().(*net.TCPAddr).Port), Protection: "loopback"}); err != nil {
		t.Fatal(err)
	}
	h.ulps(fmt.Sprintf("\n  - {name: alice, users: [%d], peers: [silent]}\n", alice))
	return h
}

func TestRequestsUnderWayEndWhenTheirULPChanges(t *testing.T) {
	h := silentPeer(t)
	c := h.as(alice)
	begun, over := make(chan struct{}), make(chan error)
	begin := sync.OnceFunc(func() { close(begun) })
	go func() {
		_, err := c.Attach(t.Context(), api.AttachRequest{Peer: "silent", Export: "x", TimeoutSeconds: 600}, func(api.Event) { begin() })
		over <- err
	}()
	<-begun
	h.ulps("")
	says(t, <-over, api.CodeUnavailable, "the configuration of ULP alice has changed meanwhile")
	eventually(t, "the RNIC has lost the consumer", func() bool { return len(h.d.dev.Resources().ULPs) == len(config.ServiceNames()) })
}

func TestPrivilegedULPMayEverythingOnItsOwnAccount(t *testing.T) {
	alpha, beta := twoUsers(t)
	alpha.ulps(fmt.Sprintf("\n  - {name: ops, users: [%d], privileged: true}\n  - {name: bob, users: [%d], exports: [beta/b]}\n", alice, bob))
	ops := alpha.as(alice)
	attachAs(t, alpha.as(bob), "b")
	at := attachAs(t, ops, "secret")
	if at.ULP != "ops" {
		t.Errorf("attached for %q", at.ULP)
	}
	st, err := ops.Status(t.Context())
	if err != nil || len(st.Attachments) != 2 || len(st.Listeners) == 0 {
		t.Errorf("%+v, %v", st, err)
	}
	services := map[string]bool{}
	for _, s := range st.Streams {
		services[s.Service] = true
	}
	if !services["ops"] || !services["bob"] || services["attachments"] {
		t.Errorf("streams of %v", services)
	}
	if err := ops.DetachOf(t.Context(), "bob", "beta", "b", true); err != nil {
		t.Error(err)
	}
	_, err = alpha.api.RemovePeer(t.Context(), "beta", false)
	says(t, err, api.CodeInUse, "beta/secret is attached by ULP ops", "ironwarp detach --ulp ops beta/secret")
	if _, err := ops.AddExport(t.Context(), api.ExportSpec{Name: "x", Path: beta.image("x.img", 4096)}); err != nil {
		t.Error(err)
	}
	if _, err := ops.Reload(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestDisksOfAULPThatHasGoneAreForgotten(t *testing.T) {
	alpha, beta := twoUsers(t)
	attachAs(t, alpha.as(alice), "a")
	attachAs(t, alpha.as(bob), "b")
	alpha.stop()
	alpha.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\nulps:\n  - {name: bob, users: [%d], exports: [beta/b]}\n", alpha.port, alpha.udp, bob))
	alpha.start()
	eventually(t, "bob has his disk again, and alice has none", func() bool {
		list := alpha.status().Attachments
		return len(list) == 1 && list[0].ULP == "bob" && list[0].State == api.AttachReady
	})
	if !strings.Contains(alpha.log.String(), "a remembered disk is forgotten: its ULP is not configured any more") {
		t.Error("nothing is said of it")
	}
	beta.stop()
}

func TestULPsAreToldNothingOfTheHost(t *testing.T) {
	otheruser.Need(t)
	h := newHost(t, "")
	h.ulps(fmt.Sprintf("\n  - {name: alice, users: [%d], peers: [p]}\npeers:\n  - {name: p, address: 127.0.0.8, port: %d, protection: loopback}\n  - {name: q, address: 127.0.0.9, protection: loopback}\n", alice, iwarptest.FreePort(t)))
	c := h.as(alice)
	var texts []string
	_, err := c.Attach(t.Context(), api.AttachRequest{Peer: "p", Export: "x", TimeoutSeconds: 60}, func(ev api.Event) { texts = append(texts, ev.Progress) })
	says(t, err, api.CodeUnavailable, "cannot attach p/x: peer p is not reached now", "root of this host sees why")
	texts = append(texts, err.Error())
	_, err = c.Ping(t.Context(), api.PingRequest{Peer: "p", TimeoutSeconds: 60}, nil)
	says(t, err, api.CodeUnavailable, "peer p is not reached now")
	texts = append(texts, err.Error())
	for _, err := range []error{errOf(c.Offers(t.Context(), "q")), errOf(c.Peer(t.Context(), "q")), errOf(c.Peer(t.Context(), "nobody"))} {
		says(t, err, api.CodeForbidden, "ULP alice may not use peer")
	}
	st, err := c.Status(t.Context())
	if err != nil || len(st.Peers) != 1 || st.Info.Config != "" {
		t.Fatalf("%+v, %v", st, err)
	}
	_, err = h.api.Ping(t.Context(), api.PingRequest{Peer: "p", TimeoutSeconds: 60}, nil)
	says(t, err, api.CodeUnavailable, "connection refused") // to root
	for _, text := range texts {
		for _, hint := range []string{"refused", h.conf} {
			if strings.Contains(text, hint) {
				t.Errorf("%q in %s", hint, text)
			}
		}
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestULPThatIsRemovedWhileItsDisksComeBackLeavesNothing(t *testing.T) {
	alpha, beta := twoUsers(t)
	attachAs(t, alpha.as(alice), "a")
	attachAs(t, alpha.as(alice), "shared")
	alpha.stop()
	beta.stop()
	alpha.start()
	if n := len(alpha.status().Attachments); n != 2 {
		t.Fatalf("%d disks wait", n)
	}
	beta.start()
	alpha.ulps("")
	eventually(t, "the RNIC has no such consumer", func() bool { return len(alpha.d.dev.Resources().ULPs) == len(config.ServiceNames()) })
	if strings.Contains(alpha.log.String(), "leaves something behind") {
		t.Error("it left something behind")
	}
}

// Root lowers how many disks a ULP may have while it has more: those that do not come back
// are there to see, until there is room for them.
func TestRememberedDisksOverTheLimitOfTheirULPAreSaid(t *testing.T) {
	alpha, _ := twoUsers(t)
	a := alpha.as(alice)
	attachAs(t, a, "a")
	attachAs(t, a, "shared")
	// limit lets alice have n disks.
	limit := func(n int) {
		alpha.ulps(fmt.Sprintf("\n  - {name: alice, users: [%d], exports: [beta/a, beta/shared], limits: {attachments: %d}}\n", alice, n))
	}
	// disks waits until the states of alice's disks are these, by name.
	disks := func(want ...string) []api.Attachment {
		t.Helper()
		var list []api.Attachment
		eventually(t, fmt.Sprintf("the disks are %v", want), func() bool {
			var err error
			list, err = a.Attachments(t.Context())
			states := []string{}
			for _, at := range list {
				states = append(states, at.Name()+" "+at.State)
			}
			slices.Sort(states)
			return err == nil && slices.Equal(states, want)
		})
		return list
	}
	limit(1)
	for range 2 {
		alpha.stop()
		alpha.start()
		list := disks("beta/a ready", "beta/shared orphaned")
		says(t, list[1].Problem, api.CodeUnavailable, "ULP alice has 1 disks attached, and may have no more", "ironwarp attach beta/shared")
		if list := alpha.status().Attachments; len(list) != 2 || list[1].Problem == nil {
			t.Errorf("root sees %+v", list) // as ironwarp doctor does
		}
	}
	limit(2)
	disks("beta/a ready", "beta/shared ready")
	limit(1)
	alpha.stop()
	alpha.start()
	disks("beta/a ready", "beta/shared orphaned")
	_, err := a.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "shared"}, nil)
	says(t, err, api.CodeUnavailable, "may have no more")
	if err := a.Detach(t.Context(), "beta", "a", true); err != nil {
		t.Fatal(err)
	}
	attachAs(t, a, "shared")
	disks("beta/shared ready")
}
