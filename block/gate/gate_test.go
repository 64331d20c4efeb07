package gate

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// disk is a storage that carries out I/O at once, or when it is let.
type disk struct {
	block.Storage
	mu      sync.Mutex // guards the fields below it
	slow    bool       // I/O waits for finish
	pending []block.Completion
	done    []block.Op
	closed  bool
}

type diskQueue struct {
	d          *disk
	afterBatch func()
}

func (d *disk) NewQueue(afterBatch func()) block.Queue { return &diskQueue{d, afterBatch} }

func (q *diskQueue) Do(op block.Op, _ []byte, _, _ int64, _ block.Flags, done block.Completion) bool {
	d := q.d
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		done.Complete(syscall.ESHUTDOWN)
		return true
	}
	d.done = append(d.done, op)
	if d.slow {
		d.pending = append(d.pending, done)
		d.mu.Unlock()
		return false
	}
	d.mu.Unlock()
	done.Complete(0)
	return true
}

func (q *diskQueue) Close() error {
	q.d.mu.Lock()
	defer q.d.mu.Unlock()
	q.d.closed = true
	return nil
}

// finish ends what was begun.
func (d *disk) finish() {
	d.mu.Lock()
	pending := d.pending
	d.pending = nil
	d.mu.Unlock()
	for _, c := range pending {
		c.Complete(0)
	}
}

func (d *disk) begun() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.done)
}

// results counts completions.
type results struct{ ok, failed atomic.Int64 }

func (r *results) Complete(errno syscall.Errno) {
	if errno == 0 {
		r.ok.Add(1)
	} else {
		r.failed.Add(1)
	}
}

// run starts n I/Os of size bytes.
func run(q block.Queue, r *results, op block.Op, n, size int) {
	for range n {
		q.Do(op, make([]byte, size), 0, int64(size), 0, r)
	}
}

// after runs f at a time from now.
func after(d time.Duration) { <-time.After(d) }

func TestLimitsAreKeptWithoutErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		limits Limits
		op     block.Op
		size   int
		n      int
		within time.Duration // the last of n begins at this time, and not a millisecond before
	}{
		{"iops", Limits{IOPS: 100, Burst: 10 * time.Millisecond}, block.OpRead, 4096, 51, 500 * time.Millisecond},
		{"iops of writes", Limits{WriteIOPS: 10, Burst: time.Second}, block.OpWrite, 4096, 30, 2 * time.Second},
		{"a burst is saved up", Limits{IOPS: 10, Burst: 3 * time.Second}, block.OpRead, 512, 30, 0},
		{"bandwidth", Limits{Bandwidth: 1 << 20, Burst: time.Second}, block.OpRead, 64 << 10, 48, 2 * time.Second},
		{"an I/O larger than a burst", Limits{WriteBandwidth: 4096, Burst: 250 * time.Millisecond}, block.OpWrite, 8192, 1, 1750 * time.Millisecond},
		{"the tighter of two", Limits{IOPS: 1000, ReadIOPS: 10, Burst: 100 * time.Millisecond}, block.OpRead, 512, 11, time.Second},
		{"what another direction is limited to", Limits{ReadIOPS: 1, ReadBandwidth: 512}, block.OpWrite, 4096, 100, 0},
		{"trims have no bytes", Limits{WriteBandwidth: 512, Burst: time.Second}, block.OpTrim, 0, 100, 0},
		{"trims are writes", Limits{WriteIOPS: 10, Burst: time.Second}, block.OpTrim, 0, 30, 2 * time.Second},
		{"zeroes are writes", Limits{WriteIOPS: 10, Burst: time.Second}, block.OpWriteZeroes, 0, 30, 2 * time.Second},
		{"zeroes have no bytes", Limits{WriteBandwidth: 512, Burst: time.Second}, block.OpWriteZeroes, 0, 100, 0},
		{"bandwidth of reads", Limits{ReadBandwidth: 1 << 20, Burst: time.Second}, block.OpRead, 64 << 10, 48, 2 * time.Second},
		{"flushes", Limits{IOPS: 1, Burst: time.Second}, block.OpFlush, 0, 100, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if err := tc.limits.Check(); err != nil {
					t.Fatal(err)
				}
				d, r := &disk{}, &results{}
				s := New(d, false)
				s.SetLimits(tc.limits)
				q := s.NewQueue(func() {})
				run(q, r, tc.op, tc.n, tc.size)
				if tc.within > 0 {
					after(tc.within - time.Millisecond)
					synctest.Wait()
					if got := d.begun(); got >= tc.n {
						t.Errorf("%d I/Os have begun before %v", got, tc.within)
					}
					after(time.Millisecond)
				}
				synctest.Wait()
				if got := d.begun(); got != tc.n || int(r.ok.Load()) != tc.n || s.Waiting() != 0 {
					t.Errorf("%d of %d have begun, %d succeeded, %d wait", got, tc.n, r.ok.Load(), s.Waiting())
				}
			})
		})
	}
}

