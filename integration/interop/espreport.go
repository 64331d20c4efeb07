package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func (o *espOutcome) passed() int {
	k, _, _ := countTests(o.kernel)
	others, _, _ := countTests(o.others)
	return k + others + o.matrixRows()
}

// unexpected names what is not as expected: a test that needs the kernel's ESP must not
// be skipped here. A program that did not run to its end is one more.
func (o *espOutcome) unexpected() []string {
	names := slices.Concat(namesOf(o.kernel, resultFail, resultSkip), namesOf(o.others, resultFail), o.broken)
	if o.matrix != nil {
		names = append(names, o.matrix.Failed()...)
	}
	return names
}

// matrixRows is how many rows of the matrix are as expected.
func (o *espOutcome) matrixRows() int {
	if o.matrix == nil {
		return 0
	}
	work, refused, _ := o.matrix.Count()
	return work + refused
}

// rows are the tests that have a row of their own.
func (o *espOutcome) rows() []Test { return rowsOf(slices.Concat(o.kernel, o.others)) }

// othersLine sums up the tests that have no row.
func (o *espOutcome) othersLine() string {
	return othersLine(o.others, "%d other tests of integration/ipsectest passed", "%d are about something else than the kernel's ESP")
}

// print reports the results in short and failures in full, with the logs in dir.
func (o *espOutcome) print(w io.Writer, dir string) {
	printRows(w, "the kernel's ESP", o.rows())
	if len(o.others) > 0 {
		fmt.Fprintln(w, o.othersLine())
	}
	if o.matrix != nil {
		fmt.Fprintln(w, o.matrix.Summary())
		for _, f := range o.matrix.Failed() {
			fmt.Fprintln(w, "FAILED:", f)
		}
	}
	o.trouble.print(w)
	for _, p := range []struct {
		name  string
		tests []Test
	}{{logKernel, o.kernel}, {logOthers, o.others}} {
		log, _ := filepath.Glob(filepath.Join(dir, "esp*", p.name+".log"))
		if len(log) == 0 {
			continue
		}
		b, _ := os.ReadFile(log[len(log)-1])
		for _, t := range p.tests {
			if t.Result == resultFail {
				fmt.Fprintf(w, "\n%s: FAILED\n%s\n", t.Name, complaints(string(b), t.Name))
			}
		}
	}
}

// complaints are a log's lines about a test and those below it, without the log lines
// of the program under test and of strongSwan.
func complaints(log, name string) string {
	var b strings.Builder
	ours := false
	for line := range strings.Lines(log) {
		if m := testRun.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
			ours = m[1] == name || strings.HasPrefix(m[1], name+"/")
			continue
		}
		if ours && !strings.Contains(line, " level=") && !strings.HasPrefix(line, "===") && !charonLine.MatchString(line) {
			b.WriteString(line)
		}
	}
	return strings.TrimRight(tailLines(b.String(), 60), "\n")
}

// charonLine matches a line of strongSwan's log, whose end a failed test prints.
var charonLine = regexp.MustCompile(`^\s+[0-9][0-9]:[0-9][0-9]:[0-9][0-9] [0-9][0-9]\[`)

func tailLines(s string, n int) string {
	lines := strings.SplitAfter(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// document is the part of docs/interop.md about the kernel's ESP. What was measured is
// only printed: it differs from run to run.
func (o *espOutcome) document(w io.Writer) {
	fmt.Fprint(w, espHead)
	documentRows(w, "between two hosts", o.rows())
	fmt.Fprintf(w, "\n%s.", o.othersLine())
	if o.matrix != nil {
		fmt.Fprintf(w, " The matrix of algorithms, modes and ways to authenticate is in [ipsec-matrix.md](ipsec-matrix.md): %s.", strings.TrimRight(o.matrix.Summary(), "."))
	}
	fmt.Fprintln(w)
}

const espHead = `
## Kernel ESP

Another virtual machine has two hosts with a strongSwan each and the kernel's ESP between them, the guard of package ipsec on both. Both
modes, both families; the SA is deleted under load, charon is killed; siw is one end of the stream, inside the same SA, its host guarded by
IronWarp or with a strongSwan that was configured by hand. A capture of the wire decides whether a packet left in clear. Rows that begin
with "control" take the protection away and have to see it. How long streams stood still and how fast they were is printed by the run.

`
