package vhost_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/vhost/vhosttest"
)

// wire is a disk whose reads come in pieces, by a goroutine that receives, and are placed
// where they are wanted.
type wire struct {
	*nbdtest.Memory
	longest int                                                     // of a piece
	before  atomic.Pointer[func(at int, place func(b []byte) bool)] // called in the middle of a read; may be nil
	placed  atomic.Int64                                            // bytes that were taken
	refused atomic.Int64                                            // and that were not
}

// inTheMiddle has f called once in the middle of a read.
func (w *wire) inTheMiddle(f func(at int, place func(b []byte) bool)) { w.before.Store(&f) }

func newWire(longest int) *wire {
	w := &wire{Memory: nbdtest.NewMemory(diskSize), longest: longest}
	w.Data(func(data []byte) {
		for i := range data {
			data[i] = byte(i*7+i>>9) | 1
		}
	})
	return w
}

func (w *wire) Get(ctx context.Context, op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	io, err := w.Memory.Get(ctx, op, off, n, fl)
	return wireIO{io, w, off, n}, err
}

func (w *wire) TryGet(op block.Op, off uint64, n uint32, fl block.Flags) (block.IO, error) {
	io, err := w.Memory.TryGet(op, off, n, fl)
	return wireIO{io, w, off, n}, err
}

type wireIO struct {
	block.IO
	w   *wire
	off uint64
	n   uint32
}

func (io wireIO) SubmitTo(to block.Target, done block.Completion, _ bool) {
	go func() {
		w, data := io.w, make([]byte, io.n)
		w.Data(func(disk []byte) { copy(data, disk[io.off:]) })
		for at := 0; at < len(data); {
			b := data[at:min(len(data), at+1+rand.IntN(w.longest))]
			if at >= len(data)/2 {
				if f := w.before.Swap(nil); f != nil {
					(*f)(at, func(b []byte) bool { return to.Place(uint64(at), b) })
				}
			}
			if to.Place(uint64(at), b) {
				w.placed.Add(int64(len(b)))
			} else {
				w.refused.Add(int64(len(b)))
				putAt(io.Buffers(), at, b)
			}
			at += len(b)
		}
		done.Complete(0)
	}()
}

// putAt copies b to what begins at byte at of bufs.
func putAt(bufs [][]byte, at int, b []byte) {
	for _, buf := range bufs {
		if at < len(buf) {
			b = b[copy(buf[at:], b):]
		}
		at = max(0, at-len(buf))
	}
}

// want is what the disk has there.
func (w *wire) want(sector uint64, n int) (want []byte) {
	w.Data(func(data []byte) { want = bytes.Clone(data[512*sector:][:n]) })
	return want
}

// What a guest reads is placed in its memory as it comes, and does not touch the device's
// buffers: whatever the ring, for descriptors of each odd length and pieces that end anywhere.
func TestReadsArePlacedInTheGuestsMemory(t *testing.T) {
	for name, o := range kinds() {
		t.Run(name, func(t *testing.T) {
			w := newWire(700)
			s, path, _ := serve(t, w)
			q := connect(t, path, o).Queues[0]
			mark := q.Mark()
			for round := range 40 {
				got := make([]byte, 9*512)
				do(t, q, vhosttest.In, uint64(round), got, vhosttest.OK)
				if !bytes.Equal(got, w.want(uint64(round), len(got))) {
					t.Fatalf("round %d: other data", round)
				}
				q.Rewind(mark)
			}
			if placed, refused := w.placed.Load(), w.refused.Load(); placed != 40*9*512 || refused != 0 || s.Stats().ReadBytes != uint64(placed) {
				t.Errorf("%d bytes were placed, and %d went through the device's buffers", placed, refused)
			}
		})
	}
	w := newWire(90)
	_, path, _ := serve(t, w)
	f := connect(t, path, vhosttest.Options{Features: vhosttest.FeatureIndirect, Indirect: true})
	q := f.Queues[0]
	mark := q.Mark()
	for length := 1; length < 1024; length += 2 {
		f.Opts.Segment = length
		got := make([]byte, 512+512*min(length/2, 9))
		do(t, q, vhosttest.In, 3, got, vhosttest.OK)
		if !bytes.Equal(got, w.want(3, len(got))) {
			t.Fatalf("descriptors of %d bytes: other data", length)
		}
		q.Rewind(mark)
	}
	if w.refused.Load() != 0 {
		t.Error("not all was placed")
	}
}

