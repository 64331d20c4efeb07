package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

// Test is a test in the virtual machine, from the log of go test.
type Test struct {
	Name   string
	Result string // PASS, FAIL or SKIP
	Why    string // it was skipped
	// Row is what the test shows, in words, if it has a row of its own; Detail is what it
	// measured.
	Row, Detail string
}

// The results.
const (
	resultPass = "PASS"
	resultFail = "FAIL"
	resultSkip = "SKIP"
)

var (
	testEnd  = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \([0-9.]+s\)$`)
	testAttr = regexp.MustCompile(`^=== ATTR  (\S+) (row|detail) (.*)$`)
	testRun  = regexp.MustCompile(`^=== (?:RUN|NAME|CONT)\s+(\S+)$`)
	testSkip = regexp.MustCompile(`^    \S+\.go:\d+: (.*)$`)
)

// readTests reads the log of a test program that ran with -test.v: its top-level
// tests, and those below them that have a row. A test that has begun and not
// ended has failed.
func readTests(log string) []Test {
	var order []string
	all := make(map[string]*Test)
	of := func(name string) *Test {
		if all[name] == nil {
			all[name] = &Test{Name: name, Result: resultFail}
			order = append(order, name)
		}
		return all[name]
	}
	said := "" // by the test that is running
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\n")
		if m := testRun.FindStringSubmatch(line); m != nil {
			of(m[1])
			said = ""
		} else if m := testAttr.FindStringSubmatch(line); m != nil {
			t := of(m[1])
			if m[2] == "row" {
				t.Row = m[3]
			} else {
				t.Detail = m[3]
			}
		} else if m := testEnd.FindStringSubmatch(line); m != nil {
			t := of(m[2])
			t.Result = m[1]
			if t.Result == resultSkip {
				t.Why = said
			}
		} else if m := testSkip.FindStringSubmatch(line); m != nil {
			said = m[1]
		}
	}
	inOrder(order)
	var out []Test
	for _, name := range order {
		if t := all[name]; t.Row != "" || !strings.Contains(name, "/") {
			out = append(out, *t)
		}
	}
	return parents(out)
}

// inOrder sorts tests, which a log names in the order of their beginning, into the order
// of their declaration: siblings begin in that order, but the children of parallel tests
// do so whenever their parents run.
func inOrder(names []string) {
	began := make(map[string]int)
	parts := make(map[string][]int)
	for _, name := range names {
		for i, c := range name + "/" {
			if c == '/' {
				if _, ok := began[name[:i]]; !ok {
					began[name[:i]] = len(began)
				}
				parts[name] = append(parts[name], began[name[:i]])
			}
		}
	}
	slices.SortStableFunc(names, func(a, b string) int { return slices.Compare(parts[a], parts[b]) })
}

// parents leaves out passed tests whose parts have rows, which say everything. A test
// that failed stays if none of its rows failed.
func parents(ts []Test) []Test {
	var out []Test
	for _, t := range ts {
		rows, failed := 0, 0
		for _, o := range ts {
			if strings.HasPrefix(o.Name, t.Name+"/") {
				rows++
				if o.Result == resultFail {
					failed++
				}
			}
		}
		if rows == 0 || t.Result == resultFail && failed == 0 {
			out = append(out, t)
		}
	}
	return out
}

// countTests counts results; a skipped test is none.
func countTests(ts []Test) (passed, failed, skipped int) {
	for _, t := range ts {
		switch t.Result {
		case resultPass:
			passed++
		case resultSkip:
			skipped++
		default:
			failed++
		}
	}
	return passed, failed, skipped
}

// namesOf are the names of the tests with one of the results.
func namesOf(ts []Test, results ...string) (names []string) {
	for _, t := range ts {
		if slices.Contains(results, t.Result) {
			names = append(names, t.Name)
		}
	}
	return names
}

func (t Test) result() string {
	switch t.Result {
	case resultPass:
		return "ok"
	case resultSkip:
		return "SKIPPED: " + t.Why
	}
	return "FAILED"
}

// rowsOf are the tests that have a row of their own.
func rowsOf(ts []Test) []Test {
	return slices.DeleteFunc(slices.Clone(ts), func(t Test) bool { return t.Row == "" })
}

// othersLine sums up the tests that have no row. passed and skipped are formats for
// their numbers.
func othersLine(ts []Test, passed, skipped string) string {
	p, f, s := countTests(slices.DeleteFunc(slices.Clone(ts), func(t Test) bool { return t.Row != "" }))
	line := fmt.Sprintf(passed, p)
	if f > 0 {
		line += fmt.Sprintf(", %d FAILED", f)
	}
	if s > 0 {
		line += ", " + fmt.Sprintf(skipped, s)
	}
	return line
}

// printRows prints a table of tests with their measurements.
func printRows(w io.Writer, title string, ts []Test) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintf(t, "\n%s\tresult\n", title)
	for _, r := range ts {
		fmt.Fprintf(t, "%s\t%s\n", r.Row, strings.TrimSuffix(r.result()+"; "+r.Detail, "; "))
	}
	t.Flush()
}

// documentRows is the table of tests in the document.
func documentRows(w io.Writer, title string, ts []Test) {
	row(w, title, "result")
	row(w, "---", "---")
	for _, t := range ts {
		row(w, t.Row, t.result())
	}
}
