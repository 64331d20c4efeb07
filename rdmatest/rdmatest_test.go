package rdmatest

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/iscsitest"
	"github.com/ironwarp/ironwarp/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func shell(script string) func() *exec.Cmd {
	return func() *exec.Cmd { return exec.Command("sh", "-c", script) }
}

func judge(t *testing.T, agent string, only ...string) (*iscsitest.Report, error) {
	t.Helper()
	here := netip.MustParseAddr("127.0.0.1")
	return Run(t.Context(), Options{Agent: shell(agent), Peer: here, Local: here, Port: 7312, Only: only, Transport: &transport.Config{Protector: transport.LoopbackOnly(), Local: here}})
}

func TestCasesHaveNamesOfTheirOwn(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range Cases() {
		if seen[c.ID] || strings.ContainsAny(c.ID, " /") || c.Source == "" {
			t.Errorf("%+v", c)
		}
		seen[c.ID] = true
	}
	for _, id := range []string{"dial.send.we-act", "dial.send.peer-acts", "listen.read.peer-acts"} {
		if !seen[id] {
			t.Errorf("there is no case %s", id)
		}
	}
	if some, err := Select([]string{"dial.send.*"}); err != nil || len(some) != 2 {
		t.Errorf("%d cases, %v", len(some), err)
	}
	if _, err := Select([]string{"["}); !errors.Is(err, ErrOptions) {
		t.Errorf("%v", err)
	}
}

// What is no agent, or says that it cannot do its part, is an error in its own words.
func TestAgentThatDoesNothing(t *testing.T) {
	for script, want := range map[string]string{
		"exit 3":                                   "exit status 3",
		"echo no such host >&2; exit 1":            "no such host",
		"echo hello; read -r x":                    `"hello"`,
		"read -r x; echo no permission; read -r y": "permission",
	} {
		if _, err := judge(t, script, "dial.send.we-act"); !errors.Is(err, ErrAgent) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", script, err)
		}
	}
}

// An agent that ends in the middle is a target that is down, and one that lacks something is no failure.
func TestAgentThatEnds(t *testing.T) {
	r, err := judge(t, `while read -r command rest; do case $command in listen) echo ok;; *) exit 4;; esac; done`, "dial.send.we-act", "dial.*fetchadd*.peer-acts")
	if !errors.Is(err, ErrAgent) || !strings.Contains(err.Error(), "exit status 4") {
		t.Errorf("%v", err)
	}
	if r.Count(iscsitest.TargetDown) != 1 || r.Count(iscsitest.Fail) != 0 {
		t.Errorf("%+v", r.Results)
	}
}

func TestJudgingEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	here := netip.MustParseAddr("127.0.0.1")
	_, err := Run(ctx, Options{Agent: shell(`while read -r line; do echo ok; done`), Peer: here, Local: here, Port: 7314, Only: []string{"dial.send.we-act"}, Transport: &transport.Config{Protector: transport.LoopbackOnly(), Local: here}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
