package main

import (
	"slices"
	"testing"
)

const ran = `fuzz: elapsed: 0s, gathering baseline coverage: 0/3 completed
fuzz: elapsed: 3s, execs: 1065 (355/sec), new interesting: 133 (total: 196)
fuzz: elapsed: 6s, execs: 5205 (1380/sec), new interesting: 234 (total: 297)
`

func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		name, out    string
		exit, failed bool
	}{
		{"ran to its end", ran + "PASS\nok  \tpkg\t6.1s\n", false, false},
		{"the time was over in the middle", ran + "--- FAIL: FuzzA (6.01s)\n    context deadline exceeded\nFAIL\nexit status 1\nFAIL\tpkg\t6.1s\n", true, false},
		{"a failing input", ran + "--- FAIL: FuzzA (6.01s)\n    --- FAIL: FuzzA (0.00s)\n        x_test.go:1: no\n    \n    Failing input written to testdata/fuzz/FuzzA/1\nFAIL\n", true, true},
		{"a failing input whose text is of time", ran + "--- FAIL: FuzzA (6.01s)\n    --- FAIL: FuzzA (0.00s)\n        context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzA/1\nFAIL\n", true, true},
		{"a seed that fails", "--- FAIL: FuzzA (0.00s)\n    --- FAIL: FuzzA/seed#0 (0.00s)\nFAIL\n", true, true},
		{"does not build", "# pkg\n./x_test.go:1:1: syntax error\nFAIL\tpkg [build failed]\n", true, true},
	} {
		r := judge(tc.out, tc.exit)
		if r.failed != tc.failed {
			t.Errorf("%s: failed %v", tc.name, r.failed)
		}
		if tc.name == "ran to its end" && (r.execs != "5205" || r.interesting != "234" || r.String() != "ok, 5205 runs, 234 new inputs") {
			t.Errorf("%s: %v", tc.name, r)
		}
	}
}

func TestParseList(t *testing.T) {
	got, err := parseList([]byte(`{"Action":"start","Package":"m/a"}
{"Action":"output","Package":"m/a","Output":"FuzzOne\n"}
{"Action":"output","Package":"m/a","Output":"FuzzTwo\n"}
{"Action":"output","Package":"m/a","Output":"ok  \tm/a\t0.003s\n"}
{"Action":"output","Package":"m/b","Output":"?   \tm/b\t[no test files]\n"}
`))
	if want := []target{{"m/a", "FuzzOne"}, {"m/a", "FuzzTwo"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got[0].String() != "a.FuzzOne" {
		t.Errorf("%v", got[0])
	}
}
