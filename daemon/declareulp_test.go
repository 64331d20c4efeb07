package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// code is the code of a refusal.
func code(err error) string {
	var e *api.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

// socketMode is the mode of the control socket.
func (h *host) socketMode() os.FileMode {
	h.t.Helper()
	st, err := os.Stat(filepath.Join(h.dir, "run", "ironwarp.sock"))
	if err != nil {
		h.t.Fatal(err)
	}
	return st.Mode().Perm()
}

// TestULPsAreAddedChangedAndRemovedAtRunTime: their users can connect after that and not any more, and nobody can
// for a ULP without users.
func TestULPsAreAddedChangedAndRemovedAtRunTime(t *testing.T) {
	otheruser.Need(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	beta.export("a", beta.image("a.img", 1<<20), false)
	if err := os.Chmod(alpha.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	mayConnect := func(uid uint32) bool {
		t.Helper()
		_, err := alpha.as(uid).Info(ctx)
		if err != nil && code(err) != api.CodeForbidden && !errors.Is(err, os.ErrPermission) {
			t.Errorf("user %d: %v", uid, err)
		}
		return err == nil
	}
	add := func(s api.ULPSpec) api.ULP {
		t.Helper()
		u, err := alpha.api.AddULP(ctx, s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	add(api.ULPSpec{Name: "rdma", Peers: []string{"beta"}, Ports: []string{fmt.Sprintf("%d/16", firstPort)}, Listen: true})
	if mode := alpha.socketMode(); mode&0o006 != 0 || mayConnect(alice) {
		t.Errorf("a ULP of root's programs opens the control socket: %v", mode)
	}
	u := add(api.ULPSpec{Name: "alice", Users: []string{fmt.Sprint(alice)}, Exports: []string{"beta/a"}, MaxMemory: 64 << 20})
	if u.Trust != "NS-NT" || u.MaxAttachments != config.DefaultAttachments || !strings.Contains(u.Source, "/ulps.d/alice.yaml:1:1") || alpha.socketMode()&0o006 != 0o006 || !mayConnect(alice) || mayConnect(bob) {
		t.Errorf("%+v, socket %v", u, alpha.socketMode())
	}
	if r := alpha.uses(t, "alice", "memory"); r != 0 {
		t.Errorf("alice uses %d", r)
	}
	// Without privilege there is nothing of it but to look.
	a := alpha.as(alice)
	if list, err := a.ULPs(ctx); err != nil || len(list) != 1 || list[0].Name != "alice" || list[0].Source != "" {
		t.Errorf("%+v, %v", list, err)
	}
	_, err := a.AddULP(ctx, api.ULPSpec{Name: "bob", Users: []string{fmt.Sprint(bob)}, Privileged: true})
	_, err2 := a.SetULP(ctx, "alice", api.ULPChange{ULPSpec: api.ULPSpec{Privileged: true}, Set: []string{"privileged"}})
	if err3 := a.RemoveULP(ctx, "rdma", true); code(err) != api.CodeForbidden || code(err2) != api.CodeForbidden || code(err3) != api.CodeForbidden {
		t.Errorf("%v, %v, %v", err, err2, err3)
	}
	// What she has keeps it; root may insist.
	attachAs(t, a, "a")
	if err := alpha.api.RemoveULP(ctx, "alice", false); code(err) != api.CodeInUse || !strings.Contains(err.Error(), "ULP alice is in use: beta/a is attached") ||
		!strings.Contains(err.Error(), "`ironwarp detach --ulp alice beta/a`") || !strings.Contains(err.Error(), "`ironwarp ulp rm --force alice`") {
		t.Errorf("%v", err)
	}
	if u, err = alpha.api.SetULP(ctx, "alice", api.ULPChange{ULPSpec: api.ULPSpec{Users: []string{fmt.Sprint(bob)}, MaxAttachments: 3}, Set: []string{"users", "max_attachments"}}); err != nil ||
		!slices.Equal(u.Users, []string{fmt.Sprint(bob)}) || !slices.Equal(u.Exports, []string{"beta/a"}) || u.MaxMemory != 64<<20 || u.MaxAttachments != 3 || mayConnect(alice) || !mayConnect(bob) {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := alpha.api.SetULP(ctx, "alice", api.ULPChange{Set: []string{"name"}}); code(err) != api.CodeInvalid || !strings.Contains(err.Error(), `"name" of ULP alice is not changed so`) {
		t.Errorf("%v", err)
	}
	if err := alpha.api.RemoveULP(ctx, "alice", true); err != nil {
		t.Fatal(err)
	}
	if mode := alpha.socketMode(); mode&0o006 != 0 || mayConnect(bob) {
		t.Errorf("socket %v", mode)
	}
	if list, err := alpha.api.Attachments(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	for what, err := range map[string]error{
		"removed twice": alpha.api.RemoveULP(ctx, "alice", false),
		"unknown": func() error {
			_, err := alpha.api.SetULP(ctx, "alice", api.ULPChange{Set: []string{"listen"}})
			return err
		}(),
	} {
		if code(err) != api.CodeNotFound || !strings.Contains(err.Error(), `unknown ULP "alice"`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := alpha.api.AddULP(ctx, api.ULPSpec{Name: "rdma", Users: []string{fmt.Sprint(alice)}, Peers: []string{"beta"}}); code(err) != api.CodeExists || !strings.Contains(err.Error(), "`ironwarp ulp set rdma`") {
		t.Errorf("%v", err)
	}
}

// TestPrivilegedULPDeclaresULPs, as root does.
func TestPrivilegedULPDeclaresULPs(t *testing.T) {
	otheruser.Need(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	alpha.ulps(fmt.Sprintf("\n  - {name: carol, users: [%d], privileged: true}\n", carol))
	c := alpha.as(carol)
	if _, err := c.AddULP(t.Context(), api.ULPSpec{Name: "alice", Users: []string{fmt.Sprint(alice)}, Peers: []string{"beta"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := alpha.as(alice).Info(t.Context()); err != nil {
		t.Errorf("alice: %v", err)
	}
	if err := c.RemoveULP(t.Context(), "alice", false); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"remove": c.RemoveULP(t.Context(), "carol", true),
		"set": func() error {
			_, err := c.SetULP(t.Context(), "carol", api.ULPChange{ULPSpec: api.ULPSpec{Listen: true}, Set: []string{"listen"}})
			return err
		}(),
	} {
		if code(err) != api.CodeInUse || !strings.Contains(err.Error(), "ULP carol is declared at "+alpha.conf+":") {
			t.Errorf("%s one of the main file: %v", what, err)
		}
	}
}

// TestPortsOfAddedULPsAreOfTheirPeers: guards and SAs cover them from then on, and programs have them.
func TestPortsOfAddedULPsAreOfTheirPeers(t *testing.T) {
	otheruser.Need(t)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	if err := os.Chmod(alpha.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, block := t.Context(), fmt.Sprintf("%d/16", firstPort)
	if _, err := alpha.api.AddULP(ctx, api.ULPSpec{Name: "alice", Users: []string{fmt.Sprint(alice)}, Peers: []string{"beta"}, Ports: []string{block}}); err != nil {
		t.Fatal(err)
	}
	if p := alpha.peer("beta"); !slices.Equal(p.ProgramPorts, []string{block}) {
		t.Errorf("%q", p.ProgramPorts)
	}
	c, _ := alpha.d.config().Peer("beta")
	if c.Protection = config.ProtectIPsec; !slices.Contains(guardsOf(c), guard.Spec{Remote: c.Address, Protocol: transport.ProtoTCP, Port: firstPort, Size: 16}) {
		t.Errorf("guards are %v", guardsOf(c))
	}
	p := alpha.program(alice)
	s := p.mustConnect(firstPort + 3)
	if _, err := p.connect(firstPort, true); !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("it listens: %v", err)
	}
	if _, err := alpha.api.SetULP(ctx, "alice", api.ULPChange{ULPSpec: api.ULPSpec{Listen: true}, Set: []string{"listen"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program is told", func() bool { return p.Terms().Listen })
	if !s.works() {
		t.Error("the stream has ended")
	}
	if err := alpha.api.RemoveULP(ctx, "alice", false); code(err) != api.CodeInUse || !strings.Contains(err.Error(), "ULP alice is in use: streams of program ") || !strings.Contains(err.Error(), "): 1\n") {
		t.Errorf("%v", err)
	}
	if err := alpha.api.RemoveULP(ctx, "alice", true); err != nil {
		t.Fatal(err)
	}
	if !s.isOver() {
		t.Error("the stream goes on")
	}
	if p := alpha.peer("beta"); len(p.ProgramPorts) != 0 {
		t.Errorf("%q", p.ProgramPorts)
	}
	if _, err := p.connect(firstPort+3, false); !errors.Is(err, transport.ErrNotProtected) {
		t.Errorf("another stream: %v", err)
	}
	// Root's programs keep the ULP that is for them.
	if _, err := alpha.api.AddULP(ctx, api.ULPSpec{Name: "rdma", Peers: []string{"beta"}, Ports: []string{block}}); err != nil {
		t.Fatal(err)
	}
	root := alpha.program(0)
	r := root.mustConnect(firstPort + 4)
	if err := alpha.api.RemoveULP(ctx, "rdma", false); code(err) != api.CodeInUse {
		t.Errorf("%v", err)
	}
	r.Close()
	r.prot.Release()
	eventually(t, "nothing keeps the ULP", func() bool { return alpha.api.RemoveULP(ctx, "rdma", false) == nil })
}

// TestPeerThatAULPNamesSaysHowToTakeItOut: by a command where there is one.
func TestPeerThatAULPNamesSaysHowToTakeItOut(t *testing.T) {
	cfg := &config.Config{Path: "/etc/ironwarp/ironwarp.yaml"}
	own := config.Pos{File: "/etc/ironwarp/ulps.d/x.yaml", Line: 1, Column: 1}
	users := []config.Account{{ID: alice, Name: "alice"}}
	for _, tc := range []struct {
		u    config.ULP
		want string
	}{
		{config.ULP{Name: "x", Users: users, Peers: []string{"beta"}, Origin: config.Pos{File: cfg.Path, Line: 3, Column: 5}}, "take it out of /etc/ironwarp/ironwarp.yaml:3:5 and run `ironwarp reload`"},
		{config.ULP{Name: "x", Users: users, Peers: []string{"beta", "delta", "gamma"}, Origin: own}, "`ironwarp ulp set --peer delta --peer gamma x`"},
		{config.ULP{Name: "x", Users: users, Peers: []string{"beta"}, Exports: []string{"beta/a", "gamma/a"}, Origin: own}, "`ironwarp ulp set --peer '' --export gamma/a x`"},
		{config.ULP{Name: "x", Users: users, Peers: []string{"gamma"}, Exports: []string{"beta/a"}, Origin: own}, "`ironwarp ulp set --export '' x`"},
		{config.ULP{Name: "x", Users: users, Peers: []string{"beta"}, Origin: own}, "`ironwarp ulp rm x`"},
		{config.ULP{Name: "x", Users: users, Peers: []string{"beta"}, Exports: []string{"gamma/a"}, Ports: []config.PortBlock{{First: 4096, Size: 16}}, Origin: own}, "`ironwarp ulp rm x`"},
	} {
		if got := howToTakeOut(cfg, tc.u, "beta"); got != tc.want {
			t.Errorf("got %s, want %s", got, tc.want)
		}
	}
}
