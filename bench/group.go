package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"time"
)

// metrics is what one run of a contender measured.
type metrics map[string]float64

// contender is one of the things measured side by side.
type contender struct {
	name string
	run  func(ctx context.Context) (metrics, error)
}

// group is a set of contenders that take turns: every round runs each of them
// once, in alternating order, so that a machine that gets slower or faster
// hits all alike.
type group struct {
	name   string
	rounds int
	cold   bool // each run starts anew all that it needs: no round warms it up
	// open starts what the contenders need. It returns those of names.
	open func(ctx context.Context, b *bench, names []string) ([]contender, io.Closer, error)
	// elsewhere, if not nil, measures the rounds in place of open: where this
	// program can't run the contenders itself. It may return a leftOut.
	elsewhere func(ctx context.Context, b *bench, names []string, rounds int) ([]map[string]metrics, error)
	rows      []row
}

// leftOut is why a group can't be measured on this machine.
type leftOut string

func (l leftOut) Error() string { return string(l) }

// ref names one metric of one contender.
type ref struct{ contender, metric string }

// row is one line of the table.
type row struct {
	name  string
	unit  string
	scale float64 // multiplies both figures for the table; 0 means 1
	ours  ref
	rival []ref // the best of them in each round; empty: no rival
	less  bool  // less is better
	aim   float64
	// absolute: aim is a figure in unit and not a ratio.
	absolute bool
	note     string
	pion     bool // the rival is pion
}

// result is a measured row as bench/latest.json has it.
type result struct {
	Name  string   `json:"name"`
	Ours  float64  `json:"ours"`
	Rival *float64 `json:"rival"`
	Unit  string   `json:"unit"`
	Ratio *float64 `json:"ratio"`
	Aim   *float64 `json:"aim"`
	Met   *bool    `json:"met"`
	Note  string   `json:"note"`

	less, absolute bool
}

type bench struct {
	ironwarp string
	rounds   int
	profile  string         // where CPU profiles go, "" for none
	only     *regexp.Regexp // contenders that are run; nil: all
	progress io.Writer      // nil: none
	terminal bool           // progress is one, and a line of it may be replaced
	begin    time.Time      // of the first measurement
	planned  int            // runs of contenders
	done     int            // of them
	cache    string         // directory of virtual machines
	pion     string         // the program that plays pion's part
	leftOut  []string       // what was not measured, and why
}

// run measures the chosen rows of all groups. A group that fails is reported
// in the error; the others are still measured.
func (b *bench) run(ctx context.Context, groups []group, pattern *regexp.Regexp) ([]result, error) {
	var results []result
	var errs []error
	chosen := make([][]row, len(groups))
	some := 0
	for i, g := range groups {
		if chosen[i] = b.choose(g, pattern); len(chosen[i]) > 0 {
			some++
			b.planned += b.runs(g, chosen[i])
		}
	}
	b.begin = time.Now()
	at := 0
	for i, g := range groups {
		chosen := chosen[i]
		if len(chosen) == 0 || ctx.Err() != nil {
			continue
		}
		at++
		b.line("%d of %d: %s%s", at, some, g.name, b.left())
		before := b.done
		rs, err := b.group(ctx, g, chosen)
		b.done = before + b.runs(g, chosen)
		results = append(results, rs...)
		var out leftOut
		if errors.As(err, &out) {
			b.leftOut = append(b.leftOut, fmt.Sprintf("%d rows of %s are left out: %s", len(chosen), g.name, out))
		} else if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", g.name, err))
		}
	}
	if ctx.Err() != nil {
		errs = append(errs, errors.New("interrupted"))
	}
	return results, errors.Join(errs...)
}

// choose returns the rows that are to be measured, and can be.
func (b *bench) choose(g group, pattern *regexp.Regexp) (chosen []row) {
	without := 0
	for _, r := range g.rows {
		switch {
		case !pattern.MatchString(r.name):
		case r.pion && b.noPion() != "":
			without++
		default:
			chosen = append(chosen, r)
		}
	}
	if without > 0 {
		b.leftOut = append(b.leftOut, fmt.Sprintf("%d rows of %s are left out: %s", without, g.name, b.noPion()))
	}
	return chosen
}

// say replaces the progress line of a terminal.
func (b *bench) say(format string, args ...any) {
	if b.progress != nil && b.terminal {
		fmt.Fprintf(b.progress, "\r\033[K"+format, args...)
	}
}

// line prints a line of progress unless progress is a terminal.
func (b *bench) line(format string, args ...any) {
	if b.progress != nil && !b.terminal {
		fmt.Fprintf(b.progress, format+"\n", args...)
	}
}

