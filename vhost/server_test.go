package vhost_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/vhost"
	"github.com/ironwarp/ironwarp/vhost/vhosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const diskSize = 16 << 20

var le = binary.LittleEndian

// serve serves a disk, and returns the server, its socket, and what ends it.
func serve(t *testing.T, d block.Device) (s *vhost.Server, path string, end func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "sock")
	s = vhost.NewServer(vhost.Config{Device: d, Serial: "peer/disk", DrainTimeout: 100 * time.Millisecond})
	return s, path, listen(t, s, path)
}

func listen(t *testing.T, s *vhost.Server, path string) (end func()) {
	t.Helper()
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, ln) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// connect connects a front end.
func connect(t *testing.T, path string, o vhosttest.Options) *vhosttest.Frontend {
	t.Helper()
	f, err := vhosttest.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	if err := f.Connect(path); err != nil {
		t.Fatal(err)
	}
	return f
}

func do(t *testing.T, q *vhosttest.Queue, typ uint32, sector uint64, data []byte, want byte) {
	t.Helper()
	if got, err := q.Do(typ, sector, data); err != nil || got != want {
		t.Fatalf("request %d of %d bytes at sector %d: result %d, want %d: %v", typ, len(data), sector, got, want, err)
	}
}

// kinds are all kinds of rings.
func kinds() map[string]vhosttest.Options {
	all := map[string]vhosttest.Options{}
	for i := range 8 {
		o := vhosttest.Options{Segment: 3000, Size: 16}
		name := "split"
		if i&1 != 0 {
			o.Features, name = o.Features|vhosttest.FeaturePacked, "packed"
		}
		if i&2 != 0 {
			o.Features, name = o.Features|vhosttest.FeatureEventIndex, name+", event index"
		}
		if i&4 != 0 {
			o.Features, o.Indirect, name = o.Features|vhosttest.FeatureIndirect, true, name+", indirect"
			o.Segment = 511 // parts that are no sectors
		}
		all[name] = o
	}
	return all
}

// Whatever the ring is, what the guest writes is on the disk and is read back.
func TestRequests(t *testing.T) {
	for name, o := range kinds() {
		t.Run(name, func(t *testing.T) {
			m := nbdtest.NewMemory(diskSize)
			_, path, _ := serve(t, m)
			o.Features |= vhosttest.FeatureFlush
			q := connect(t, path, o).Queues[0]
			content := make([]byte, 9*512)
			for i := range content {
				content[i] = byte(i * 7 / 3)
			}
			for round := range 40 { // the rings are gone through several times
				content[0] = byte(round)
				do(t, q, vhosttest.Out, uint64(round), content, vhosttest.OK)
				got := make([]byte, len(content))
				do(t, q, vhosttest.In, uint64(round), got, vhosttest.OK)
				if !bytes.Equal(got, content) {
					t.Fatalf("round %d: what is read differs from what was written", round)
				}
			}
			do(t, q, vhosttest.Flush, 0, nil, vhosttest.OK)
			id := make([]byte, 20)
			do(t, q, vhosttest.GetID, 0, id, vhosttest.OK)
			if string(bytes.TrimRight(id, "\x00")) != "peer/disk" {
				t.Errorf("its serial number is %q", id)
			}
			where := le.AppendUint32(le.AppendUint32(le.AppendUint64(nil, 39), 2), 0)
			do(t, q, vhosttest.WriteZeroes, 0, where, vhosttest.OK)
			do(t, q, vhosttest.Discard, 0, where, vhosttest.OK)
			got := make([]byte, 1024)
			do(t, q, vhosttest.In, 39, got, vhosttest.OK)
			if !bytes.Equal(got, make([]byte, 1024)) {
				t.Error("zeroes were not written")
			}
			calls := m.Calls()
			want := []block.Op{block.OpFlush, block.OpWriteZeroes, block.OpTrim, block.OpRead}
			for i, c := range calls[len(calls)-4:] {
				if c.Op != want[i] {
					t.Errorf("the disk was asked for %v, want %v", c.Op, want[i])
				}
			}
		})
	}
}

