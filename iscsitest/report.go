package iscsitest

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// Line is a result in one line for people: the verdict, the case, and what was found. A sentence that was broken
// follows in another.
func (x *Result) Line() string {
	s := fmt.Sprintf("%-12s %s", x.Verdict, x.Case)
	if x.Found != "" {
		s += ": " + x.Found
	}
	if x.Verdict == Fail || x.Verdict == Warn {
		s += fmt.Sprintf("\n             %s: %s", x.Source, x.Says)
	}
	return s
}

// Summary says how many results have which verdict.
func (r *Report) Summary() string {
	var parts []string
	for v := range Verdict(len(verdictNames)) {
		if n := r.Count(v); n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	return fmt.Sprintf("%d cases: %s", len(r.Results), strings.Join(parts, ", "))
}

// maxFound is how much Markdown shows of what was found, in bytes.
const maxFound = 200

// Markdown is the report as a section of a document: how many cases of each group have which verdict, and what was found.
func (r *Report) Markdown(title string) string {
	var b strings.Builder
	scheme, _, _ := strings.Cut(r.Target, "://")
	fmt.Fprintf(&b, "## %s, %s\n\n| group |", title, scheme)
	columns := []Verdict{Pass, Fail, Warn, Skip, Inconclusive}
	if r.Count(TargetDown) > 0 {
		columns = append(columns, TargetDown)
	}
	for _, v := range columns {
		fmt.Fprintf(&b, " %v |", v)
	}
	fmt.Fprintf(&b, "\n| --- |%s\n", strings.Repeat(" --- |", len(columns)))
	var groups []string
	counts := map[string]map[Verdict]int{}
	for i := range r.Results {
		g, _, _ := strings.Cut(r.Results[i].Case, ".")
		if counts[g] == nil {
			groups = append(groups, g)
			counts[g] = map[Verdict]int{}
		}
		counts[g][r.Results[i].Verdict]++
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "| %s |", g)
		for _, v := range columns {
			fmt.Fprintf(&b, " %d |", counts[g][v])
		}
		b.WriteString("\n")
	}
	if r.Count(Pass)+r.Count(Skip) < len(r.Results) {
		b.WriteString("\n")
	}
	for i := range r.Results {
		x := &r.Results[i]
		if x.Verdict == Pass || x.Verdict == Skip {
			continue
		}
		found := x.Found
		if len(found) > maxFound {
			found = strings.ToValidUTF8(found[:maxFound], "") + " ..."
		}
		fmt.Fprintf(&b, "- %s `%s` (%s: %s): %s\n", x.Verdict, x.Case, x.Source, x.Says, found)
	}
	return b.String()
}

// The parts of JUnit's XML that its readers have in common.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string        `xml:"classname,attr"`
		Name    string        `xml:"name,attr"`
		Time    string        `xml:"time,attr"` // seconds
		Failure *junitMessage `xml:"failure"`
		Error   *junitMessage `xml:"error"`
		Skipped *junitMessage `xml:"skipped"`
		Output  string        `xml:"system-out,omitempty"`
	}
	junitMessage struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes the reports as JUnit's XML: a FAIL is a failure, TARGET-DOWN and INCONCLUSIVE are errors, and
// a WARN passes with a text. It fails as w does.
func WriteJUnit(w io.Writer, reports ...*Report) error {
	var all junitSuites
	for _, r := range reports {
		s := junitSuite{Name: r.Target, Tests: len(r.Results), Failures: r.Count(Fail), Errors: r.Count(TargetDown) + r.Count(Inconclusive), Skipped: r.Count(Skip)}
		for i := range r.Results {
			x := &r.Results[i]
			c := junitCase{Class: "iscsitest." + x.Over.String(), Name: x.Case, Time: fmt.Sprintf("%.3f", x.Took.Seconds())}
			m := &junitMessage{Message: x.Found, Text: x.Source + ": " + x.Says + "\n" + trace(x.Trace)}
			switch x.Verdict {
			case Fail:
				c.Failure = m
			case TargetDown, Inconclusive:
				c.Error = m
			case Skip:
				c.Skipped = &junitMessage{Message: m.Message}
			case Warn:
				c.Output = "WARN: " + m.Message + "\n" + m.Text
			}
			s.Cases = append(s.Cases, c)
		}
		all.Suites = append(all.Suites, s)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(&all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

// shownEvents is how many events a trace in words has: the last.
const shownEvents = 60

// trace is a trace in words.
func trace(events []Event) string {
	var b strings.Builder
	if n := len(events) - shownEvents; n > 0 {
		fmt.Fprintf(&b, "(%d events before these)\n", n)
		events = events[n:]
	}
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// Words is what was sent and received, in words.
func (x *Result) Words() string { return trace(x.Trace) }
