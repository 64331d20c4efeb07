package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// TestNothingOfTheOldNodeIsWrittenAfterUnpublishInESP is the same with three hosts in network namespaces, each with a strongSwan of its
// own: leases are for identities that IKE has authenticated, and all that the volume's nodes say to the storage host is in ESP.
func TestNothingOfTheOldNodeIsWrittenAfterUnpublishInESP(t *testing.T) {
	lab.Require(t)
	pool := fileSystem(t)
	program := filepath.Join(shortDir(t), "ironwarp")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", "../..", "-buildvcs=false", "-o", program, "./cmd/ironwarp").CombinedOutput(); err != nil {
		t.Fatalf("build ironwarp: %v\n%s", err, out)
	}
	l := lab.Start(t, lab.Config{Hosts: []string{"store", "new", "old"}})
	var hosts []*host
	for _, h := range l.Hosts() {
		n := node.New(h, program)
		if _, err := n.Capture(t.Context(), lab.CaptureOptions{}); err != nil {
			t.Fatal(err)
		}
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
		hosts = append(hosts, &host{t: t, name: n.Name(), node: n, api: n.Client()})
	}
	store, nodes := hosts[0].node, hosts[1:]
	for _, n := range nodes {
		if err := node.Join(t.Context(), store, n.node); err != nil {
			t.Fatal(err)
		}
	}
	main, err := os.ReadFile(store.Config)
	if err != nil {
		t.Fatal(err)
	}
	main = fmt.Appendf(main, "pools: [{name: fast, %s, manage: [new]}]\n", pool)
	if err := os.WriteFile(store.Config, main, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Client().Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	m := move(t, nodes[0], nodes[1], false)
	v, err := store.Client().Volume(t.Context(), "", "vol")
	if err != nil || len(v.Allow) != 1 || v.Allow[0].Peer != "old" {
		t.Fatalf("published to %+v, %v", v.Allow, err)
	}
	moves["it stops, and goes on later"](m)
	if v, err = store.Client().Volume(t.Context(), "", "vol"); err != nil || slices.ContainsFunc(v.Allow, func(l api.PeerLease) bool { return l.Peer != "new" }) {
		t.Errorf("published to %+v, %v", v.Allow, err)
	}
}
