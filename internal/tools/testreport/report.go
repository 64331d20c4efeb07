package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

func (r *runner) printPackage(pass, what string, d packageDone) {
	if d.noTests && d.outcome != failed {
		return
	}
	word := "ok  "
	if d.outcome == failed {
		word = "FAIL"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %-6s %-40s %6.1fs  %d passed", word, pass, what, d.elapsed, d.passed)
	if d.failed > 0 {
		fmt.Fprintf(&b, ", %d failed", d.failed)
	}
	if d.skips > 0 {
		fmt.Fprintf(&b, ", %d skipped", d.skips)
	}
	fmt.Fprintln(r, b.String())
}

// shorten drops the host, owner and module of an import path.
func shorten(pkg string) string {
	if parts := strings.SplitN(pkg, "/", 4); len(parts) == 4 {
		return parts[3]
	}
	return pkg
}

// unlocked: all has ended.
func (r *runner) report() bool {
	if len(r.results.measured) > 0 {
		fmt.Fprintln(r.out, "\nmeasured:")
	}
	for _, m := range r.results.measured {
		fmt.Fprintf(r.out, "  %s %s: %s\n", shorten(m.key.pkg), m.key.test, m.text)
	}
	if skips := r.results.leaves(skipped); len(skips) > 0 {
		fmt.Fprintf(r.out, "\nskipped, and why:\n")
		for _, g := range groupSkips(r.results, skips) {
			fmt.Fprintf(r.out, "  %s\n", g.reason)
			for _, t := range g.tests {
				fmt.Fprintf(r.out, "    %s\n", t)
			}
		}
	}
	r.printTimes()
	// Last, as the end of a long log is what one reads.
	bad := r.results.leaves(failed)
	for _, k := range bad {
		v := r.results.tests[k]
		name := k.test
		if name == "" {
			name = "(the package itself)"
		}
		fmt.Fprintf(r.out, "\n--- FAIL: %s %s [%s]\n", shorten(k.pkg), name, v.pass)
		for _, line := range clip(v.output, 200) {
			fmt.Fprint(r.out, "    ", line)
		}
	}
	fmt.Fprintln(r.out)
	return len(bad) == 0 && len(r.broken) == 0
}

// longest is how many steps the table of times names one by one.
const longest = 20

// printTimes prints where the time went: what each step took by the clock, and in
// processor time.
//
// unlocked: all has ended.
func (r *runner) printTimes() {
	if len(r.times) == 0 {
		return
	}
	slices.SortFunc(r.times, func(a, b timing) int { return cmp.Compare(b.wall, a.wall) })
	fmt.Fprintf(r.out, "\n%-6s %-44s %8s %8s\n", "where", "the time went", "clock", "CPU")
	line := func(pass, what string, wall, cpu time.Duration) {
		fmt.Fprintf(r.out, "%-6s %-44s %7.1fs %7.1fs\n", pass, what, wall.Seconds(), cpu.Seconds())
	}
	type sum struct {
		steps int
		cpu   time.Duration
	}
	passes := make(map[string]sum)
	var all time.Duration
	for i, t := range r.times {
		if i < longest {
			line(t.pass, t.what, t.wall, t.cpu)
		}
		s := passes[t.pass]
		passes[t.pass] = sum{s.steps + 1, s.cpu + t.cpu}
		all += t.cpu
	}
	for _, pass := range []string{"vet", "build", passHosts, passWeak, passRace, passPlain, "nested"} {
		if s, ok := passes[pass]; ok {
			fmt.Fprintf(r.out, "%-6s %-44s %8s %7.1fs\n", pass, fmt.Sprintf("all %d", s.steps), "", s.cpu.Seconds())
		}
	}
	line("", "all", time.Since(r.begin), all)
}

type skipGroup struct {
	reason string
	tests  []string
}

// unlocked: all has ended.
func groupSkips(r *results, keys []testKey) []skipGroup {
	byReason := make(map[string][]string)
	for _, k := range keys {
		reason := skipReason(r.tests[k].output)
		byReason[reason] = append(byReason[reason], shorten(k.pkg)+" "+k.test)
	}
	var groups []skipGroup
	for reason, tests := range byReason {
		groups = append(groups, skipGroup{reason, tests})
	}
	slices.SortFunc(groups, func(a, b skipGroup) int { return strings.Compare(a.reason, b.reason) })
	return groups
}

// clip keeps the head and tail of a long output.
func clip(lines []string, limit int) []string {
	if len(lines) <= limit {
		return lines
	}
	cut := []string{fmt.Sprintf("... %d lines ...\n", len(lines)-limit)}
	return slices.Concat(lines[:limit/2], cut, lines[len(lines)-limit/2:])
}

// unlocked: all has ended.
func (r *runner) closingLine() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped",
		len(r.results.leaves(passed)), len(r.results.leaves(failed))+len(r.broken), len(r.results.leaves(skipped)))
}
