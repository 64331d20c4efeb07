package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func TestStreamsAreTheSameOnlyWithIDAndAge(t *testing.T) {
	at := func(id string, age float64) api.Stream { return api.Stream{ID: id, AgeSeconds: age} }
	before := []api.Stream{at("a", 10), at("b", 10)}
	cases := map[string]struct {
		after []api.Stream
		want  bool
	}{
		"both older":    {[]api.Stream{at("a", 40), at("b", 40.5)}, true},
		"another id":    {[]api.Stream{at("a", 40), at("c", 40)}, false},
		"one is gone":   {[]api.Stream{at("a", 40)}, false},
		"one more":      {[]api.Stream{at("a", 40), at("b", 40), at("c", 1)}, false},
		"one too young": {[]api.Stream{at("a", 40), at("b", 12)}, false},
		"none":          {nil, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if same, text := SameStreams(before, c.after, 30*time.Second); same != c.want {
				t.Errorf("same is %v: %s", same, text)
			}
		})
	}
	if same, _ := SameStreams(nil, nil, 0); same {
		t.Error("no streams at all passed for the same streams")
	}
}

func TestFioReportMustProveThatAllWasVerified(t *testing.T) {
	cases := map[string]struct{ report, want string }{
		"good":        {`{"jobs":[{"error":0,"read":{"io_bytes":100},"write":{"io_bytes":100}}]}`, ""},
		"warning":     {"fio: note\n" + `{"jobs":[{"error":0,"read":{"io_bytes":100},"write":{"io_bytes":100}}]}`, ""},
		"error":       {`{"jobs":[{"error":5,"read":{"io_bytes":100},"write":{"io_bytes":100}}]}`, "error 5"},
		"not read":    {`{"jobs":[{"error":0,"read":{"io_bytes":40},"write":{"io_bytes":100}}]}`, "40 verified"},
		"not written": {`{"jobs":[{"error":0,"read":{"io_bytes":0},"write":{"io_bytes":0}}]}`, "0 bytes written"},
		"garbage":     {`no report`, "not understood"},
		"no job":      {`{"jobs":[]}`, "not understood"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var sum Done
			err := sum.add([]byte(c.report))
			switch {
			case c.want == "" && (err != nil || sum.Written != 100 || sum.Read != 100):
				t.Errorf("%v, sum %+v", err, sum)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

func TestStallIsTheLongestGapAfterItsMark(t *testing.T) {
	epoch := time.UnixMilli(1_700_000_000_000)
	ms := func(n int) time.Time { return epoch.Add(time.Duration(n) * time.Millisecond) }
	pass := func(at ...int) (ends []End) {
		for _, n := range at {
			ends = append(ends, End{At: ms(n)})
		}
		return ends
	}
	// 100..110 quick, a gap of 300 around the mark at 120, then quick again; the
	// second pass begins 5 s later and has a gap of 70 after the mark at 6010.
	d := Done{Ends: [][]End{pass(100, 105, 110, 410, 420), pass(6000, 6010, 6080, 6090)}}
	cases := map[string]struct {
		marks []int
		want  []int
	}{
		"counted from the mark":         {[]int{120}, []int{290}},
		"the longest of two":            {[]int{101}, []int{300}},
		"next mark ends the first":      {[]int{120, 6010}, []int{290, 70}},
		"two marks in one gap":          {[]int{120, 300}, []int{290, 70}},
		"between passes nothing counts": {[]int{430, 6005}, []int{70}},
		"after the last I/O":            {[]int{7000}, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var marks []time.Time
			for _, m := range c.marks {
				marks = append(marks, ms(m))
			}
			var got []int
			for _, s := range d.Stalls(marks) {
				got = append(got, int(s.For.Milliseconds()))
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("stalls %v, want %v", got, c.want)
			}
		})
	}
}

func TestLatencyLogIsReadOrRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1795246722429, 164595, 1, 65536, 0\n1795246722432, 52298, 0, 65536, 0\n")
	ends, err := readEnds(path)
	want := []End{{time.UnixMilli(1795246722429), 164595}, {time.UnixMilli(1795246722432), 52298}}
	if err != nil || !slices.Equal(ends, want) {
		t.Errorf("%v, %v", ends, err)
	}
	for _, bad := range []string{"what\n", "1, x, 1\n"} {
		write(bad)
		if _, err := readEnds(path); err == nil {
			t.Errorf("%q was understood", bad)
		}
	}
}
