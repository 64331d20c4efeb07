package conformance_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/iwarptest/conformance"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memory(testing.TB) (a, b ddp.LLP) {
	a, b = iwarptest.Pair(iwarptest.Options{})
	return a, b
}

func TestCasesAreNamedAndSayWhatTheyProve(t *testing.T) {
	seen := make(map[string]bool)
	core := 0
	for _, c := range conformance.Cases() {
		if c.Name == "" || seen[c.Name] || !strings.HasPrefix(c.RFC, "RFC ") {
			t.Errorf("case %q, of %q: want a name of its own and a section of an RFC", c.Name, c.RFC)
		}
		seen[c.Name] = true
		if c.Core {
			core++
		}
	}
	if n := len(conformance.Core()); n != core || n == 0 || n == len(seen) {
		t.Errorf("%d of %d cases are core, Core returns %d", core, len(seen), n)
	}
}

// faultyEnd is an end that does or reports one thing wrong.
type faultyEnd struct {
	conformance.Endpoint
	fault fault
	queue []conformance.WC
}

type fault struct {
	post func(*conformance.WR)
	wc   func(*conformance.WC)
	wcs  func([]conformance.WC) []conformance.WC // of those that are there at once
	load func(r conformance.Region, off int, p []byte)
	end  func(*conformance.End)
	can  conformance.Feature // features that it does not admit to
}

func (l *faultyEnd) Can(f conformance.Feature) bool { return l.fault.can&f == 0 && l.Endpoint.Can(f) }

func (l *faultyEnd) Reopen(r conformance.Region, a conformance.Access) (conformance.Region, error) {
	return l.Endpoint.(conformance.Reopener).Reopen(r, a)
}

func (l *faultyEnd) PostSend(wr conformance.WR) error {
	if l.fault.post != nil {
		l.fault.post(&wr)
	}
	return l.Endpoint.PostSend(wr)
}

func (l *faultyEnd) Completion(ctx context.Context) (conformance.WC, error) {
	if l.fault.wcs != nil && len(l.queue) == 0 {
		for len(l.queue) < 2 {
			wc, err := l.Endpoint.Completion(ctx)
			if err != nil {
				break
			}
			l.queue = append(l.queue, wc)
		}
		l.queue = l.fault.wcs(l.queue)
	}
	if len(l.queue) > 0 {
		wc := l.queue[0]
		l.queue = l.queue[1:]
		return wc, nil
	}
	wc, err := l.Endpoint.Completion(ctx)
	if err == nil && l.fault.wc != nil {
		l.fault.wc(&wc)
	}
	return wc, err
}

func (l *faultyEnd) Load(r conformance.Region, off, n int) ([]byte, error) {
	p, err := l.Endpoint.Load(r, off, n)
	if l.fault.load != nil {
		l.fault.load(r, off, p)
	}
	return p, err
}

func (l *faultyEnd) End(ctx context.Context) (conformance.End, error) {
	e, err := l.Endpoint.End(ctx)
	if l.fault.end != nil {
		l.fault.end(&e)
	}
	return e, err
}

// verdict takes the place of a case's testing.T and keeps what is reported to it.
type verdict struct {
	testing.TB
	mu      sync.Mutex
	failed  []string
	skipped string
}

func (v *verdict) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.failed = append(v.failed, fmt.Sprintf(format, args...))
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

