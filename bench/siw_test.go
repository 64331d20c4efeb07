package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const perftestReport = `
 TX depth        : 64
---------------------------------------------------------------------------------------
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]
 64      4000          32.22          195710.40      35.15    	       996.40      	-nan   		13872.37
---------------------------------------------------------------------------------------
`

func TestPerftestReportIsRead(t *testing.T) {
	if v, err := reported(perftestReport, 4); v != 35.15 || err != nil {
		t.Errorf("typical latency %v, %v", v, err)
	}
	if v, err := reported(strings.Replace(perftestReport, "35.15", "inf", 1), 4); err != nil || v < 1e300 {
		t.Errorf("of an infinite one: %v, %v", v, err)
	}
	if _, err := reported("Failed to connect\n 1 2\n", 4); err == nil || !strings.Contains(err.Error(), "Failed to connect") {
		t.Errorf("no report: %v", err)
	}
}

func TestEverySiwRowHasItsContenders(t *testing.T) {
	_, all := siwContenders(&bench{})
	for _, r := range siwRows() {
		for _, f := range append([]ref{r.ours}, r.rival...) {
			if all[f.contender] == nil {
				t.Errorf("row %q: no contender %q", r.name, f.contender)
			}
		}
	}
}

func TestEveryStreamRowHasItsContenders(t *testing.T) {
	b := &bench{pion: "pion"}
	for _, g := range []struct {
		rows []row
		all  map[string]streamContender
	}{
		{slices.Concat(streamRows(), framingRows(), manyRows()), streamContenders(b, time.Second)},
		{overSCTPRows(), overSCTPContenders(b, time.Second)},
		{pionRows(), pionContenders(b, time.Second)},
	} {
		wantContenders(t, g.rows, g.all)
	}
	_, kernel := guestSCTPContenders(nil)
	for _, r := range kernelSCTPRows() {
		for _, f := range append([]ref{r.ours}, r.rival...) {
			if kernel[f.contender] == nil {
				t.Errorf("row %q: no contender %q", r.name, f.contender)
			}
		}
	}
}

func wantContenders(t *testing.T, rows []row, all map[string]streamContender) {
	t.Helper()
	for _, r := range rows {
		for _, f := range append([]ref{r.ours}, r.rival...) {
			if all[f.contender].run == nil {
				t.Errorf("row %q: no contender %q", r.name, f.contender)
			}
		}
	}
}

func TestGuestScriptIsShell(t *testing.T) {
	for role, g := range guests() {
		script := g.command("/a b/bench", "/a b/ironwarp", []string{"it's one"}, 3)
		cmd := exec.Command("bash", "-n")
		cmd.Stdin = strings.NewReader(script)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		if want := `'/a b/bench' '-ironwarp' '/a b/ironwarp' '-role' '` + role + `' '-rounds' '3' '-out' '/mnt/out/rounds.json' 'it'\''s one'`; !strings.Contains(script, want) {
			t.Errorf("the script lacks %q:\n%s", want, script)
		}
	}
}

func TestGroupThatCannotBeMeasuredHereIsLeftOutWithTheReason(t *testing.T) {
	why := func(err error) group {
		return group{name: "siw", rounds: 1, rows: []row{{name: "a"}, {name: "b"}},
			elsewhere: func(context.Context, *bench, []string, int) ([]map[string]metrics, error) { return nil, err }}
	}
	b := &bench{}
	rs, err := b.run(t.Context(), []group{why(leftOut("no root")), why(errors.Join(leftOut("no kernel")))}, regexp.MustCompile(""))
	if err != nil || len(rs) != 0 || len(b.leftOut) != 2 || b.leftOut[0] != "2 rows of siw are left out: no root" || !strings.HasSuffix(b.leftOut[1], "no kernel") {
		t.Errorf("results %v, error %v, left out %q", rs, err, b.leftOut)
	}
}

func TestRoundsMeasuredElsewhereCount(t *testing.T) {
	g := group{name: "siw", rounds: 3, rows: []row{{name: "r", unit: "x", ours: ref{"us", "v"}, rival: []ref{{"them", "v"}}}},
		elsewhere: func(_ context.Context, _ *bench, names []string, n int) ([]map[string]metrics, error) {
			if strings.Join(names, " ") != "us them" || n != 3 {
				t.Errorf("asked for %d rounds of %q", n, names)
			}
			return rounds([2]float64{1, 2}, [2]float64{1, 4}, [2]float64{1, 1}), nil
		}}
	rs, err := (&bench{progress: io.Discard}).run(t.Context(), []group{g}, regexp.MustCompile(""))
	if err != nil || len(rs) != 1 || *rs[0].Ratio != 0.5 {
		t.Errorf("%v, %v", rs, err)
	}
}

func TestListenerIsSeen(t *testing.T) {
	ln, err := net.Listen("tcp4", anyLoopback)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	port := ln.Addr().(*net.TCPAddr).Port
	// Other tests may have left the process's first thread in another namespace.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := listening(unix.Gettid(), port); err != nil {
		t.Error(err)
	}
	ln.Close()
	if err := listening(unix.Gettid(), port); err == nil {
		t.Errorf("something still listens on port %d", port)
	}
}

func TestPinnedThreadsAreFreedAgain(t *testing.T) {
	processors := func() int {
		var set unix.CPUSet
		if err := unix.SchedGetaffinity(0, &set); err != nil {
			t.Fatal(err)
		}
		return set.Count()
	}
	before := processors()
	free, err := pin(func(cpu, _ int) bool { return cpu == 0 })
	if err != nil {
		t.Fatal(err)
	}
	if got := processors(); got != 1 {
		t.Errorf("pinned to %d processors", got)
	}
	free()
	if got := processors(); got != before {
		t.Errorf("%d processors afterwards, %d before", got, before)
	}
}
