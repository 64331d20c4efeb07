package attach

import (
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
)

// Disks with the longest names that are allowed have sockets, also in a long
// directory, and each has its own.
func TestSocketsOfTheLongestNames(t *testing.T) {
	peer := strings.Repeat("p", config.MaxPeerName)
	export := strings.Repeat("e", config.MaxExportName-1)
	cfg := config.Default("")
	for _, dir := range []string{cfg.NBDDir(), ulpDir(cfg, strings.Repeat("u", config.MaxULPName)), "/" + strings.Repeat("d", 80)} {
		seen := map[string]Disk{}
		for _, k := range []Disk{{Peer: peer, Export: export + "1"}, {Peer: peer, Export: export + "2"}, {Peer: peer[1:] + "q", Export: export + "1"}} {
			path := socketPath(dir, k)
			if len(path) > local.MaxPath || filepath.Dir(path) != dir || !strings.HasSuffix(path, ".sock") {
				t.Errorf("%s has %d bytes", path, len(path))
			}
			if other, ok := seen[path]; ok {
				t.Errorf("%v and %v both have %s", other, k, path)
			}
			seen[path] = k
		}
	}
	if got := socketPath(cfg.NBDDir(), Disk{Peer: "beta", Export: "docs"}); got != "/run/ironwarp/nbd/beta-docs.sock" {
		t.Errorf("a name that fits is %s", got)
	}
}

// No two disks have one socket, however dashes stand in the names of peers and exports.
func TestDisksHaveSocketsOfTheirOwn(t *testing.T) {
	name := rapid.Custom(func(t *rapid.T) string {
		s := rapid.StringMatching(`[ab][ab-]{0,3}`).Draw(t, "name")
		return s + rapid.SampledFrom([]string{"", strings.Repeat("x", 28)}).Draw(t, "length")
	})
	rapid.Check(t, func(t *rapid.T) {
		dir := rapid.SampledFrom([]string{"/run/ironwarp/nbd", "/" + strings.Repeat("d", 60), "/" + strings.Repeat("d", 80)}).Draw(t, "dir")
		seen := map[string]Disk{}
		for range 20 {
			k := Disk{Peer: name.Draw(t, "peer"), Export: name.Draw(t, "export")}
			path := socketPath(dir, k)
			if other, ok := seen[path]; ok && other != k {
				t.Fatalf("%v and %v both have %s", other, k, path)
			}
			seen[path] = k
			// What the name of one disk was cut to is not the name of another.
			ending := strings.TrimSuffix(filepath.Base(path), ".sock")
			if peer, export, ok := strings.Cut(ending, "-"); ok && peer != "" && config.CheckPeerName(peer) == nil && config.CheckExportName(export) == nil {
				if twin := (Disk{Peer: peer, Export: export}); twin != k && socketPath(dir, twin) == path {
					t.Fatalf("%v and %v both have %s", k, twin, path)
				}
			}
		}
	})
}