// Refused requests fail by themselves, and the next one works.
func TestRefusedRequests(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	m.Errno = func(op block.Op, off uint64, n uint32, fl block.Flags) syscall.Errno {
		if off == 512 {
			return syscall.EIO
		}
		return 0
	}
	s, path, _ := serve(t, m)
	q := connect(t, path, vhosttest.Options{Features: vhosttest.FeatureFlush}).Queues[0]
	sector := make([]byte, 512)
	for _, r := range []struct {
		what   string
		typ    uint32
		sector uint64
		data   []byte
		want   byte
	}{
		{"the disk's error", vhosttest.In, 1, sector, vhosttest.IOError},
		{"past the end", vhosttest.Out, diskSize / 512, sector, vhosttest.IOError},
		{"over the end", vhosttest.In, diskSize/512 - 1, make([]byte, 1024), vhosttest.IOError},
		{"sectors that wrap", vhosttest.In, 1<<63 + 1, sector, vhosttest.IOError},
		{"half a sector", vhosttest.Out, 0, sector[:100], vhosttest.IOError},
		{"a request that there is not", 99, 0, nil, vhosttest.Unsupported},
		{"a range that is cut", vhosttest.Discard, 0, sector[:15], vhosttest.IOError},
		{"two ranges", vhosttest.Discard, 0, sector[:32], vhosttest.IOError},
		{"a range past the end", vhosttest.WriteZeroes, 0, le.AppendUint64(le.AppendUint64(nil, diskSize/512), 1), vhosttest.IOError},
		{"unknown flags of a range", vhosttest.WriteZeroes, 0, le.AppendUint64(le.AppendUint64(nil, 0), 2<<32|1), vhosttest.Unsupported},
		{"an empty read", vhosttest.In, 0, nil, vhosttest.OK},
		{"as it should be", vhosttest.In, 0, sector, vhosttest.OK},
	} {
		t.Run(r.what, func(t *testing.T) { do(t, q, r.typ, r.sector, r.data, r.want) })
	}
	if st := s.Stats(); !st.Connected || st.Errors == 0 || st.ReadBytes != 512 {
		t.Errorf("%+v", st)
	}
}

// A read-only disk says so.
func TestReadOnly(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	m.Geo.ReadOnly = true
	_, path, _ := serve(t, m)
	q := connect(t, path, vhosttest.Options{Features: vhosttest.FeatureReadOnly}).Queues[0]
	do(t, q, vhosttest.Out, 0, make([]byte, 512), vhosttest.IOError)
	do(t, q, vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
}

// What is longer than one I/O of the disk is taken apart.
func TestLongRequests(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	m.Depth = 2
	_, path, _ := serve(t, m)
	q := connect(t, path, vhosttest.Options{}).Queues[0]
	content := make([]byte, 5<<20+512)
	for i := range content {
		content[i] = byte(i>>9) ^ byte(i)
	}
	do(t, q, vhosttest.Out, 8, content, vhosttest.OK)
	got := make([]byte, len(content))
	do(t, q, vhosttest.In, 8, got, vhosttest.OK)
	if !bytes.Equal(got, content) {
		t.Error("what is read differs from what was written")
	}
}

// Writes are durable when they end, if the guest cannot flush or does not want to.
func TestWriteThrough(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	_, path, _ := serve(t, m)
	last := func() block.Flags { c := m.Calls(); return c[len(c)-1].Flags }
	f := connect(t, path, vhosttest.Options{Features: vhosttest.FeatureFlush | vhosttest.FeatureConfigWCE})
	sector := make([]byte, 512)
	for _, back := range []bool{false, true, false} {
		if err := f.SetWriteBack(back); err != nil {
			t.Fatal(err)
		}
		do(t, f.Queues[0], vhosttest.Out, 0, sector, vhosttest.OK)
		if fl := last(); (fl == 0) != back {
			t.Errorf("write back %v: a write has the flags %v", back, fl)
		}
	}
	f.Close()
	f = connect(t, path, vhosttest.Options{})
	do(t, f.Queues[0], vhosttest.Out, 0, sector, vhosttest.OK)
	if last() != block.FUA {
		t.Error("a write of a guest that never flushes is not durable when it ends")
	}
}

// Several queues carry requests at once, many at a time.
func TestManyAtOnce(t *testing.T) {
	for name, o := range kinds() {
		t.Run(name, func(t *testing.T) {
			o.Queues, o.Size = 3, 128
			_, path, _ := serve(t, nbdtest.NewMemory(diskSize))
			f := connect(t, path, o)
			disk := make([]byte, diskSize)
			mark := f.Queues[0].Mark()
			for round := range 6 {
				var all [3][]*vhosttest.Request
				for i, q := range f.Queues {
					for j := range 20 {
						sector := uint64(i*1000 + j*3)
						r := &vhosttest.Request{Typ: vhosttest.Out, Sector: sector, Data: bytes.Repeat([]byte{byte(round), byte(i), byte(j)}, 512)}
						if rand.IntN(2) == 0 {
							r.Typ, r.Data = vhosttest.In, make([]byte, 1536)
						} else {
							copy(disk[512*sector:], r.Data)
						}
						q.Post(r)
						all[i] = append(all[i], r)
					}
					if err := q.Announce(); err != nil {
						t.Fatal(err)
					}
				}
				for i, q := range f.Queues {
					if err := q.Wait(10*time.Second, all[i]...); err != nil {
						t.Fatal(err)
					}
					for _, r := range all[i] {
						if r.Status != vhosttest.OK || !bytes.Equal(r.Data, disk[512*r.Sector:][:len(r.Data)]) {
							t.Fatalf("round %d, queue %d, sector %d: result %d, or other data", round, i, r.Sector, r.Status)
						}
					}
				}
				f.Queues[0].Rewind(mark)
			}
		})
	}
}

// A queue that is stopped goes on where it was.
func TestStopAndRestart(t *testing.T) {
	for name, o := range kinds() {
		for _, o.NoLog = range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, log %v", name, !o.NoLog), func(t *testing.T) {
				_, path, _ := serve(t, nbdtest.NewMemory(diskSize))
				q := connect(t, path, o).Queues[0]
				for i := range 20 {
					want := bytes.Repeat([]byte{byte(i)}, 512)
					do(t, q, vhosttest.Out, 5, want, vhosttest.OK)
					if _, err := q.Stop(); err != nil {
						t.Fatal(err)
					}
					if err := q.Restart(); err != nil {
						t.Fatal(err)
					}
					got := make([]byte, 512)
					do(t, q, vhosttest.In, 5, got, vhosttest.OK)
					if !bytes.Equal(got, want) {
						t.Fatal("other data")
					}
				}
			})
		}
	}
}

