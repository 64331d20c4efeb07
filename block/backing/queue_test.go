package backing

import (
	"bytes"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// result is a Completion that can be waited for and used again.
type result struct{ c chan syscall.Errno }

func newResult() *result                       { return &result{make(chan syscall.Errno, 1)} }
func (r *result) Complete(errno syscall.Errno) { r.c <- errno }

func TestQueueRunsEachOperation(t *testing.T) {
	path, content := disk(t, diskSize)
	var batches atomic.Int64
	q := open(t, path, Options{}).NewQueue(func() { batches.Add(1) })
	defer q.Close()
	r := newResult()
	do := func(op block.Op, buf []byte, off, n int64, fl block.Flags) (bool, syscall.Errno) {
		inline := q.Do(op, buf, off, n, fl, r)
		return inline, <-r.c
	}
	big := bytes.Repeat([]byte{9}, maxInlineIO+1)
	for _, c := range []struct {
		name   string
		op     block.Op
		buf    []byte
		off, n int64
		fl     block.Flags
		inline bool
	}{
		{"write", block.OpWrite, big[:4096], 0, 0, 0, true},
		{"durable write", block.OpWrite, big[:4096], 4096, 0, block.FUA, false},
		{"large write", block.OpWrite, big, 8192, 0, 0, false},
		{"flush", block.OpFlush, nil, 0, 0, 0, false},
		{"zeroes", block.OpWriteZeroes, nil, 300 << 10, 8192, block.FUA, false},
		{"zeroes that stay", block.OpWriteZeroes, nil, 400 << 10, 8192, block.NoUnmap, false},
	} {
		inline, errno := do(c.op, c.buf, c.off, c.n, c.fl)
		if errno != 0 || inline != c.inline {
			t.Errorf("%s: inline %v, errno %v", c.name, inline, errno)
		}
	}
	copy(content, big[:4096])
	copy(content[4096:], big[:4096])
	copy(content[8192:], big)
	clear(content[300<<10 : 308<<10])
	clear(content[400<<10 : 408<<10])
	got := make([]byte, diskSize)
	if _, errno := do(block.OpRead, got, 0, 0, 0); errno != 0 || !bytes.Equal(got, content) {
		t.Fatalf("content differs (errno %v)", errno)
	}
	if _, errno := do(block.OpRead, got[:4096], 8192, 0, 0); errno != 0 || !bytes.Equal(got[:4096], content[8192:12288]) {
		t.Fatalf("small read differs (errno %v)", errno)
	}
	if _, errno := do(block.OpTrim, nil, 0, 8192, 0); errno != 0 {
		t.Errorf("discard: %v", errno)
	}
	for _, op := range []block.Op{block.OpRead, block.OpWrite, block.OpTrim, block.OpWriteZeroes} {
		if _, errno := do(op, got[:512], diskSize, 512, 0); errno != unix.EINVAL {
			t.Errorf("operation %d outside the disk: %v", op, errno)
		}
	}
	if _, errno := do(block.Op(99), nil, 0, 0, 0); errno != unix.EINVAL {
		t.Errorf("unknown operation: %v", errno)
	}
	if batches.Load() == 0 {
		t.Error("no batch end")
	}
}

func TestSlowWritesGoToAWorker(t *testing.T) {
	path, _ := disk(t, diskSize)
	s := open(t, path, Options{})
	q := s.NewQueue(nil)
	defer q.Close()
	s.writes.observe(1e9, 512)
	r := newResult()
	if q.Do(block.OpWrite, make([]byte, 512), 0, 0, 0, r) {
		t.Error("ran inline")
	}
	if errno := <-r.c; errno != 0 {
		t.Error(errno)
	}
}

// count is a Completion for many operations.
type count struct {
	wg   sync.WaitGroup
	errs atomic.Int64
}

func (c *count) Complete(errno syscall.Errno) {
	if errno != 0 {
		c.errs.Add(1)
	}
	c.wg.Done()
}

func TestEveryOperationCompletesOnce(t *testing.T) {
	path, _ := disk(t, diskSize)
	q := open(t, path, Options{}).newQueue(3, nil)
	var c count
	for range 4 {
		c.wg.Go(func() {
			buf := make([]byte, 512)
			for i := range 500 {
				c.wg.Add(1)
				// Flushes and durable writes always go to a worker.
				if i%8 == 0 {
					q.Do(block.OpFlush, nil, 0, 0, 0, &c)
				} else {
					q.Do(block.OpWriteZeroes, buf, int64(i)*512, 512, block.NoUnmap, &c)
				}
			}
		})
	}
	c.wg.Wait()
	if c.errs.Load() != 0 {
		t.Errorf("%d errors", c.errs.Load())
	}
	q.mu.Lock()
	workers, waiting := q.workers, q.jobs.Len()
	q.mu.Unlock()
	if workers > 3 || waiting != 0 {
		t.Errorf("%d workers, %d operations left", workers, waiting)
	}
	q.Close()
}

func TestCloseFinishesWhatWasHandedOver(t *testing.T) {
	path, _ := disk(t, diskSize)
	q := open(t, path, Options{}).newQueue(1, nil)
	var c count
	for range 50 {
		c.wg.Add(1)
		q.Do(block.OpFlush, nil, 0, 0, 0, &c)
	}
	q.Close()
	c.wg.Wait()
	q.Close()
	r := newResult()
	if !q.Do(block.OpFlush, nil, 0, 0, 0, r) {
		t.Error("not refused inline")
	}
	if errno := <-r.c; errno != unix.ESHUTDOWN {
		t.Errorf("after Close: %v", errno)
	}
}

func TestQueueDoesNotAllocate(t *testing.T) {
	path, _ := disk(t, diskSize)
	q := open(t, path, Options{}).newQueue(1, nil)
	defer q.Close()
	r, buf, big := newResult(), make([]byte, 4096), make([]byte, 256<<10)
	for name, f := range map[string]func(){
		"inline read":  func() { q.Do(block.OpRead, buf, 0, 0, 0, r); <-r.c },
		"inline write": func() { q.Do(block.OpWrite, buf, 0, 0, 0, r); <-r.c },
		"handed over":  func() { q.Do(block.OpRead, big, 0, 0, 0, r); <-r.c },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkQueue(b *testing.B) {
	path, _ := disk(b, diskSize)
	q := open(b, path, Options{}).NewQueue(nil)
	defer q.Close()
	r := newResult()
	for _, c := range []struct {
		name string
		op   block.Op
		n    int
	}{{"read4K", block.OpRead, 4096}, {"write4K", block.OpWrite, 4096}, {"read1M", block.OpRead, 1 << 20}, {"write1M", block.OpWrite, 1 << 20}} {
		buf := make([]byte, c.n)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(c.n))
			for b.Loop() {
				q.Do(c.op, buf, 0, 0, 0, r)
				if errno := <-r.c; errno != 0 {
					b.Fatal(errno)
				}
			}
		})
	}
}
