package agent

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// linuxSource has Linux' agent for a kind of adapter whose SMA is software.
const (
	linuxSource = "/usr/src/linux-source-6.1.tar.xz"
	linuxFile   = "linux-source-6.1/drivers/infiniband/hw/qib/qib_mad.c"
)

// linuxParts are what is taken out of it, by its first words and its end: the check of the M_Key, which one
// an answer shows, and what a Set does with the key fields.
var linuxParts = map[string]*regexp.Regexp{
	"CHECK": regexp.MustCompile(`(?ms)^static int check_mkey\(.*?^}`),
	"SHOW":  regexp.MustCompile(`(?s)if \(!\(smp->method == IB_MGMT_METHOD_GET &&\s+ibp->rvp\.mkey != .*?;`),
	"SET": regexp.MustCompile(`ibp->rvp\.mkey = pip->mkey;|ibp->rvp\.mkey_lease_period = [^;]*;|` +
		`ibp->rvp\.mkeyprot = pip[^;]*;|if \(pip->mkey_violations == 0\)\s+[^;]*;`),
}

// shim is what these parts need around them: their names, a clock, and a loop over lines of requests.
const shim = `
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#define HZ 250
#define fallthrough
#define be16_to_cpu(x) (x)
#define time_after_eq(a, b) ((long)((a) - (b)) >= 0)
enum { IB_MAD_IGNORE_MKEY = 1, IB_MGMT_METHOD_GET = 1, IB_MGMT_METHOD_SET = 2, IB_MGMT_METHOD_TRAP_REPRESS = 7 };
struct ib_smp { uint8_t method; uint64_t mkey; };
struct ib_port_info { uint64_t mkey; uint16_t mkey_lease_period, mkey_violations; uint8_t mkeyprot_resv_lmc; };
struct qib_ibport {
	struct { uint64_t mkey; unsigned long mkey_lease_timeout; uint16_t mkey_lease_period, mkey_violations; uint8_t mkeyprot; } rvp;
};
static unsigned long jiffies;
static int traps;
static void qib_bad_mkey(struct qib_ibport *ibp, struct ib_smp *smp) { traps++; }
@CHECK@
static void show(struct qib_ibport *ibp, struct ib_smp *smp, struct ib_port_info *pip) { @SHOW@ }
static void set(struct qib_ibport *ibp, struct ib_port_info *pip) { @SET@ }
int main(void) {
	struct qib_ibport port = {0}, *ibp = &port;
	unsigned long long method, mkey, newkey, prot, period, violations;
	char what;
	while (scanf(" %c %lu %llu %llu %llu %llu %llu %llu", &what, &jiffies, &method, &mkey, &newkey, &prot, &period, &violations) == 8) {
		struct ib_smp smp = {method, mkey};
		struct ib_port_info pip = {newkey, period, violations, prot << 6}, shown = {0};
		int failed = 0;
		traps = 0;
		if (what == 'n') {
			memset(ibp, 0, sizeof *ibp);
			set(ibp, &pip);
			ibp->rvp.mkey_violations = violations;
		} else if (!(failed = check_mkey(ibp, &smp, 0))) {
			if (method == IB_MGMT_METHOD_SET)
				set(ibp, &pip);
			if (method != IB_MGMT_METHOD_TRAP_REPRESS)
				show(ibp, &smp, &shown);
		}
		printf("%d %llu %d %u %d %d\n", failed, (unsigned long long)shown.mkey, ibp->rvp.mkeyprot, ibp->rvp.mkey_violations,
			ibp->rvp.mkey_lease_timeout != 0, traps);
		fflush(stdout);
	}
	return 0;
}
`

// oracle is Linux' check, in a process.
type oracle struct {
	in  io.Writer
	out *bufio.Reader
}

func newOracle(t *testing.T) *oracle {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("there is no gcc to compile Linux' check_mkey with (Debian's package gcc)")
	}
	if _, err := os.Stat(linuxSource); err != nil {
		t.Skipf("there is no %s to take Linux' check_mkey from (Debian's package linux-source-6.1)", linuxSource)
	}
	source, err := exec.CommandContext(t.Context(), "tar", "--occurrence=1", "-xOf", linuxSource, linuxFile).Output()
	if err != nil {
		t.Fatalf("take %s out of %s: %v", linuxFile, linuxSource, err)
	}
	code := shim
	for name, part := range linuxParts {
		found := part.FindAllString(string(source), -1)
		if want := map[string]int{"CHECK": 1, "SHOW": 1, "SET": 4}[name]; len(found) != want {
			t.Fatalf("%d parts for %s in %s, want %d", len(found), name, linuxFile, want)
		}
		code = strings.ReplaceAll(code, "@"+name+"@", strings.Join(found, "\n"))
	}
	dir := t.TempDir()
	file, program := filepath.Join(dir, "oracle.c"), filepath.Join(dir, "oracle")
	if err := os.WriteFile(file, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), gcc, "-o", program, file).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	cmd := exec.Command(program) // ends with its input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &oracle{in, bufio.NewReader(out)}
}

// state is what both show after a request.
type state struct {
	failed     bool
	shown      mad.Key
	protect    uint8
	violations uint16
	running    bool // the lease's timer
	violation  bool
}

