package newcomer

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/machine"
)

// The pages of docs/tasks.
const (
	taskLink     = "docs/tasks/link.md"
	taskISCSI    = "docs/tasks/iscsi.md"
	taskJudge    = "docs/tasks/judge.md"
	taskPrograms = "docs/tasks/programs.md"
)

var tasks = []string{taskLink, taskISCSI, taskJudge, taskPrograms}

// installed are bare machines by README's names, with what `make install` installs, and `make rdma`; TestTwoHosts builds that on the machines
// themselves.
func installed(t *testing.T) map[string]*machine.Machine {
	t.Helper()
	all := machines(t)
	dir := t.TempDir()
	for _, target := range []string{"rdma", "install"} {
		if out, err := exec.CommandContext(t.Context(), "make", "-C", top, "--no-print-directory", target, "DESTDIR="+dir).CombinedOutput(); err != nil {
			t.Fatalf("make %s: %v: %s", target, err, out)
		}
	}
	tree, err := exec.CommandContext(t.Context(), "tar", "-C", dir, "-c", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if _, err := m.RunWith(t.Context(), tree, "mkdir /srv/installed; tar -xC /srv/installed"); err != nil {
			t.Fatal(err)
		}
	}
	return named(t, all)
}

// do follows a page, and returns what its commands have said, by the heading above them.
func do(t *testing.T, at map[string]*machine.Machine, name string) map[string]string {
	t.Helper()
	said := map[string]string{}
	for _, b := range page(t, name) {
		on, err := b.hosts()
		if err != nil {
			t.Fatal(err)
		}
		for _, host := range on {
			commands := unbuilt(t, b.commands)
			said[b.heading] += follow(t, at[host], commands)
			if strings.Contains(strings.Join(commands, "\n"), "systemctl enable --now strongswan") {
				withoutESP(t, at[host])
			}
		}
	}
	return said
}

// says fails the test unless each text is in what a block's commands have said.
func says(t *testing.T, said map[string]string, heading string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(said[heading], want) {
			t.Errorf("%q: nobody says %q:\n%s", heading, want, said[heading])
		}
	}
}

func TestTaskLink(t *testing.T) {
	says(t, do(t, installed(t), taskLink), "On alpha", "3 round trips", "beta")
}

func TestTaskISCSI(t *testing.T) {
	at := installed(t)
	do(t, at, taskLink)
	said := do(t, at, taskISCSI)
	says(t, said, "On alpha", "iqn.2026-01.org.example:disk", "Images are identical.")
	says(t, said, "Who is logged in: on beta", "iqn.2026-01.org.example:disk")
}

func TestTaskJudge(t *testing.T) {
	at := installed(t)
	at["alpha"].Must(t, "cp -a /srv/installed/. /")
	says(t, do(t, at, taskJudge), "The judgement, on alpha", "PASS", "reservation")
}

func TestTaskPrograms(t *testing.T) {
	at := installed(t)
	do(t, at, taskLink)
	says(t, do(t, at, taskPrograms), "On alpha", "ironwarp", "rdma-ping-2", "BW average")
}
