package rdmatest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
)

// bench is what the suite takes for a test.
type bench struct {
	testing.TB // nil: the suite calls what is below it only
	ctx        context.Context

	mu       sync.Mutex // guards the fields below it
	lines    []string
	cleanups []func()
	failed   bool
	skipped  bool
}

func newBench(ctx context.Context) *bench { return &bench{ctx: ctx} }

// run calls f, which Fatal and Skip end.
func (b *bench) run(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if r := recover(); r != nil {
				b.Errorf("the suite: %v", r)
			}
		}()
		f()
	}()
	<-done
}

// cleanUp calls what Cleanup was given, the last first.
func (b *bench) cleanUp() {
	for {
		b.mu.Lock()
		n := len(b.cleanups)
		if n == 0 {
			b.mu.Unlock()
			return
		}
		f := b.cleanups[n-1]
		b.cleanups = b.cleanups[:n-1]
		b.mu.Unlock()
		b.run(f)
	}
}

func (b *bench) note(failed, skipped bool, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, strings.TrimSpace(text))
	b.failed, b.skipped = b.failed || failed, b.skipped || skipped
}

// said is what was noted.
func (b *bench) said() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.lines)
}

// first is the first line of it.
func (b *bench) first() string {
	if lines := b.said(); len(lines) > 0 {
		return lines[0]
	}
	return ""
}

// What follows is testing.TB's.

func (b *bench) Helper()                           {}
func (b *bench) Context() context.Context          { return b.ctx }
func (b *bench) Log(args ...any)                   { b.note(false, false, fmt.Sprintln(args...)) }
func (b *bench) Logf(format string, args ...any)   { b.note(false, false, fmt.Sprintf(format, args...)) }
func (b *bench) Error(args ...any)                 { b.note(true, false, fmt.Sprintln(args...)) }
func (b *bench) Errorf(format string, args ...any) { b.note(true, false, fmt.Sprintf(format, args...)) }

func (b *bench) Fatal(args ...any) {
	b.Error(args...)
	runtime.Goexit()
}

func (b *bench) Fatalf(format string, args ...any) {
	b.Errorf(format, args...)
	runtime.Goexit()
}

func (b *bench) Skipf(format string, args ...any) {
	b.note(false, true, fmt.Sprintf(format, args...))
	runtime.Goexit()
}

func (b *bench) Cleanup(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleanups = append(b.cleanups, f)
}

func (b *bench) Failed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failed
}

func (b *bench) Skipped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.skipped
}
