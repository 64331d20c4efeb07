package siw

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

	"github.com/ironwarp/ironwarp/iwarptest/conformance"
	"github.com/ironwarp/ironwarp/verbs"
)

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
	e := &endpoint{s: newTestStream()}
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
	e := &endpoint{s: newTestStream()}
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

func TestVariantsSayWhatTheyAre(t *testing.T) {
	seen := make(map[string]bool)
	for _, v := range Variants() {
		if seen[v.Name()] {
			t.Errorf("two variants are called %s", v.Name())
		}
		seen[v.Name()] = true
		p, m := v.parameters(), v.setup()
		if crc := p["mpa_crc_required"] == "1"; crc != v.CRC || crc == m.NoCRC {
			t.Errorf("%s: siw's CRC %s, ours %v", v.Name(), p["mpa_crc_required"], !m.NoCRC)
		}
		if v.Dial != (m.PeerToPeer != 0 || m.Plain) && (v.RTR != 0 || v.MPA1) {
			t.Errorf("%s: our start-up is %+v", v.Name(), m)
		}
	}
	v := Variant{RTR: verbs.RTRRead, CRC: true}
	if p := v.parameters(); v.Name() != "siw-dials-ipv4-crc-p2p-read" || v.Feature() != "CRC, peer-to-peer by read" || p["rtr_type"] != "16384" || p["peer_to_peer"] != "1" {
		t.Errorf("%s, %s: %v", v.Name(), v.Feature(), p)
	}
	v = Variant{Dial: true, IPv6: true, RTR: verbs.RTRWrite | verbs.RTRRead}
	if p := v.parameters(); v.Name() != "we-dial-ipv6-nocrc-p2p-write-read" || p["rtr_type"] != "49152" || v.setup().PeerToPeer != v.RTR {
		t.Errorf("%s: %v", v.Name(), p)
	}
}

// Every case must be run somewhere, or be listed as one that siw can't do.
func TestNoCaseIsForgotten(t *testing.T) {
	for _, c := range Cases() {
		runs := slices.ContainsFunc(Variants(), func(v Variant) bool { return v.Dial && v.Runs(c) }) &&
			slices.ContainsFunc(Variants(), func(v Variant) bool { return !v.Dial && v.Runs(c) })
		if !runs {
			t.Errorf("%s runs nowhere", c.Name)
		}
	}
	if got := Lacking(conformance.Case{A: conformance.Atomics | conformance.SGL, B: conformance.Immediate}, true); got != conformance.Atomics {
		t.Errorf("siw, which acts, lacks %v", got)
	}
	if got := Lacking(conformance.Case{A: conformance.Atomics, B: conformance.Immediate | conformance.Inline}, false); got != conformance.Immediate {
		t.Errorf("siw, which does not act, lacks %v", got)
	}
}

func TestResultsThatBreakOffAreIncomplete(t *testing.T) {
	const one = `{"Variant":"v","Case":"c","SiwActs":true,"Failed":true,"Seconds":1.5,"Flows":["a-b"]}` + "\n"
	for in, want := range map[string]bool{one + `{"End":true}` + "\n": true, one: false} {
		rs, complete, err := ReadResults(strings.NewReader(in))
		if err != nil || complete != want || len(rs) != 1 || !rs[0].SiwActs || rs[0].Flows[0] != "a-b" {
			t.Errorf("%+v, %v, %v", rs, complete, err)
		}
	}
	if _, _, err := ReadResults(strings.NewReader(one + `{"Var`)); err == nil {
		t.Error("half a line is taken")
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