// A limit is of all users of a disk together, and of reads and writes together where it names neither.
func TestLimitsAreOfAllUsersTogether(t *testing.T) {
	for _, limits := range []Limits{{IOPS: 10, Burst: time.Second}, {Bandwidth: 10 * 512, Burst: time.Second}} {
		for _, other := range []block.Op{block.OpRead, block.OpWrite} {
			synctest.Test(t, func(t *testing.T) {
				d, r := &disk{}, &results{}
				s := New(d, false)
				s.SetLimits(limits)
				run(s.NewQueue(func() {}), r, block.OpRead, 15, 512)
				run(s.NewQueue(func() {}), r, other, 15, 512)
				after(2*time.Second - time.Millisecond)
				synctest.Wait()
				if got := d.begun(); got != 29 {
					t.Errorf("%+v, reads beside %v: %d have begun in two seconds, want 29 of 30", limits, other, got)
				}
				after(time.Millisecond)
				synctest.Wait()
				if got := d.begun(); got != 30 || int(r.ok.Load()) != 30 {
					t.Errorf("%+v, reads beside %v: %d have begun, want all 30", limits, other, got)
				}
			})
		}
	}
}

// What only reads and what writes wait in queues of their own: neither holds up the other.
func TestReadsGoOnWhileWritesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r := &disk{}, &results{}
		s := New(d, false)
		s.SetLimits(Limits{WriteIOPS: 1})
		batches := 0
		q := s.NewQueue(func() { batches++ })
		run(q, r, block.OpWrite, 5, 512)
		run(q, r, block.OpRead, 20, 512)
		if got := d.begun(); got != 21 {
			t.Errorf("%d have begun, want 1 write and 20 reads", got)
		}
		after(time.Second)
		synctest.Wait()
		if got := d.begun(); got != 22 || batches != 1 {
			t.Errorf("%d have begun, and replies were sent %d times", got, batches)
		}
		run(q, r, block.OpWrite, 0, 0)
		if err := q.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestChangedLimitsAreThoseOfWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r := &disk{}, &results{}
		s := New(d, false)
		q := s.NewQueue(nil)
		s.SetLimits(Limits{IOPS: 1})
		run(q, r, block.OpRead, 101, 512)
		if d.begun() != 1 {
			t.Fatalf("%d have begun", d.begun())
		}
		s.SetLimits(Limits{IOPS: 10})
		synctest.Wait()
		if got := d.begun(); got != 11 {
			t.Errorf("%d have begun once there is a burst of 10", got)
		}
		after(time.Second)
		synctest.Wait()
		if got := d.begun(); got != 21 {
			t.Errorf("%d have begun after a second of 10", got)
		}
		s.SetLimits(Limits{})
		synctest.Wait()
		if got := d.begun(); got != 101 || r.ok.Load() != 101 {
			t.Errorf("%d have begun without limits, %d succeeded", got, r.ok.Load())
		}
	})
}

// Whoever waits for the end of I/O, since its peer was fenced or its export goes, does not wait for tokens.
func TestWhatWaitsEndsSoonWhenItHasTo(t *testing.T) {
	for name, end := range map[string]func(s *Storage, q block.Queue) error{
		"hurried": func(s *Storage, _ block.Queue) error { s.Hurry()(); return nil },
		"closed":  func(_ *Storage, q block.Queue) error { return q.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, r := &disk{}, &results{}
				s := New(d, true)
				s.SetLimits(Limits{IOPS: 1})
				q := s.NewQueue(nil)
				run(q, r, block.OpWrite, 300, 512)
				if err := end(s, q); err != nil {
					t.Fatal(err)
				}
				if r.ok.Load() != 300 || s.Waiting() != 0 {
					t.Errorf("%d of 300 succeeded, %d wait", r.ok.Load(), s.Waiting())
				}
			})
		})
	}
}

