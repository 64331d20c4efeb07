package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/transport"
)

// The rows that show how cost grows: what one of many things costs where there are
// many, beside what it costs where there are few. Nothing may grow faster than its
// number, so the ratio is not to be above 1 but for what is noise.

func growthGroups() []group {
	return []group{streamsGroup(transport.TCP), streamsGroup(transport.SCTPUDP), peersGroup(), disksGroup()}
}

const growing = "how cost grows: "

// growth is a cost that is measured at several numbers of things.
type growth struct {
	what   string
	metric string // the cost of one of them
	unit   string
	scale  float64
	more   bool // it is no cost but a rate
}

// slope is how much more than its number a cost may grow, which is noise, and rate
// how much a rate may fall.
const (
	slopeAim = 1.5
	rateAim  = 1 / slopeAim
)

// rows compares the largest of counts with each smaller one.
func (g growth) rows(counts []int, things func(n int) string) (rows []row) {
	most := counts[len(counts)-1]
	aim := slopeAim
	if g.more {
		aim = rateAim
	}
	for _, n := range counts[:len(counts)-1] {
		rows = append(rows, row{name: fmt.Sprintf("%s%s, %s beside %d", growing, g.what, things(most), n), unit: g.unit, scale: g.scale, less: !g.more, aim: aim,
			ours: ref{things(most), g.metric}, rival: []ref{{things(n), g.metric}}})
	}
	return rows
}

func growthRows(gs []growth, counts []int, things func(n int) string) (rows []row) {
	for _, g := range gs {
		rows = append(rows, g.rows(counts, things)...)
	}
	return rows
}

// openGrowth makes contenders of what measures a number of things, in a directory of
// its own for each run.
func openGrowth(counts []int, things func(n int) string, measure func(ctx context.Context, b *bench, dir string, n int) (metrics, error)) func(context.Context, *bench, []string) ([]contender, io.Closer, error) {
	return func(_ context.Context, b *bench, names []string) ([]contender, io.Closer, error) {
		if _, err := os.Stat(b.ironwarp); err != nil {
			return nil, nil, fmt.Errorf("%w; `make bench` builds it", err)
		}
		all := map[string]int{}
		for _, n := range counts {
			all[things(n)] = n
		}
		var cs []contender
		for _, name := range names {
			n := all[name]
			cs = append(cs, contender{name, func(ctx context.Context) (m metrics, err error) {
				dir, err := os.MkdirTemp("", "iw") // a Unix socket's name is short
				if err != nil {
					return nil, err
				}
				defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
				return measure(ctx, b, dir, n)
			}})
		}
		return cs, closers{}, nil
	}
}

// use is what a process has used so far, and how much memory it has.
type use struct {
	cpu      time.Duration
	sleeps   float64 // of its threads, each of which a wake-up ends
	resident float64 // bytes
}

// useOf reads a process's use from /proc, whose times there are in nanoseconds, as
// those of processCPU are not.
func useOf(pid int) (u use, err error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	tasks, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil {
		return u, err
	}
	for _, t := range tasks {
		task := filepath.Join(dir, "task", t.Name())
		sched, err := os.ReadFile(filepath.Join(task, "schedstat"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // the thread has ended
		}
		if err != nil {
			return u, err
		}
		run, _, _ := strings.Cut(string(sched), " ")
		ns, err := strconv.ParseInt(run, 10, 64)
		if err != nil {
			return u, fmt.Errorf("%s/schedstat: %w", task, err)
		}
		u.cpu += time.Duration(ns)
		n, err := statusField(task, "voluntary_ctxt_switches")
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return u, err
		}
		u.sleeps += n
	}
	kib, err := statusField(dir, "VmRSS")
	u.resident = kib * 1024
	return u, err
}

// statusField reads a number from the file status of a process or thread.
func statusField(dir, name string) (float64, error) {
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			return strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 64)
		}
	}
	return 0, fmt.Errorf("%s/status has no %s", dir, name)
}

// idle leaves a process alone for a while and returns what that costs each of n things:
// CPU seconds and wake-ups per second, and its memory then.
func (p *process) idle(ctx context.Context, n int, d time.Duration) (metrics, error) {
	before, err := useOf(p.pid())
	if err != nil {
		return nil, err
	}
	start := time.Now()
	select {
	case <-time.After(d):
	case <-p.done:
		return nil, p.alive()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	per := time.Since(start).Seconds() * float64(n)
	after, err := useOf(p.pid())
	return metrics{"cpu": (after.cpu - before.cpu).Seconds() / per, "wake-ups": (after.sleeps - before.sleeps) / per, "memory": after.resident / float64(n)}, err
}

// shortest is how long the fastest of some calls takes, in seconds for each of n
// things.
func shortest(n, calls int, call func() error) (float64, error) {
	var least time.Duration
	for i := range calls {
		start := time.Now()
		if err := call(); err != nil {
			return 0, err
		}
		if took := time.Since(start); i == 0 || took < least {
			least = took
		}
	}
	return least.Seconds() / float64(n), nil
}

// inParallel calls f for 0 to n-1, some at a time, until one fails.
func inParallel(n, atATime int, f func(i int) error) error {
	next, failed := make(chan int), make(chan error, atATime)
	for range atATime {
		go func() {
			for i := range next {
				if err := f(i); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	running := atATime
	var errs []error
	for i := 0; i < n && len(errs) == 0; {
		select {
		case next <- i:
			i++
		case err := <-failed:
			errs = append(errs, err)
			running--
		}
	}
	close(next)
	for range running {
		errs = append(errs, <-failed)
	}
	return errors.Join(errs...)
}
