package repeats

import (
	"bytes"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A peer that does the same thing without end takes as many lines of the log as
// the number of times has digits, three each; other kinds and peers are not
// affected.
func TestRepeatedLinesAreLoggedAtOneTwoFiveTenAndSoOn(t *testing.T) {
	var out bytes.Buffer
	h := New(slog.NewTextHandler(&out, nil))
	now := time.Unix(1000, 0)
	h.seen.now = func() time.Time { return now }
	log := slog.New(h)
	const storm = 1234
	for range storm {
		log.Warn("connection refused", "peer", "beta", "reason", "not_covered")
		log.With("peer", "delta").Info("path lost")
		log.Warn("permissive: denied, and let pass", "label", "hpc_t", "reason", "not allowed")
	}
	log.Warn("connection refused", "peer", "beta", "reason", "wrong_identity")
	log.Warn("connection refused", "peer", "gamma", "reason", "not_covered")
	for range 7 {
		log.Info("configuration", "change", "peer beta changed")
	}
	numbers := func(line string) (n []int) {
		for l := range strings.Lines(out.String()) {
			if !strings.Contains(l, line) {
				continue
			}
			n = append(n, 1)
			if m := regexp.MustCompile(Attr + `=(\d+)`).FindStringSubmatch(l); m != nil {
				n[len(n)-1], _ = strconv.Atoi(m[1])
			}
		}
		return n
	}
	const sequence = "[1 2 5 10 20 50 100 200 500 1000]"
	for _, line := range []string{"peer=beta reason=not_covered", "peer=delta", "label=hpc_t"} {
		if got := fmt.Sprint(numbers(line)); got != sequence {
			t.Errorf("%s: lines at %s, want %s", line, got, sequence)
		}
	}
	for line, want := range map[string]int{"wrong_identity": 1, "peer=gamma": 1, "configuration": 7} {
		if got := len(numbers(line)); got != want {
			t.Errorf("%d lines with %s, want %d", got, line, want)
		}
	}
	out.Reset()
	h.Report(log)
	if out.Len() > 0 {
		t.Errorf("it is not quiet yet:\n%s", out.String())
	}
	now = now.Add(quietAfter)
	h.Report(log)
	for _, want := range []string{`what="connection refused" reason=not_covered from=beta in_all=1234 since_the_last_line=234`, `what="path lost" from=delta in_all=1234`, `what="permissive: denied, and let pass" reason="not allowed" in_all=1234`} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("no line with %s:\n%s", want, out.String())
		}
	}
	if strings.Count(out.String(), "\n") != 3 {
		t.Errorf("more is said than was left out:\n%s", out.String())
	}
	out.Reset()
	for i := range 3 {
		log.Warn("connection refused", "peer", "beta", "reason", "not_covered")
		if i == 0 && (strings.Count(out.String(), "\n") != 1 || strings.Contains(out.String(), Attr)) {
			t.Errorf("after a quiet time it is not the first again:\n%s", out.String())
		}
	}
	h.Forget("beta")
	out.Reset()
	log.Warn("connection refused", "peer", "beta", "reason", "not_covered")
	if strings.Count(out.String(), "\n") != 1 || strings.Contains(out.String(), Attr) {
		t.Errorf("what a peer does that was away is not the first again:\n%s", out.String())
	}
}

// Events that were counted in one count as many.
func TestRecordThatStandsForManyCountsAsMany(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(New(slog.NewTextHandler(&out, nil)))
	for range 2 {
		log.Warn("peer fault", "peer", "beta", Attr, 30)
	}
	if got := regexp.MustCompile(Attr+`=\d+`).FindAllString(out.String(), -1); len(got) != 2 || got[0] != "like_this=30" || got[1] != "like_this=60" {
		t.Errorf("lines with %v, want 30 and then 60:\n%s", got, out.String())
	}
}

// Whoever finds ever new names for himself takes neither memory nor lines without
// bound.
func TestKindsOfRepeatedLinesAreBounded(t *testing.T) {
	var out bytes.Buffer
	h := New(slog.NewTextHandler(&out, nil))
	log := slog.New(h)
	const names = 50_000
	for i := range names {
		log.Warn("connection refused", "peer", "stranger"+strconv.Itoa(i))
	}
	if n := len(h.seen.keys); n > maxRepeats+1 {
		t.Errorf("%d kinds are remembered, want at most %d", n, maxRepeats+1)
	}
	if n := strings.Count(out.String(), "\n"); n > maxRepeats+20 {
		t.Errorf("%d lines for %d names", n, names)
	}
}
