package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

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
	chatter) for i in 1 2 3 4 5; do echo ok $i; done ;;
	long) head -c 200000 /dev/zero | tr '\0' x; echo ;;
	*) echo "no such thing" ;;
	esac
done`

func startDouble(t *testing.T) *Process {
	t.Helper()
	a, err := Start(exec.Command("bash", "-c", fakeAgent))
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
		if _, err := a.Do("what"); err == nil || !strings.Contains(err.Error(), "agent: what: such thing") {
			t.Errorf("an unknown command: %v", err)
		}
		e := &Endpoint{a: a}
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

// What is no agent does no harm: it speaks without being asked, never ends its line, or has other bytes than it was asked for.
func TestWhatIsNoAgent(t *testing.T) {
	for what, do := range map[string]func(a *Process) error{
		"speaks unasked":  func(a *Process) error { _, err := a.Do("chatter"); return err },
		"ends no line":    func(a *Process) error { _, err := a.Do("long"); return err },
		"has other bytes": func(a *Process) error { _, err := (&Endpoint{a: a}).Load(conformance.Region{}, 0, 1<<30); return err },
	} {
		a := startDouble(t)
		err := do(a)
		select {
		case <-a.dead:
		case <-time.After(answerTime):
		}
		if err == nil { // what else it has said came when nobody had asked
			_, err = a.Do("sum 1 2")
		}
		if err == nil {
			t.Errorf("who %s is taken for an agent", what)
		}
		if err := a.Stop(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Errorf("who %s: %v", what, err)
		}
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
	e := &Endpoint{a: a, s: a.stream(1)}
	if _, err := a.Do("die"); err == nil || !strings.Contains(err.Error(), "has died") {
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

func TestEventsOfTheAgent(t *testing.T) {
	for line, want := range map[string]event{
		"+wc 3 17 recv 1000 0 success":                  {kind: "wc", wc: conformance.WC{ID: 17, Op: conformance.OpRecv, Len: 1000}},
		"+wc 3 18446744073709551614 read 5 0 success":   {kind: "wc", wc: conformance.WC{ID: 1<<64 - 2, Op: conformance.OpRead, Len: 5}},
		"+wc 3 1 send 0 5 Work Request Flushed Error":   {kind: "wc", wc: conformance.WC{ID: 1, Op: conformance.OpSend, Status: conformance.Flushed}},
		"+wc 3 1 write 9 10 remote access error":        {kind: "wc", wc: conformance.WC{ID: 1, Op: conformance.OpWrite, Len: 9, Status: conformance.Failed}},
		"+end 3 2":                                      {kind: "end"},
		"+cm 3 RDMA_CM_EVENT_DISCONNECTED 0":            {kind: "cm", text: "RDMA_CM_EVENT_DISCONNECTED"},
		"+async invalid request local work queue error": {kind: "async"},
	} {
		got, conn, err := parseEvent(strings.Fields(line))
		if err != nil || !reflect.DeepEqual(got, want) || conn != 3 && got.kind != "async" {
			t.Errorf("%s: %+v of %d, %v; want %+v", line, got, conn, err, want)
		}
	}
	for _, line := range []string{"+wc 3 1", "+wc x 1 recv 0 0 success", "+end", "+what 1 2 3 4"} {
		if e, _, err := parseEvent(strings.Fields(line)); err == nil {
			t.Errorf("%s: %+v", line, e)
		}
	}
}

func newTestStream() *stream {
	return &stream{changed: make(chan struct{}, 1), silent: make(map[uint64]bool)}
}

// What siw loses counts as flushed; what it completes after refusing it does not count.
func TestStreamMakesUpForWhatSiwLoses(t *testing.T) {
	e := &Endpoint{s: newTestStream()}
	for id := range uint64(5) {
		e.s.posted(id, true)
	}
	e.s.posted(8, false)
	e.s.posted(9, false)
	e.s.refused(2)
	for _, wc := range []conformance.WC{
		{ID: 0, Op: conformance.OpSend},
		{ID: 0, Op: conformance.OpSend, Status: conformance.Flushed},
		{ID: 2, Op: conformance.OpRead, Status: conformance.Flushed},
		{ID: 9, Op: conformance.OpWrite, Status: conformance.Failed}, // not signaled, and failed
		{ID: 3, Op: conformance.OpRead},
	} {
		e.s.happens(event{kind: "wc", wc: wc})
	}
	e.s.happens(event{kind: "end"})
	var got []uint64
	for {
		wc, err := e.Completion(context.Background())
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if ok := wc.ID == 0 || wc.ID == 3; ok != (wc.Status == conformance.OK) {
			t.Errorf("%+v", wc)
		}
		got = append(got, wc.ID)
	}
	if want := []uint64{0, 9, 3, 1, 4}; !slices.Equal(got, want) {
		t.Errorf("completions %v, want %v", got, want)
	}
	if end, err := e.End(context.Background()); err != nil || end.How != conformance.HowUnknown {
		t.Errorf("%v, %v", end, err)
	}
}

func TestWaitsEndWithTheirContextAndWithTheAgent(t *testing.T) {
	e := &Endpoint{s: newTestStream()}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Completion(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("completion: %v", err)
	}
	e.s.happens(event{kind: "dead"})
	if _, err := e.End(context.Background()); !errors.Is(err, errDead) {
		t.Errorf("end: %v", err)
	}
}

// An empty element in a longer list crashes siw's kernel.
func TestEmptyElementsAreLeftOut(t *testing.T) {
	r := conformance.Region{ID: 7}
	for want, sgl := range map[string][]conformance.SGE{
		"":               nil,
		" 7 5 0":         {{Region: r, Off: 5}},
		" 7 0 1 7 -64 2": {{Region: r, Len: 1}, {Region: r, Off: 9}, {Region: r, Off: -64, Len: 2}},
	} {
		if got := elements(sgl); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Without siw the agent can do nothing, and has to report that.
func TestAgentIsBuiltOnceAndNamesWhatItMisses(t *testing.T) {
	if out, err := exec.Command("dpkg-query", append([]string{"-W"}, Packages...)...).CombinedOutput(); err != nil {
		t.Skipf("the agent can't be built here: %s", out)
	}
	cache := t.TempDir()
	if err := os.WriteFile(filepath.Join(cache, "agent-old"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	path, err := Build(context.Background(), cache)
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Build(context.Background(), cache); again != path || err != nil {
		t.Errorf("again: %s, %v", again, err)
	}
	after, err := os.Stat(path)
	if err != nil || !after.ModTime().Equal(before.ModTime()) {
		t.Errorf("it was built twice: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "no-such-device").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "there is no such RDMA device") {
		t.Errorf("%v: %s", err, out)
	}
}
