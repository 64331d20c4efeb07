package rnbd

import (
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
)

// What an I/O takes at the storage is in the histograms of the export and of the disk, each operation in its own, and what fails in none.
func TestLatencyOfADiskAndItsExport(t *testing.T) {
	const slow = 60 * time.Millisecond
	r := newRAM(1 << 20)
	var failing bool
	r.before = func(op block.Op, _, _ int64) syscall.Errno {
		switch {
		case failing:
			return syscall.EIO
		case op == block.OpFlush:
			<-time.After(slow)
		}
		return 0
	}
	srv := startServer(t, ramExport("r", r))
	d := openDisk(t, connect(t, srv.addr), "r")
	took := map[block.Op]time.Duration{} // here, all of an operation together
	timed := func(op block.Op, f func()) {
		began := time.Now()
		f()
		took[op] = time.Since(began)
	}
	timed(block.OpWrite, func() {
		for range 3 {
			write(t, d, make([]byte, 512), 0)
		}
	})
	timed(block.OpRead, func() { read(t, d, 512, 0) })
	timed(block.OpFlush, func() {
		if e := do(t, d, block.OpFlush, nil, 0, 0, 0); e != 0 {
			t.Fatal(e)
		}
	})
	failing = true
	if e := do(t, d, block.OpRead, make([]byte, 512), 0, 0, 0); e != syscall.EIO {
		t.Fatalf("%v, want EIO", e)
	}
	if e := do(t, d, block.OpTrim, nil, 0, 512, 0); e != syscall.EIO {
		t.Fatalf("%v, want EIO", e)
	}
	ofDisk, ofExport := d.Info().Stats.Latency, srv.Exports()[0].Stats.Latency
	for op, want := range []uint64{block.OpRead: 1, block.OpWrite: 3, block.OpFlush: 1} {
		near, far := &ofDisk[op], &ofExport[op]
		if near.Count() != want || far.Count() != want {
			t.Errorf("%v: %d of the disk and %d of the export, want %d", block.Op(op), near.Count(), far.Count(), want)
		}
		if far.Sum <= 0 || near.Sum < far.Sum || near.Sum > took[block.Op(op)] {
			t.Errorf("%v: the disk says %v, the export %v, of %v", block.Op(op), near.Sum, far.Sum, took[block.Op(op)])
		}
	}
	if f := &ofExport[block.OpFlush]; f.Sum < slow || f.Quantile(0.5) < slow/2 {
		t.Errorf("a flush that takes %v: %v, the median %v", slow, f.Sum, f.Quantile(0.5))
	}
}