// left estimates how long the rest will take from the runs done so far.
func (b *bench) left() string {
	if b.done == 0 {
		return ""
	}
	took := time.Since(b.begin)
	rest := time.Duration(float64(took) / float64(b.done) * float64(b.planned-b.done))
	return fmt.Sprintf("; %v so far, about %v to go", took.Round(time.Second), rest.Round(time.Second))
}

// runs is how often contenders of a group run for these rows.
func (b *bench) runs(g group, rows []row) int {
	return len(b.contenders(rows)) * (b.roundsOf(g) + g.warmUp())
}

// warmUp is how many rounds come first and are not counted.
func (g group) warmUp() int {
	if g.cold {
		return 0
	}
	return 1
}

func (b *bench) roundsOf(g group) int {
	if b.rounds > 0 {
		return b.rounds
	}
	return g.rounds
}

// contenders are the names of those that rows compare.
func (b *bench) contenders(rows []row) (names []string) {
	for _, r := range rows {
		for _, f := range append([]ref{r.ours}, r.rival...) {
			if !slices.Contains(names, f.contender) && (b.only == nil || b.only.MatchString(f.contender)) {
				names = append(names, f.contender)
			}
		}
	}
	return names
}

func (b *bench) group(ctx context.Context, g group, rows []row) ([]result, error) {
	names := b.contenders(rows)
	if len(names) == 0 {
		return nil, nil
	}
	rounds := b.roundsOf(g)
	var measured []map[string]metrics
	var err error
	if g.elsewhere != nil {
		measured, err = g.elsewhere(ctx, b, names, rounds)
	} else {
		measured, err = b.takeTurns(ctx, g, names, rounds)
	}
	b.say("")
	if err != nil {
		return nil, err
	}
	var results []result
	for _, r := range rows {
		if slices.Contains(names, r.ours.contender) {
			if b.only != nil && len(r.rival) > 0 && !slices.Contains(names, r.rival[0].contender) {
				r.rival, r.aim = nil, 0
			}
			results = append(results, r.result(measured))
		}
	}
	return results, nil
}

// takeTurns opens a group's contenders and runs the rounds.
func (b *bench) takeTurns(ctx context.Context, g group, names []string, rounds int) ([]map[string]metrics, error) {
	contenders, closer, err := g.open(ctx, b, names)
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	return turns(ctx, contenders, g.warmUp(), rounds, func(i int) {
		if i > 0 {
			b.done += len(names)
		}
		b.say("%s: round %d of %d%s", g.name, i, rounds, b.left())
	})
}

// turns runs the contenders rounds times, and warmUp times before, which warms
// caches and is not counted: that is round 0.
func turns(ctx context.Context, contenders []contender, warmUp, rounds int, say func(round int)) ([]map[string]metrics, error) {
	var measured []map[string]metrics
	for i := 1 - warmUp; i <= rounds; i++ {
		say(i)
		order := slices.Clone(contenders)
		if i%2 == 1 {
			slices.Reverse(order)
		}
		round := make(map[string]metrics)
		for _, c := range order {
			m, err := c.run(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}
			round[c.name] = m
		}
		if i > 0 {
			measured = append(measured, round)
		}
	}
	return measured, nil
}

// result reduces the rounds to medians. The ratio is the median of each
// round's ratio, not the ratio of the medians.
func (r row) result(rounds []map[string]metrics) result {
	scale := r.scale
	if scale == 0 {
		scale = 1
	}
	var ours, rivals, ratios []float64
	for _, m := range rounds {
		o := m[r.ours.contender][r.ours.metric]
		ours = append(ours, o*scale)
		if len(r.rival) == 0 {
			continue
		}
		best := 0.0
		for i, f := range r.rival {
			v := m[f.contender][f.metric]
			if i == 0 || (v < best) == r.less {
				best = v
			}
		}
		rivals = append(rivals, best*scale)
		ratios = append(ratios, o/best)
	}
	res := result{Name: r.name, Unit: r.unit, Note: r.note, Ours: median(ours), less: r.less, absolute: r.absolute}
	judged := res.Ours
	if len(rivals) > 0 {
		rival, ratio := median(rivals), median(ratios)
		res.Rival, res.Ratio = &rival, &ratio
		if !r.absolute {
			judged = ratio
		}
	}
	if r.aim != 0 || r.absolute {
		aim := r.aim
		met := judged >= aim
		if r.less {
			met = judged <= aim
		}
		res.Aim, res.Met = &aim, &met
	}
	return res
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}
