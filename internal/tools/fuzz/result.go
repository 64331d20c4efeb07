package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// parseList takes targets out of what go test -list -json prints.
func parseList(out []byte) (targets []target, err error) {
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var ev struct{ Action, Package, Output string }
		if err := dec.Decode(&ev); err != nil {
			return nil, fmt.Errorf("read the list of targets: %w", err)
		}
		if name := strings.TrimSpace(ev.Output); ev.Action == "output" && strings.HasPrefix(name, "Fuzz") {
			targets = append(targets, target{ev.Package, name})
		}
	}
	return targets, nil
}

// result is how a run ended.
type result struct {
	failed      bool
	execs       string
	interesting string
	output      string // without the lines of progress
}

func (r result) String() string {
	what := "ok"
	if r.failed {
		what = "FOUND SOMETHING"
	}
	if r.execs != "" {
		what += fmt.Sprintf(", %s runs, %s new inputs", r.execs, r.interesting)
	}
	return what
}

var progress = regexp.MustCompile(`^fuzz: elapsed: .*?(?:execs: (\d+) .*new interesting: (\d+).*)?$`)

// judge interprets the output of go test. If time runs out in the middle of a
// run, go test may fail with just "context deadline exceeded". That is no
// finding: a finding has a failing input or a panic.
func judge(out string, failed bool) (r result) {
	var rest []string
	overtime := false
	for line := range strings.Lines(out) {
		line = strings.TrimRight(line, "\n")
		if m := progress.FindStringSubmatch(line); m != nil {
			if m[1] != "" {
				r.execs, r.interesting = m[1], m[2]
			}
			continue
		}
		overtime = overtime || strings.TrimSpace(line) == "context deadline exceeded"
		rest = append(rest, line)
	}
	r.output = strings.Join(rest, "\n")
	finding := strings.Contains(r.output, "Failing input written to") || strings.Contains(r.output, "panic:") || strings.Contains(r.output, "fatal error:")
	r.failed = failed && (finding || !overtime)
	return r
}