func (s state) String() string {
	return fmt.Sprintf("failed %v, shows %#x, protection %d, violations %d, timer %v, violation %v", s.failed, uint64(s.shown), s.protect, s.violations, s.running, s.violation)
}

// ask has the oracle judge a request at a time in jiffies of 4 ms; what 'n' makes a new port of the fields.
func (o *oracle) ask(t *rapid.T, what byte, jiffies int64, method mad.Method, key mad.Key, fields KeyFields, violations uint16) (s state) {
	if _, err := fmt.Fprintf(o.in, "%c %d %d %d %d %d %d %d\n", what, jiffies, method, uint64(key), uint64(fields.MKey), fields.Protect, fields.LeasePeriod, violations); err != nil {
		t.Fatal(err)
	}
	line, err := o.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var failed, running, traps int
	var shown uint64
	if _, err := fmt.Sscan(line, &failed, &shown, &s.protect, &s.violations, &running, &traps); err != nil {
		t.Fatal(err)
	}
	s.failed, s.shown, s.running, s.violation = failed != 0, mad.Key(shown), running != 0, traps > 0
	return s
}

// Linux' agent and this one answer any history of requests alike: what fails, which key is shown, what counts
// as a violation, when the lease runs and what its end does. It has no difference to explain: level 3 is as
// level 2 in both.
func TestAsLinux(t *testing.T) {
	linux := newOracle(t)
	keys := rapid.SampledFrom([]mad.Key{0, 1, 0x1122334455667788, ^mad.Key(0)})
	periods := rapid.SampledFrom([]uint16{0, 1, 1, 2, 3, 65535})
	drawFields := func(t *rapid.T) KeyFields {
		return KeyFields{MKey: keys.Draw(t, "M_Key"), Protect: uint8(rapid.IntRange(0, 3).Draw(t, "protection")), LeasePeriod: periods.Draw(t, "period")}
	}
	var seen struct{ ended, cleared, saturated, level3 int }
	rapid.Check(t, func(t *rapid.T) {
		const hz = 250
		jiffies := int64(1)
		start := time.Unix(1_000_000, 0)
		fields := drawFields(t)
		violations := rapid.SampledFrom([]uint16{0, 1, maxViolations - 1, maxViolations}).Draw(t, "violations")
		linux.ask(t, 'n', jiffies, 0, 0, fields, violations)
		violated := false
		a, err := New(Config{GUID: 1, LID: 1, Keys: fields, Event: func(e Event) { violated = violated || e.Kind == Violation }})
		if err != nil {
			t.Fatal(err)
		}
		a.guard.violations = violations
		for range rapid.IntRange(1, 500).Draw(t, "requests") {
			jiffies += rapid.SampledFrom([]int64{0, 1, hz - 1, hz, hz + 1, 2 * hz, 3*hz - 1, 3 * hz, 65535 * hz}).Draw(t, "jiffies")
			now := start.Add(time.Duration(jiffies) * time.Second / hz)
			request := mad.SMP{MKey: keys.Draw(t, "key")}
			request.Class, request.ClassVersion, request.Attribute = mad.ClassSubn, mad.SMPClassVersion, mad.AttrPortInfo
			request.Method = rapid.SampledFrom([]mad.Method{mad.MethodGet, mad.MethodSet, mad.MethodTrapRepress}).Draw(t, "method")
			var set KeyFields
			var reset uint16
			if request.Method == mad.MethodSet {
				set, reset = drawFields(t), uint16(rapid.IntRange(0, 1).Draw(t, "violations of the Set"))
				info := a.portInfo()
				info.MKey, info.MKeyProtect, info.MKeyLeasePeriod, info.MKeyViolations = set.MKey, set.Protect, set.LeasePeriod, reset
				copy(request.Data[:], info.Append(nil))
			}
			if request.Method == mad.MethodTrapRepress {
				request.Attribute = mad.AttrNotice
			}
			before := *a.guard.keys.fields()
			was := a.guard.lease
			violated = false
			r := a.Handle(now, manager, &request)
			ours := state{protect: a.guard.keys.fields().Protect, violations: a.Violations(), running: a.guard.lease == leaseRunning, violation: violated, failed: violated}
			if r.Answer != nil {
				info, err := mad.ParsePortInfo(r.Answer.Data[:])
				if err != nil {
					t.Fatal(err)
				}
				ours.shown = info.MKey
			}
			if silent := r.Answer == nil; request.Method != mad.MethodTrapRepress && silent != violated {
				t.Fatalf("silent %v, violation %v", silent, violated)
			}
			theirs := linux.ask(t, 'r', jiffies, request.Method, request.MKey, set, reset)
			if ours != theirs {
				t.Fatalf("%s with key %#x at a port with %v:\nours:  %v\nLinux: %v", request.Method, uint64(request.MKey), before, ours, theirs)
			}
			switch {
			case was == leaseRunning && a.guard.lease == leaseEnded:
				seen.ended++
			case was == leaseRunning && a.guard.lease == leaseHeld:
				seen.cleared++
			}
			if ours.violation && ours.violations == maxViolations {
				seen.saturated++
			}
			if ours.violation && before.Protect == 3 && request.Method == mad.MethodGet {
				seen.level3++
			}
		}
	})
	if seen.ended == 0 || seen.cleared == 0 || seen.saturated == 0 || seen.level3 == 0 {
		t.Errorf("the histories do not have everything: %+v", seen)
	}
}
