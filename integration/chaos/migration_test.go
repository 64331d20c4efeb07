package chaos

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/transport"
)

// TestMigrationBetweenHostsUnderVerifiedIO moves the writer of a disk from alpha to gamma, as a
// virtual machine moves: for a time both have it, also after the exporting daemon was killed
// and started. Each host has an identity of its own, and delta never gets in. When alpha has
// left, and comes back by another migration, it is fenced under gamma's I/O.
func TestMigrationBetweenHostsUnderVerifiedIO(t *testing.T) {
	s := &scene{kind: transport.TCP}
	s.start(t, "gamma", "delta")
	gamma, delta := s.others[0], s.others[1]
	for _, n := range s.others {
		must(t, node.Join(t.Context(), n, s.beta))
	}
	run := func(n *node.Node, args ...string) {
		t.Helper()
		_, err := n.Ironwarp(t.Context(), nil, args...)
		must(t, err)
	}
	disk := "beta/" + s.export()
	run(s.beta, "export", "set", "--allow", "gamma", "--allow", "delta", "--writers", "migration", s.export())
	// Whoever is refused is told who is there.
	refused := func(n *node.Node, options ...string) {
		t.Helper()
		_, err := n.Ironwarp(t.Context(), nil, append(append([]string{"attach"}, options...), disk)...)
		if err == nil || !slices.ContainsFunc([]*node.Node{s.alpha, gamma}, func(by *node.Node) bool {
			return by != n && strings.Contains(err.Error(), "one writer at a time, or two during a migration, and there is "+by.Addr().String()+" (")
		}) {
			t.Fatalf("%s attaches the disk %v: %v", n.Name(), options, err)
		}
	}
	content := func(n byte) []byte { return bytes.Repeat([]byte{n}, 4096) }
	const place = 48 << 20 // that fio leaves alone
	// The daemon may notice later than this that a client has left, so disks are detached by force.
	write := func(n *node.Node, socket string, value byte, want uint32) {
		t.Helper()
		r, err := s.nbd(t, n, socket).Do(0, nbdWrite, place, 4096, content(value))
		if err != nil || r.Error != want {
			t.Fatalf("%s writes %d: error %d, want %d; %v", n.Name(), value, r.Error, want, err)
		}
	}
	has := func(n *node.Node, socket string, value byte) {
		t.Helper()
		r, err := s.nbd(t, n, socket).Do(0, nbdRead, place, 4096, nil)
		if err != nil || r.Error != 0 || !bytes.Equal(r.Data, content(value)) {
			t.Fatalf("%s does not read %d: error %d, %v", n.Name(), value, r.Error, err)
		}
	}

	l := s.begin(t, node.Load{})
	refused(gamma)
	var there api.Attachment
	must(t, gamma.Query(t.Context(), &there, "attach", "--migration", disk))
	refused(delta, "--migration")
	write(gamma, there.Socket, 1, 0)
	s.mustFlow(t, l)
	source := l.end(t)

	// Both return to a server that begins anew, before anybody else.
	s.beta.Kill()
	must(t, s.beta.Start(t.Context()))
	refused(delta, "--migration")
	write(s.alpha, s.disk.Socket, 2, 0)
	has(gamma, there.Socket, 2)
	l = s.beginAt(t, gamma, there, node.Load{})
	run(s.alpha, "detach", "--force", disk)
	s.mustFlow(t, l)
	for _, n := range []*node.Node{s.alpha, delta} {
		refused(n)
	}

	must(t, s.alpha.Query(t.Context(), &s.disk, "attach", "--migration", disk))
	write(s.alpha, s.disk.Socket, 3, 0)
	refused(delta, "--migration")
	var fenced api.Fenced
	must(t, s.beta.Query(t.Context(), &fenced, "export", "fence", s.export(), "alpha"))
	if len(fenced.Tokens) != 1 || fenced.Tokens[0].Name != "alpha" || fenced.Generation != 1 {
		t.Fatalf("the fence of alpha: %+v", fenced)
	}
	write(s.alpha, s.disk.Socket, 4, nbdEPERM)
	s.mustFlow(t, l)
	has(gamma, there.Socket, 3)
	destination := l.end(t)

	// Gamma leaves, and alpha has the disk by itself.
	run(s.alpha, "detach", "--force", disk)
	must(t, s.alpha.Query(t.Context(), &s.disk, "attach", "--migration", disk))
	run(gamma, "detach", "--force", disk)
	write(s.alpha, s.disk.Socket, 5, 0)
	s.judge(t, source.Written+source.Read+destination.Written+destination.Read)
}
