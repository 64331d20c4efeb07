package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// report is the result of a run, to be printed and written to the documents.
type report struct {
	kernel, version string
	outcome
	esp     *espOutcome  // nil: it was not run
	sctp    *sctpOutcome // likewise
	outside []*outsideOutcome
}

func newReport(l *lab, o outcome, esp *espOutcome, sctp *sctpOutcome) *report {
	return &report{kernel: l.image.Kernel, version: l.image.Version, outcome: o, esp: esp, sctp: sctp}
}

// passed is how many results are as expected.
func (r *report) passed() int {
	n := r.siwPassed()
	if r.esp != nil {
		n += r.esp.passed()
	}
	if r.sctp != nil {
		n += r.sctp.passed()
	}
	for _, o := range r.outside {
		n += o.passed()
	}
	return n
}

// unexpected names what is not as expected.
func (r *report) unexpected() []string {
	names := r.siwUnexpected()
	if r.esp != nil {
		names = append(names, r.esp.unexpected()...)
	}
	if r.sctp != nil {
		names = append(names, r.sctp.unexpected()...)
	}
	for _, o := range r.outside {
		names = append(names, o.unexpected()...)
	}
	return names
}

func (r *report) skipped() (n int) {
	for _, o := range r.outside {
		n += o.skipped()
	}
	return n
}

// siwPassed is how many runs of rping and of the suite are as expected.
func (r *report) siwPassed() (n int) {
	for _, v := range r.rping {
		if v.Expected() {
			n++
		}
	}
	for _, v := range r.suite {
		if v.Expected() {
			n++
		}
	}
	return n
}

// siwUnexpected names those that are not; a suite that has not come to its end is one
// more.
func (r *report) siwUnexpected() (names []string) {
	for _, v := range r.rping {
		if !v.Expected() {
			names = append(names, v.Name())
		}
	}
	for _, v := range r.suite {
		if !v.Expected() {
			names = append(names, v.TestName())
		}
	}
	if r.broken != "" {
		names = append(names, r.broken)
	}
	return names
}

func (r *report) summary() string {
	lacking := 0
	for _, v := range r.rping {
		if v.Expected() && !v.Worked {
			lacking++
		}
	}
	s := fmt.Sprintf("%d runs of rping and %d of the suite: %d as expected, %d of these because siw can't; %d unexpected",
		len(r.rping), len(r.suite), r.siwPassed(), lacking, len(r.siwUnexpected()))
	if r.esp != nil {
		s += fmt.Sprintf(". Kernel ESP: %d as expected, %d unexpected", r.esp.passed(), len(r.esp.unexpected()))
	}
	if r.sctp != nil {
		s += fmt.Sprintf(". Kernel SCTP: %d as expected, %d unexpected", r.sctp.passed(), len(r.sctp.unexpected()))
	}
	for _, o := range r.outside {
		s += fmt.Sprintf(". %s: %d as expected, %d unexpected", strings.ToUpper(o.title[:1])+o.title[1:], o.passed(), len(o.unexpected()))
		if n := o.skipped(); n > 0 {
			s += fmt.Sprintf(", %d skipped", n)
		}
	}
	return s
}

// rpingRow is a verdict's row.
func rpingRow(v Verdict) []string {
	peer, ip, result := "siw rping as client", "IPv4", v.Result()
	if v.Server == Siw {
		peer = "siw rping as server"
	}
	if v.IPv6 {
		ip = "IPv6"
	}
	return []string{peer, ip, v.Feature(), result + tries(v.Tries)}
}

// tries is a note that a case was repeated.
func tries(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(" (in run %d: before, siw had sent what is wrong on the wire)", n)
}

// print reports the results in short and failures in full: with the log of the
// suite, which is under dir.
func (r *report) print(w io.Writer, dir string) {
	if len(r.rping)+len(r.suite) > 0 {
		r.printSiw(w, dir)
	}
	if r.esp != nil {
		r.esp.print(w, dir)
	}
	if r.sctp != nil {
		r.sctp.print(w)
	}
	for _, o := range r.outside {
		o.print(w, dir)
	}
}

func (r *report) printSiw(w io.Writer, dir string) {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(t, "peer\tnetwork\tfeature\tresult")
	for _, v := range r.rping {
		fmt.Fprintln(t, strings.Join(rpingRow(v), "\t"))
	}
	fmt.Fprintln(t, "\t\t\t\nthe suite\tnetwork\tfeature\tas expected")
	for _, g := range r.variants() {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d of %d in %.0f s\n", g.who, g.network, g.feature, g.good, g.all, g.seconds)
	}
	t.Flush()
	if r.broken != "" {
		fmt.Fprintf(w, "\n%s\n", r.broken)
	}
	for _, v := range r.suite {
		if v.Expected() {
			continue
		}
		log, _ := os.ReadFile(filepath.Join(dir, fmt.Sprintf("try%d", v.Tries), "suite.log"))
		fmt.Fprintf(w, "\n%v\n%s\n", v, testLog(string(log), v.TestName()))
	}
}

// group counts results that have something in common.
type group struct {
	who, network, feature string
	good, all             int
	seconds               float64
}

// variants are the suite's results by variant, in the order of the runs.
func (r *report) variants() []*group {
	var gs []*group
	byName := make(map[string]*group)
	for _, v := range r.suite {
		g := byName[v.Variant]
		if g == nil {
			g = newGroup(v.Variant)
			byName[v.Variant] = g
			gs = append(gs, g)
		}
		g.add(v)
	}
	return gs
}

func (g *group) add(v SuiteVerdict) {
	g.all++
	g.seconds += v.Seconds
	if v.Expected() {
		g.good++
	}
}

// section is the RFC's section that a case is about, without the rule.
func section(rfc string) string {
	f := strings.Fields(rfc)
	if i := slices.Index(f, "section"); i >= 0 && i+1 < len(f) {
		return strings.TrimRight(strings.Join(f[:i+2], " "), ",")
	}
	return rfc
}