func TestHeldWritesWaitAndWhatIsUnderWayEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r := &disk{slow: true}, &results{}
		s := New(d, true)
		q := s.NewQueue(nil)
		run(q, r, block.OpWrite, 3, 512)
		held := make(chan func())
		go func() {
			release, err := s.Hold(t.Context())
			if err != nil {
				t.Error(err)
			}
			held <- release
		}()
		synctest.Wait()
		run(q, r, block.OpWrite, 4, 512)
		run(q, r, block.OpTrim, 1, 0)
		run(q, r, block.OpRead, 2, 512)
		select {
		case <-held:
			t.Fatal("held while writes are under way")
		default:
		}
		if got := d.begun(); got != 5 {
			t.Fatalf("%d have begun, want 3 writes and 2 reads", got)
		}
		d.finish()
		release := <-held
		if got := d.begun(); got != 5 || r.ok.Load() != 5 {
			t.Errorf("%d have begun, %d succeeded", got, r.ok.Load())
		}
		if _, err := s.Hold(t.Context()); err == nil {
			t.Error("two hold at once")
		}
		release()
		release()
		d.finish()
		if r.ok.Load() != 10 {
			t.Errorf("%d of 10 succeeded", r.ok.Load())
		}
	})
}

// A storage that hangs does not keep back writes longer than who holds is ready to wait.
func TestHoldThatFailsLetsWritesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, r := &disk{slow: true}, &results{}
		s := New(d, true)
		q := s.NewQueue(nil)
		run(q, r, block.OpWrite, 1, 512)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := s.Hold(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Hold: %v", err)
		}
		run(q, r, block.OpWrite, 1, 512)
		if d.begun() != 2 {
			t.Errorf("%d have begun", d.begun())
		}
		d.finish()
	})
}

// An open gate costs nothing that is allocated, and neither does one that counts.
func TestOpenGateAllocatesNothing(t *testing.T) {
	for _, counts := range []bool{false, true} {
		d := &disk{}
		s := New(d, counts)
		q, r, buf := s.NewQueue(nil), &results{}, make([]byte, 512)
		d.done = make([]block.Op, 0, 1<<12)
		if n := testing.AllocsPerRun(1000, func() { q.Do(block.OpWrite, buf, 0, 512, 0, r) }); n != 0 {
			t.Errorf("an I/O allocates %v times (counted: %t)", n, counts)
		}
	}
}

// Whatever many users, limits that change and holds do at once, each I/O completes once.
func TestEachCompletesOnce(t *testing.T) {
	d, r := &disk{}, &results{}
	s := New(d, true)
	var wg sync.WaitGroup
	const users, each = 4, 200
	var queues [users]block.Queue
	for i := range queues {
		queues[i] = s.NewQueue(func() {})
		wg.Go(func() {
			q := queues[i]
			run(q, r, block.OpWrite, each/2, 512)
			run(q, r, block.OpRead, each/2, 512)
		})
	}
	for i := range 50 {
		s.SetLimits(Limits{IOPS: int64(1 + i%3*1000), Burst: time.Millisecond})
		if release, err := s.Hold(t.Context()); err != nil {
			t.Fatal(err)
		} else {
			release()
		}
	}
	wg.Wait()
	s.SetLimits(Limits{})
	for _, q := range queues { // waits for what the timer is letting go on
		if err := q.Close(); err != nil {
			t.Error(err)
		}
	}
	if got := r.ok.Load() + r.failed.Load(); got != users*each || s.Waiting() != 0 || s.changing.Load() != 0 {
		t.Errorf("%d of %d completed, %d wait, %d are counted as under way", got, users*each, s.Waiting(), s.changing.Load())
	}
}

func TestLimitsOutOfRange(t *testing.T) {
	for _, l := range []Limits{{IOPS: -1}, {Bandwidth: 511}, {ReadIOPS: MaxRate + 1}, {IOPS: 1, Burst: MaxBurst + 1}, {IOPS: 1, Burst: -1}} {
		if err := l.Check(); err == nil {
			t.Errorf("%+v is accepted", l)
		}
	}
	if err := (Limits{Bandwidth: MaxRate, Burst: MaxBurst}).Check(); err != nil {
		t.Error(err)
	}
}
