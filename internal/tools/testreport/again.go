package main

import (
	"context"
	"slices"
	"strings"
)

// maxAgain is how many tests get a second try: if more have failed, it was not by
// chance.
const maxAgain = 6

// shakyTest is a test that has failed, and passed when it was run again.
type shakyTest struct {
	key    testKey
	output []string // of the failure
}

// secondTries runs once more the tests that have failed, one after the other, with
// nothing beside them.
//
// unlocked: all has ended.
func (r *runner) secondTries(ctx context.Context) {
	taken := r.results.withdraw()
	if len(taken) == 0 {
		return
	}
	for _, j := range r.jobs {
		var names []string
		for k, v := range taken {
			top, _, _ := strings.Cut(k.test, "/")
			if k.pkg == j.pkg+j.variant && v.pass == j.pass && !slices.Contains(names, top) && (j.tests == nil || slices.Contains(j.tests, top)) {
				names = append(names, top)
			}
		}
		if len(names) > 0 {
			slices.Sort(names)
			j.tests, j.part = names, "again"
			r.job(ctx, j)
		}
	}
	r.results.mu.Lock()
	defer r.results.mu.Unlock()
	for k, v := range taken {
		now, ran := r.results.tests[k]
		switch {
		case !ran:
			r.results.tests[k] = v
		case now.outcome == passed:
			r.shaky = append(r.shaky, shakyTest{k, v.output})
		}
	}
}

// withdraw takes failures back, so that their tests can be run again, unless too many
// tests have failed, or a package has failed as a whole: then other tests of it did not
// run.
func (r *results) withdraw() map[testKey]*verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	taken := make(map[testKey]*verdict)
	tops := make(map[testKey]bool)
	for k, v := range r.tests {
		if v.outcome != failed {
			continue
		}
		if k.test == "" || v.died {
			return nil
		}
		top, _, _ := strings.Cut(k.test, "/")
		tops[testKey{k.pkg, top}] = true
		taken[k] = v
	}
	if len(tops) > maxAgain {
		return nil
	}
	for k := range taken {
		delete(r.tests, k)
	}
	return taken
}
