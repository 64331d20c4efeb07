package peers

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/internal/loopfs"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// disk connects to a disk that alpha has attached.
func (s *scene) disk(name string) *nbdtest.Client {
	s.t.Helper()
	c, err := net.Dial("unix", filepath.Join(s.alpha.RunDir(), "ironwarp", "nbd", "beta-"+name+".sock"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	client, err := nbdtest.Connect(c, name, false)
	if err != nil {
		s.t.Fatal(err)
	}
	return client
}

// TestPeerManagesVolumesInESPOnly has alpha make, publish, attach, snapshot, clone, expand and give up volumes of beta's by the command
// line, by its IKE identity. All SAs are deleted in between, and neither names nor data of the volumes are ever on the wire in clear. A peer that
// the pool does not name gets nothing.
func TestPeerManagesVolumesInESPOnly(t *testing.T) {
	dir := loopfs.Mount(t, "xfs", 0)
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta); err != nil {
		t.Fatal(err)
	}
	if _, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{}); err != nil {
		t.Fatal(err)
	}
	name := string(s.beta.Canary().Bytes(8))
	pools := func(manage string) {
		t.Helper()
		text, err := os.ReadFile(s.beta.Config)
		if err != nil {
			t.Fatal(err)
		}
		main, _, _ := strings.Cut(string(text), "pools:")
		if err := os.WriteFile(s.beta.Config, []byte(main+"pools: [{name: pool, driver: file, path: "+dir+", manage: ["+manage+"]}]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.must(s.beta, "reload")
	}
	pools("")
	s.until("alpha is refused, and told why", func() bool {
		_, err := s.alpha.Ironwarp(t.Context(), nil, "volume", "create", "--peer", "beta", "pool", name, "1MiB")
		return err != nil && strings.Contains(err.Error(), "does not let this host manage")
	})
	pools("\"id:" + s.alpha.Addr().String() + "\"")
	s.must(s.alpha, "volume", "create", "--peer", "beta", "pool", name, "16MiB")
	s.must(s.alpha, "volume", "publish", "--peer", "beta", name)
	s.must(s.alpha, "attach", "beta/"+name)
	c := s.disk(name)
	do := func(c *nbdtest.Client, write bool, off uint64, data []byte) []byte {
		t.Helper()
		typ, payload := uint16(0), []byte(nil)
		if write {
			typ, payload = 1, data
		}
		r, err := c.Do(0, typ, off, uint32(len(data)), payload)
		if err != nil || r.Error != 0 {
			t.Fatalf("I/O at %d: %v, %+v", off, err, r)
		}
		return r.Data
	}
	first, second := s.beta.Canary().Bytes(64<<10), bytes.Repeat([]byte{2}, 64<<10)
	do(c, true, 0, first)
	s.must(s.alpha, "volume", "snapshot", "--peer", "beta", name, name+"-snap")
	do(c, true, 0, second)
	s.must(s.alpha, "sa", "delete", "beta")
	s.must(s.alpha, "volume", "clone", "--peer", "beta", name+"-snap", name+"-copy")
	s.must(s.alpha, "volume", "publish", "--peer", "beta", name+"-copy")
	s.must(s.alpha, "attach", "beta/"+name+"-copy")
	if got := do(s.disk(name+"-copy"), false, 0, make([]byte, 64<<10)); !bytes.Equal(got, first) {
		t.Error("the clone has not what the volume had when the snapshot was taken")
	}
	s.must(s.alpha, "volume", "expand", "--peer", "beta", name, "32MiB")
	s.until("the volume has grown for whoever has it attached", func() bool {
		r, err := c.Do(0, 1, 31<<20, 64<<10, first)
		return err == nil && r.Error == 0
	})
	if got := do(c, false, 0, make([]byte, 64<<10)); !bytes.Equal(got, second) {
		t.Error("the volume has lost what was written after the snapshot")
	}
	s.must(s.alpha, "volume", "unpublish", "--peer", "beta", name)
	if r, err := c.Do(0, 1, 0, 512, make([]byte, 512)); err == nil && r.Error == 0 {
		t.Error("a host to whom the volume is not published any more writes to it")
	}
	s.must(s.alpha, "detach", "--force", "beta/"+name)
	s.must(s.alpha, "volume", "rm", "--peer", "beta", name)
	var all []api.Volume
	if err := s.alpha.Query(t.Context(), &all, "volume", "ls", "--peer", "beta"); err != nil || len(all) != 2 {
		t.Errorf("%+v, %v", all, err)
	}
}
