package siw

import (
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeAgent plays an agent that knows some commands.
const fakeAgent = `
while read -r command rest; do
	case $command in
	sum) echo "+async an event"; echo "ok $rest 3" ;;
	store) head -c 4 >/dev/null; echo ok ;;
	load) echo "ok 5"; printf 'a\n+b\n' ;;
	complete) echo "+wc 1 7 send 0 0 success"; echo "+wc 2 8 send 0 0 success"; echo ok ;;
	die) echo "it hurts" >&2; exit 3 ;;
	*) echo "no such thing" ;;
	esac
done`

func startDouble(t *testing.T) *Agent {
	t.Helper()
	a, err := start(exec.Command("bash", "-c", fakeAgent))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestCommandsHaveTheirAnswers(t *testing.T) {
	a := startDouble(t)
	for range 3 {
		if words, err := a.Do("sum %d 2", 1); err != nil || !slices.Equal(words, []string{"1", "2", "3"}) {
			t.Errorf("%q, %v", words, err)
		}
		if _, err := a.Do("what"); err == nil || !strings.Contains(err.Error(), "siw: what: such thing") {
			t.Errorf("an unknown command: %v", err)
		}
		e := &endpoint{a: a}
		if err := e.Store(conformance.Region{}, 0, []byte("a\nb\n")); err != nil {
			t.Error(err)
		}
		if b, err := e.Load(conformance.Region{}, 0, 5); err != nil || string(b) != "a\n+b\n" {
			t.Errorf("%q, %v", b, err)
		}
	}
	if !strings.Contains(a.Lines(), "> sum 1 2\n+async an event\nok 1 2 3\n") {
		t.Errorf("the last lines: %s", a.Lines())
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
}

func TestEventsReachTheirStream(t *testing.T) {
	a := startDouble(t)
	one, two := a.stream(1), a.stream(2)
	one.posted(7, true)
	two.posted(7, true)
	if _, err := a.Do("complete"); err != nil {
		t.Fatal(err)
	}
	if len(one.wcs) != 1 || one.wcs[0].ID != 7 || len(two.wcs) != 0 {
		t.Errorf("completions: %+v and %+v", one.wcs, two.wcs)
	}
	if err := a.Stop(); err != nil {
		t.Error(err)
	}
}

func TestDeathOfTheAgentIsToldEverywhere(t *testing.T) {
	a := startDouble(t)
	e := &endpoint{a: a, s: a.stream(1)}
	if _, err := a.Do("die"); err == nil || !strings.Contains(err.Error(), "the agent has died") {
		t.Errorf("a command: %v", err)
	}
	if _, err := a.Do("sum"); err == nil {
		t.Error("a dead agent answers")
	}
	if _, err := e.Completion(t.Context()); !errors.Is(err, errDead) {
		t.Errorf("a completion: %v", err)
	}
	if err := a.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 3: it hurts") {
		t.Errorf("stop: %v", err)
	}
}
