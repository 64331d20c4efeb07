package initiators

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/vm"
)

// blktestsVar is the directory of blktests, built: github.com/osandov/blktests has it.
const blktestsVar = "IRONWARP_BLKTESTS"

// blktests are the tests of blktests that take a disk of others (test_device) and are not for PCI alone. The rest of its group nvme has
// Linux' own target beneath, which it makes itself.
var blktests = []string{"block/003", "block/004", "block/005", "block/007", "block/008", "block/012", "block/036", "nvme/036", "nvme/039", "nvme/046", "nvme/049", "nvme/053", "nvme/059"}

var blktestLine = regexp.MustCompile(`(?m)^(\w+/\d+) => \S+ .*\[([a-z ]+)\]`)

// TestBlktests has blktests try a namespace that nvme-rdma has attached. None of its tests may fail; some are not run, since
// the kernel or the transport lacks something, which the log says.
func TestBlktests(t *testing.T) {
	dir := os.Getenv(blktestsVar)
	if dir == "" {
		t.Skipf("set %s to a directory with blktests, built by make, and %s to that of make interop's virtual machine", blktestsVar, vmVar)
	}
	if os.Getenv(insideVar) == "" {
		vm.RunTest(t, os.Getenv(vmVar), vm.Options{Memory: 2048, Timeout: machineTime + time.Minute}, func(here, self string) string {
			return fmt.Sprintf("export %s=%s\n"+nvmeScript, blktestsVar, dir, insideVar, here, self, machineTime, t.Name())
		})
		return
	}
	s := newNVMeScene(t)
	disk := s.connect(keepAlive)
	s.run("ln", "-sfn", "/proc/self/fd", "/dev/fd")
	config := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(config, fmt.Appendf(nil, "TEST_DEVS=(%s)\nTIMEOUT=20\nQUICK_RUN=1\n", disk), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "./check", append([]string{"-c", config, "-o", "/dev/shm/results"}, blktests...)...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	t.Logf("%v\n%s", err, out)
	verdicts := map[string]string{}
	for _, m := range blktestLine.FindAllStringSubmatch(string(out), -1) {
		verdicts[m[1]] = m[2]
	}
	passed := 0
	for name, v := range verdicts {
		switch v {
		case "passed":
			passed++
		case "failed":
			t.Errorf("%s failed", name)
		}
	}
	if passed == 0 || strings.Contains(string(out), "[failed]") {
		t.Errorf("%d tests passed", passed)
	}
	s.nvme("disconnect -n " + subsystemNQN)
	s.stop()
}
