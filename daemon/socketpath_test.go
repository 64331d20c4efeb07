package daemon

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
)

// Disks with the longest names that are allowed have sockets, also in a long
// directory, and each has its own.
func TestSocketsOfTheLongestNames(t *testing.T) {
	peer := strings.Repeat("p", config.MaxPeerName)
	export := strings.Repeat("e", config.MaxExportName-1)
	cfg := config.Default("")
	for _, dir := range []string{cfg.NBDDir(), ulpDir(cfg, strings.Repeat("u", config.MaxULPName)), "/" + strings.Repeat("d", 80)} {
		seen := map[string]disk{}
		for _, k := range []disk{{Peer: peer, Export: export + "1"}, {Peer: peer, Export: export + "2"}, {Peer: peer[1:] + "q", Export: export + "1"}} {
			path := socketPath(dir, k)
			if len(path) > maxUnixPath || filepath.Dir(path) != dir || !strings.HasSuffix(path, ".sock") {
				t.Errorf("%s has %d bytes", path, len(path))
			}
			if other, ok := seen[path]; ok {
				t.Errorf("%v and %v both have %s", other, k, path)
			}
			seen[path] = k
		}
	}
	if got := socketPath(cfg.NBDDir(), disk{Peer: "beta", Export: "docs"}); got != "/run/ironwarp/nbd/beta-docs.sock" {
		t.Errorf("a name that fits is %s", got)
	}
}
