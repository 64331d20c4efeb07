package rnbd

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// stream keeps depth I/Os in flight on a disk, as an NBD client does.
type stream struct {
	d     *Disk
	op    block.Op
	size  int
	depth int
	done  chan *slot
	rnd   *rand.Rand
	errno syscall.Errno
}

type slot struct {
	s     *stream
	io    block.IO
	errno syscall.Errno
}

func (s *slot) Complete(errno syscall.Errno) {
	s.errno = errno
	s.s.done <- s
}

func newStream(d *Disk, op block.Op, size, depth int) *stream {
	s := &stream{d: d, op: op, size: size, depth: depth, done: make(chan *slot, depth), rnd: rand.New(rand.NewPCG(1, 2))}
	for range depth {
		s.done <- &slot{s: s}
	}
	return s
}

// run makes n I/Os.
func (s *stream) run(tb testing.TB, n int) {
	blocks := int(s.d.Geometry().Size) / s.size
	next := func(sl *slot) {
		if sl.io != nil {
			sl.io.Release()
			sl.io = nil
		}
		if sl.errno != 0 {
			s.errno = sl.errno
		}
	}
	for range n {
		var sl *slot
		select {
		case sl = <-s.done:
		default:
			s.d.Kick()
			sl = <-s.done
		}
		next(sl)
		io, err := s.d.TryGet(s.op, uint64(s.rnd.IntN(blocks)*s.size), uint32(s.size), 0)
		if err != nil {
			tb.Fatal(err)
		}
		sl.io = io
		io.Submit(sl, true)
	}
	s.d.Kick()
	var all []*slot
	for range s.depth {
		sl := <-s.done
		next(sl)
		all = append(all, sl)
	}
	for _, sl := range all {
		s.done <- sl
	}
	if s.errno != 0 {
		tb.Fatal(s.errno)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	srv := startServer(t, fileExport(t, "f", 16<<20))
	d := openDisk(t, connect(t, srv.addr), "f")
	for _, op := range []block.Op{block.OpWrite, block.OpRead} {
		for _, c := range []struct{ size, depth int }{{4096, 1}, {4096, 32}, {1 << 20, 4}} {
			s := newStream(d, op, c.size, c.depth)
			s.run(t, 500)
			const ios = 500
			if n := iwarptest.LeastAllocs(func() { s.run(t, ios) }); n > ios/50 {
				t.Errorf("%v of %d bytes at depth %d: %v allocations in %d I/Os", op, c.size, c.depth, n, ios)
			}
		}
	}
}

// cpuTime is what the process has used, both ends being in it.
func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkDisk(b *testing.B) {
	for _, c := range []struct{ size, depth int }{{4096, 1}, {4096, 32}, {1 << 20, 4}} {
		for _, op := range []block.Op{block.OpRead, block.OpWrite} {
			b.Run(fmt.Sprintf("%s/size=%d/depth=%d", op, c.size, c.depth), func(b *testing.B) {
				srv := startServer(b, fileExport(b, "f", 256<<20))
				cl := connect(b, srv.addr)
				d := openDisk(b, cl, "f")
				newStream(d, block.OpWrite, 1<<20, 4).run(b, 1024)
				s := newStream(d, op, c.size, c.depth)
				s.run(b, 2000)
				b.SetBytes(int64(c.size))
				b.ReportAllocs()
				b.ResetTimer()
				start := cpuTime()
				s.run(b, b.N)
				b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/1000/float64(b.N), "cpu-us/op")
				b.StopTimer()
				cl.Close()
				srv.stop(b)
			})
		}
	}
}
