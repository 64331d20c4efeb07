package attach

import (
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/printable"
)

// Two daemons, two ULPs of one, or two users of a ULP with different labels, that named their sessions alike would keep
// each other out at the server, and a name that cannot be printed is refused there.
func TestSessionsHaveNamesOfTheirOwn(t *testing.T) {
	ulp := strings.Repeat("u", config.MaxULPName)
	long := "/" + strings.Repeat("d", 250)
	dirs := []string{"/var/lib/ironwarp", "/var/lib/ironwarp:" + ulp, long, long + "2", long + ":" + ulp, "/srv/\x1b[31m", "/srv/\x1b[32m", "/srv/\xff", "/srv/\xfe"}
	for n := range 4 { // wherever it is cut
		dirs = append(dirs, "/"+strings.Repeat("d", n)+strings.Repeat("ß", 120), "/"+strings.Repeat("d", n)+strings.Repeat("写", 120))
	}
	seen := map[string]string{}
	for _, dir := range dirs {
		for _, u := range []string{"", ulp} {
			for _, label := range []string{"", "system_u:system_r:hpc_t:s0", "system_u:system_r:hpc_t:s0:" + strings.Repeat("c1,", 100) + "c2"} {
				name := sessionNameOf("alpha", dir, u, label)
				if err := printable.Check(name); err != nil || len(name) > 254 || !strings.HasPrefix(name, "alpha:/") {
					t.Errorf("of %q: %q, %d bytes: %v", dir, name, len(name), err)
				}
				who := dir + " with " + u + " as " + label
				if other, ok := seen[name]; ok {
					t.Errorf("%q and %q have the same name %q", who, other, name)
				}
				seen[name] = who
			}
		}
	}
	// As it has been: a server knows a client of the release before by it.
	if name := sessionNameOf("alpha", "/var/lib/ironwarp", "alice", ""); name != "alpha:/var/lib/ironwarp:alice" {
		t.Error(name)
	}
}