// A front end hears of another size, and reads it.
func TestResize(t *testing.T) {
	d := &growing{Memory: nbdtest.NewMemory(2 * diskSize), resize: make(chan func(size uint64), 1)}
	d.Geo.Size = diskSize
	_, path, _ := serve(t, d)
	f := connect(t, path, vhosttest.Options{})
	do(t, f.Queues[0], vhosttest.In, diskSize/512, make([]byte, 512), vhosttest.IOError)
	size := func() uint64 {
		b, err := f.Config(0, 60)
		if err != nil {
			t.Fatal(err)
		}
		return le.Uint64(b) * 512
	}
	if size() != diskSize {
		t.Fatalf("%d bytes", size())
	}
	(<-d.resize)(2 * diskSize)
	if kind, err := f.Backend(); err != nil || kind != 2 {
		t.Fatalf("the back end says %d: %v", kind, err)
	}
	if size() != 2*diskSize {
		t.Errorf("%d bytes", size())
	}
	do(t, f.Queues[0], vhosttest.In, diskSize/512, make([]byte, 512), vhosttest.OK)
}

// growing is a disk that grows.
type growing struct {
	*nbdtest.Memory
	resize chan func(size uint64)
}

func (g *growing) OnResize(f func(size uint64)) (cancel func()) {
	g.resize <- f
	return func() {}
}

// growingSoon is a disk that grows while its size is being read.
type growingSoon struct {
	*nbdtest.Memory
	grow func(uint64)
}

func (d *growingSoon) OnResize(f func(uint64)) (cancel func()) {
	d.grow = f
	return func() {}
}

func (d *growingSoon) Geometry() block.Geometry {
	g := d.Memory.Geometry()
	if grow := d.grow; grow != nil {
		d.grow = nil
		grow(2 * diskSize)
	}
	return g
}

// A size that is read late does not undo that the disk has grown.
func TestResizeAtTheBeginning(t *testing.T) {
	_, path, _ := serve(t, &growingSoon{Memory: nbdtest.NewMemory(diskSize)})
	b, err := connect(t, path, vhosttest.Options{Memory: 16 << 20}).Config(0, 8)
	if err != nil || le.Uint64(b)*512 != 2*diskSize {
		t.Errorf("the guest's disk has %d bytes: %v", le.Uint64(b)*512, err)
	}
}