func (v *verdict) Skipf(format string, args ...any) {
	v.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// try runs a case with a faultyEnd as one of its ends.
func try(t *testing.T, name string, l fault, faultyActs bool) *verdict {
	t.Helper()
	honest := conformance.OverLLP(t, memory)
	for _, c := range conformance.Cases() {
		if c.Name != name {
			continue
		}
		v := &verdict{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c.Run(v, func(testing.TB) (a, b conformance.Endpoint) {
				a, b = honest(t)
				if faultyActs {
					return &faultyEnd{Endpoint: a, fault: l}, b
				}
				return a, &faultyEnd{Endpoint: b, fault: l}
			}, false)
		}()
		<-done
		return v
	}
	t.Fatalf("there is no case %q", name)
	return nil
}

// A suite has to find faults: an end that does one thing wrong fails.
func TestWrongEndsFail(t *testing.T) {
	type wc = conformance.WC
	for _, tc := range []struct {
		name   string
		inCase string
		acts   bool // the end that is wrong
		fault  fault
		want   string
	}{
		{"honest", "send", true, fault{}, ""},
		{"honest target", "fault/write past the end", false, fault{}, ""},
		{"byte before the region changed", "write", false, fault{load: func(_ conformance.Region, off int, p []byte) { p[-off-1]++ }}, "the first at -1"},
		{"byte behind the region changed", "read", true, fault{load: func(r conformance.Region, off int, p []byte) { p[r.Len-off]++ }}, "differ"},
		{"last byte not written", "send", false, fault{load: func(r conformance.Region, off int, p []byte) { p[r.Len-off-101]++ }}, "differ"},
		{"completions swapped", "more reads than ORD", true, fault{wcs: func(w []wc) []wc {
			if len(w) == 2 {
				w[0], w[1] = w[1], w[0]
			}
			return w
		}}, "out of turn"},
		{"completion missing at the end", "abort/flushes in order", true, fault{wcs: func(w []wc) []wc { return w[:min(1, len(w))] }}, "turn"},
		{"completion of an unsignaled operation", "unsignaled operations are silent", true,
			fault{post: func(wr *conformance.WR) { wr.Flags |= conformance.Signaled }}, "out of turn"},
		{"success after the stream failed", "fault/read of no STag", true, fault{wc: func(w *wc) { w.Status = conformance.OK }}, "succeeds"},
		{"wrong length", "send into a longer receive", false, fault{wc: func(w *wc) { w.Len++ }}, "received 3001 bytes"},
		{"solicited bit lost", "send with solicited event", true, fault{post: func(wr *conformance.WR) { wr.Flags &^= conformance.Solicited }}, "solicited"},
		{"invalidation not reported", "send with invalidate", false, fault{wc: func(w *wc) { w.Invalidated = 0 }}, "invalidated"},
		{"inline source not copied", "inline", true, fault{post: func(wr *conformance.WR) { wr.Flags &^= conformance.FromInline }}, "differ"},
		{"Immediate Data cut to 32 bits", "immediate data", false, fault{wc: func(w *wc) { w.Imm &= 1<<32 - 1 }}, "Immediate Data"},
		{"add mask ignored", "fetch and add", true, fault{post: func(wr *conformance.WR) { wr.AddMask = 0 }}, "differ"},
		{"compare mask ignored", "compare and swap", true, fault{post: func(wr *conformance.WR) { wr.CompareMask = ^uint64(0) }}, "differ"},
		{"wrong code in the Terminate", "fault/read past the end", true, fault{end: func(e *conformance.End) { e.Code ^= 3 }}, "want: with a Terminate received"},
		{"end without a reason", "fault/write to no STag", false, fault{end: func(e *conformance.End) { e.How = conformance.ConnectionLost }}, "connection lost"},
		{"graceful end reported as a loss", "close/ends a quiet stream", true, fault{end: func(e *conformance.End) { e.How = conformance.ConnectionLost }}, "connection lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if raceDetector && tc.inCase == "inline" {
				t.Skip("a source that is sent after the post has returned is a data race by nature")
			}
			v := try(t, tc.inCase, tc.fault, tc.acts)
			said := strings.Join(v.failed, "\n")
			if (tc.want == "") != (said == "") || !strings.Contains(said, tc.want) {
				t.Errorf("the case %q says: %q, want: %q", tc.inCase, said, tc.want)
			}
		})
	}
}

func TestMissingFeaturesSkip(t *testing.T) {
	v := try(t, "fetch and add", fault{can: conformance.Atomics}, false)
	if v.skipped != "end b lacks: Atomics" || len(v.failed) > 0 {
		t.Errorf("skipped: %q, failed: %q", v.skipped, v.failed)
	}
}

// An end that completes Reads apart from the rest, or does not know codes, has to do
// only what it can.
func TestLesserEndsPass(t *testing.T) {
	l := fault{
		can: conformance.InOrder | conformance.ReportsEnd | conformance.ReportsSolicited | conformance.ReportsInvalidated,
		end: func(e *conformance.End) { *e = conformance.End{} },
		wc:  func(w *conformance.WC) { w.Solicited, w.Invalidated = false, 0 },
	}
	for _, name := range []string{"mixed operations complete in order", "send with solicited event and invalidate", "fault/read of no STag", "abort/flushes in order"} {
		for _, acts := range []bool{true, false} {
			if v := try(t, name, l, acts); len(v.failed) > 0 || v.skipped != "" {
				t.Errorf("%s: failed %q, skipped %q", name, v.failed, v.skipped)
			}
		}
	}
}