// A front end that dies while data is placed: the rest does not reach its memory, and the next
// one is served when the read has ended.
func TestFrontEndDiesWhileDataIsPlaced(t *testing.T) {
	const n = 64 << 10
	w := newWire(4096)
	_, path, _ := serve(t, w)
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	q := f.Queues[0]
	at := q.Mark()
	dead := make(chan struct{})
	w.inTheMiddle(func(_ int, place func(b []byte) bool) {
		defer close(dead)
		f.Hangup()
		for end := time.Now().Add(10 * time.Second); place([]byte{0xaa}); {
			if time.Now().After(end) {
				t.Error("data is placed although the front end is gone")
				break
			}
		}
		clear(f.Memory.Mem) // it is another's by now
	})
	q.Post(&vhosttest.Request{Typ: vhosttest.In, Data: make([]byte, n)})
	if err := q.Announce(); err != nil {
		t.Fatal(err)
	}
	<-dead
	g := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	do(t, g.Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
	if after := f.Memory.Mem[at:]; !bytes.Equal(after, make([]byte, len(after))) {
		t.Error("data was placed after the front end had gone")
	}
	if w.refused.Load() == 0 || w.placed.Load() <= 512 {
		t.Errorf("%d bytes were placed, %d refused", w.placed.Load(), w.refused.Load())
	}
}

// A front end shares other memory while data is placed: a read that is under way goes on in
// the memory that it began in.
func TestMemoryChangesWhileDataIsPlaced(t *testing.T) {
	const n = 64 << 10
	for _, slots := range []bool{false, true} {
		t.Run(fmt.Sprintf("slots %v", slots), func(t *testing.T) {
			w := newWire(4096)
			_, path, _ := serve(t, w)
			f := connect(t, path, vhosttest.Options{Memory: 16 << 20, Slots: slots})
			w.inTheMiddle(func(int, func(b []byte) bool) {
				var err error
				if !slots {
					err = f.Ack(vhosttest.SetMemTable, f.MemTable(), f.Memory.FD, f.Memory.FD)
				} else if err = f.AddRegion(1<<40, 1<<41); err == nil {
					err = f.RemoveRegion(1<<40, 1<<41)
				}
				if err != nil {
					t.Error(err)
				}
			})
			got := make([]byte, n)
			do(t, f.Queues[0], vhosttest.In, 7, got, vhosttest.OK)
			if !bytes.Equal(got, w.want(7, n)) || w.placed.Load() != n {
				t.Errorf("other data, or not placed: %d of %d bytes", w.placed.Load(), n)
			}
			do(t, f.Queues[0], vhosttest.In, 8, got, vhosttest.OK)
			if !bytes.Equal(got, w.want(8, n)) {
				t.Error("other data after that")
			}
		})
	}
}

// Memory whose file is truncated while data is placed ends its front end, and nothing else:
// who receives goes on.
func TestMemoryIsTruncatedWhileDataIsPlaced(t *testing.T) {
	const n = 64 << 10
	w := newWire(4096)
	_, path, _ := serve(t, w)
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20, Unsealed: true})
	q := f.Queues[0]
	q.Rewind(8 << 20)
	w.inTheMiddle(func(int, func(b []byte) bool) {
		if err := unix.Ftruncate(f.Memory.FD, 4<<20+64<<10); err != nil {
			t.Error(err)
		}
	})
	q.Post(&vhosttest.Request{Typ: vhosttest.In, Data: make([]byte, n)})
	if err := q.Announce(); err != nil {
		t.Fatal(err)
	}
	awaitHangUp(t, f)
	if w.placed.Load() == 0 || w.refused.Load() == 0 {
		t.Errorf("%d bytes were placed, %d refused", w.placed.Load(), w.refused.Load())
	}
	g := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	do(t, g.Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
}

// Where the memory of a front end has kept those waiting who receive for others, too, a read
// of which some was placed is read once more, and those after it go through the device's
// buffers.
func TestFrontEndThatKeepsOthersWaiting(t *testing.T) {
	const n = 64 << 10
	w := newWire(4096)
	s, path, _ := serve(t, w)
	q := connect(t, path, vhosttest.Options{Memory: 16 << 20}).Queues[0]
	w.inTheMiddle(func(int, func(b []byte) bool) { s.Tire() })
	got := make([]byte, n)
	for sector := range uint64(3) {
		do(t, q, vhosttest.In, sector, got, vhosttest.OK)
		if !bytes.Equal(got, w.want(sector, n)) {
			t.Fatalf("sector %d: other data", sector)
		}
	}
	if placed, refused := w.placed.Load(), w.refused.Load(); placed == 0 || refused == 0 || placed+refused != n {
		t.Errorf("%d bytes were placed, %d refused, want the first read's", placed, refused)
	}
	if calls := w.Calls(); len(calls) != 3 {
		t.Errorf("%d reads went through the device's buffers, want one more for the first, and the others", len(calls))
	}
}
