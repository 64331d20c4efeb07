package attack

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// child names, in the environment of a second process of this test, the attack that
// is made there.
const child = "IRONWARP_ATTACK"

// dies makes an attack that is to end the target's whole program. Without the check it
// runs in a process of its own. It reports whether that died.
func (v *target) dies(attack func()) bool {
	v.Helper()
	if !checks.Weakened || os.Getenv(child) == v.Name() {
		attack()
		return false
	}
	var pattern []string
	for name := range strings.SplitSeq(v.Name(), "/") {
		pattern = append(pattern, "^"+regexp.QuoteMeta(name)+"$")
	}
	self, err := os.Executable()
	if err != nil {
		v.Fatal(err)
	}
	cmd := exec.CommandContext(v.Context(), self, "-test.run="+strings.Join(pattern, "/"))
	cmd.Env = append(os.Environ(), child+"="+v.Name())
	out, err := cmd.CombinedOutput()
	return err != nil && bytes.Contains(out, []byte("panic: runtime error"))
}
