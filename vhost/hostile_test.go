package vhost_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/vhost/vhosttest"
)

// awaitHangUp waits until the back end has hung up.
func awaitHangUp(t *testing.T, f *vhosttest.Frontend) {
	t.Helper()
	f.Conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := io.Copy(io.Discard, f.Conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the front end was not ended")
	}
}

func state(index, num uint32) []byte { return le.AppendUint32(le.AppendUint32(nil, index), num) }

func u64(v uint64) []byte { return le.AppendUint64(nil, v) }

// descriptors makes n descriptors of a file.
func descriptors(fd, n int) []int {
	fds := make([]int, n)
	for i := range fds {
		fds[i] = fd
	}
	return fds
}

// openFDs counts the process's descriptors.
func openFDs(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// A front end that says what the protocol does not know is ended, and told so where it asks
// for an answer. The next one is served, and no descriptor stays behind.
func TestHostileMessages(t *testing.T) {
	_, path, _ := serve(t, nbdtest.NewMemory(diskSize))
	send := func(kind uint32, payload []byte, fds ...int) func(*vhosttest.Frontend) error {
		return func(f *vhosttest.Frontend) error { return f.Send(kind, 0, payload, fds...) }
	}
	region := func(guest, size, user, offset uint64) []byte {
		b := make([]byte, 8)
		for _, v := range []uint64{guest, size, user, offset} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	add := func(guest, size, user, offset uint64) func(*vhosttest.Frontend) error {
		return func(f *vhosttest.Frontend) error {
			return f.Send(vhosttest.AddMemReg, 0, region(guest, size, user, offset), f.Memory.FD)
		}
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	before := openFDs(t)
	for what, try := range map[string]func(*vhosttest.Frontend) error{
		"another version":           func(f *vhosttest.Frontend) error { return f.SendRaw([]byte{1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}) },
		"a reply":                   func(f *vhosttest.Frontend) error { return f.Send(vhosttest.GetFeatures, 4, nil) },
		"an unknown message":        send(77, nil),
		"a payload of 4 GiB":        func(f *vhosttest.Frontend) error { return f.SendRaw(vhosttest.Header(vhosttest.SetFeatures, 0, -1)) },
		"a payload too short":       send(vhosttest.SetVringNum, make([]byte, 7)),
		"a payload that is none":    send(vhosttest.GetFeatures, make([]byte, 8)),
		"features not offered":      send(vhosttest.SetFeatures, u64(1<<63)),
		"protocol not offered":      send(vhosttest.SetProtocolFeatures, u64(1<<63)),
		"queue 64":                  send(vhosttest.SetVringNum, state(64, 128)),
		"queue 2^32-1":              send(vhosttest.SetVringEnable, state(1<<32-1, 1)),
		"a queue of none":           send(vhosttest.SetVringNum, state(1, 0)),
		"a queue of 65536":          send(vhosttest.SetVringNum, state(1, 65536)),
		"a queue of 100":            startOf(100, 0x1000),
		"a ring that is nowhere":    startOf(128, 1<<50),
		"a ring at an odd address":  startOf(128, 0x7f0000000+8),
		"a queue is moved":          send(vhosttest.SetVringAddr, make([]byte, 40)),
		"a queue is resized":        send(vhosttest.SetVringNum, state(0, 64)),
		"a queue goes on elsewhere": send(vhosttest.SetVringBase, state(0, 64)),
		"9 descriptors": func(f *vhosttest.Frontend) error {
			return f.Send(vhosttest.SetMemTable, 0, f.MemTable(), descriptors(f.Memory.FD, 9)...)
		},
		"200 descriptors": func(f *vhosttest.Frontend) error {
			return f.Send(vhosttest.GetFeatures, 0, nil, descriptors(f.Memory.FD, 200)...)
		},
		"descriptors with the wrong message":    func(f *vhosttest.Frontend) error { return f.Send(vhosttest.GetFeatures, 0, nil, f.Memory.FD) },
		"two regions, one descriptor":           func(f *vhosttest.Frontend) error { return f.Send(vhosttest.SetMemTable, 0, f.MemTable(), f.Memory.FD) },
		"9 regions":                             send(vhosttest.SetMemTable, append(u64(9), make([]byte, 64)...)),
		"a region without a descriptor":         send(vhosttest.AddMemReg, make([]byte, 40)),
		"a region of nothing":                   add(0, 0, 0, 0),
		"a region past its file":                add(0, 1<<20, 0, 64<<20),
		"a region of 2^64-1":                    add(0, 1<<64-1, 0, 0),
		"a region whose offset wraps":           add(0, 1<<20, 0, 1<<64-1<<19),
		"a region past the guest's end":         add(1<<64-1<<19, 1<<20, 0, 0),
		"a region past the front end's end":     add(0, 1<<20, 1<<64-1<<19, 0),
		"regions that overlap in the guest":     add(1<<32, 1<<20, 0, 0),
		"regions that overlap in the front end": add(0, 1<<20, 0x7f0000000+4096, 0),
		"memory that is an event counter":       send(vhosttest.AddMemReg, region(0, 4096, 0, 0), event),
		"memory that is read only": func(f *vhosttest.Frontend) error {
			r, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", f.Memory.FD))
			if err != nil {
				return err
			}
			defer r.Close()
			return f.Send(vhosttest.AddMemReg, 0, region(0, 4096, 0, 0), int(r.Fd()))
		},
		"a region that there is not":   send(vhosttest.RemMemReg, region(0, 4096, 0, 0)),
		"the rings' memory goes":       func(f *vhosttest.Frontend) error { return f.Send(vhosttest.SetMemTable, 0, u64(0)) },
		"a kick that is a file":        func(f *vhosttest.Frontend) error { return f.Send(vhosttest.SetVringKick, 0, u64(1), f.Memory.FD) },
		"a kick without a descriptor":  send(vhosttest.SetVringKick, u64(1)),
		"a queue that is to be polled": send(vhosttest.SetVringKick, u64(1|1<<8)),
		"a descriptor that is denied":  send(vhosttest.SetVringCall, u64(1|1<<8), event),
		"a kick before all": func(f *vhosttest.Frontend) error {
			return errors.Join(f.Send(vhosttest.SetVringEnable, 0, state(5, 1)), f.Send(vhosttest.SetVringKick, 0, u64(5), event))
		},
		"configuration past its end":    send(vhosttest.GetConfig, append(le.AppendUint32(le.AppendUint32(nil, 250), 10), make([]byte, 14)...)),
		"configuration of another size": send(vhosttest.GetConfig, append(le.AppendUint32(le.AppendUint32(nil, 0), 60), make([]byte, 8)...)),
		"another size of the disk":      send(vhosttest.SetConfig, append(le.AppendUint32(le.AppendUint32(nil, 0), 8), make([]byte, 12)...)),
		"a log for 65535 queues":        send(vhosttest.GetInflightFD, append(make([]byte, 16), 0xff, 0xff, 8, 0)),
		"a log while a queue runs": func(f *vhosttest.Frontend) error {
			return f.Send(vhosttest.SetInflightFD, 0, append(make([]byte, 16), 1, 0, 8, 0), f.Memory.FD)
		},
	} {
		t.Run(what, func(t *testing.T) {
			f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
			if err := try(f); err != nil && !errors.Is(err, unix.EPIPE) {
				t.Fatal(err)
			}
			awaitHangUp(t, f)
			f.Close()
		})
	}
	t.Run("a message that is cut", func(t *testing.T) {
		for _, b := range [][]byte{{1}, vhosttest.Header(vhosttest.SetFeatures, 0, 8)} {
			f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
			if err := f.SendRaw(b); err != nil {
				t.Fatal(err)
			}
			f.Conn.CloseWrite()
			awaitHangUp(t, f)
			f.Close()
		}
	})
	t.Run("a log that is too large", func(t *testing.T) {
		f, err := vhosttest.New(vhosttest.Options{Memory: 16 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		log := append(append(u64(8<<20), u64(0)...), 1, 0, 8, 0)
		if err := errors.Join(f.Dial(path), f.Send(vhosttest.SetInflightFD, 0, log, f.Memory.FD)); err != nil {
			t.Fatal(err)
		}
		awaitHangUp(t, f)
	})
	t.Run("the answer", func(t *testing.T) {
		f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
		if err := f.Ack(vhosttest.SetVringNum, state(64, 128)); !errors.Is(err, vhosttest.ErrRefused) {
			t.Error(err)
		}
		f.Close()
	})
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	do(t, f.Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
	f.Close()
	for deadline := time.Now().Add(10 * time.Second); openFDs(t) > before; {
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors are open, %d were before", openFDs(t), before)
		}
	}
}

// startOf starts queue 1 at an address.
func startOf(num uint32, at uint64) func(f *vhosttest.Frontend) error {
	return func(f *vhosttest.Frontend) error {
		kick, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			return err
		}
		defer unix.Close(kick)
		addr := u64(1)
		for range 4 {
			addr = le.AppendUint64(addr, at)
		}
		return errors.Join(f.Send(vhosttest.SetVringNum, 0, state(1, num)), f.Send(vhosttest.SetVringAddr, 0, addr),
			f.Send(vhosttest.SetVringEnable, 0, state(1, 1)), f.Send(vhosttest.SetVringKick, 0, u64(1), kick))
	}
}

// A guest that breaks a ring ends its own front end.
func TestHostileRings(t *testing.T) {
	const next, write, indirect = 1, 2, 4
	put := func(q *vhosttest.Queue, i int, addr uint64, n uint32, flags, link uint16) {
		q.PutDesc(i, addr, n, flags, link)
	}
	for what, attack := range map[string]func(q *vhosttest.Queue, m *vhosttest.Memory){
		"a circle": func(q *vhosttest.Queue, m *vhosttest.Memory) {
			put(q, 0, m.Guest(0), 16, next, 1)
			put(q, 1, m.Guest(0), 16, next, 0)
		},
		"a descriptor that there is not": func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 16, next, 500) },
		"memory that there is not":       func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, 1<<60, 16, 0, 0) },
		"memory that wraps":              func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, 1<<64-8, 16, 0, 0) },
		"memory past the end":            func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(int64(len(m.Mem)-8)), 16, 0, 0) },
		"4 GiB":                          func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 1<<32-1, 0, 0) },
		"no room for the result":         func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 16, 0, 0) },
		"no room at all for the result":  func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 0, write, 0) },
		"to be read behind to be written": func(q *vhosttest.Queue, m *vhosttest.Memory) {
			put(q, 0, m.Guest(0), 16, next|write, 1)
			put(q, 1, m.Guest(0), 16, 0, 0)
		},
		"a table of 15 bytes":         func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 15, indirect, 0) },
		"an empty table":              func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 0, indirect, 0) },
		"a table of 2000 descriptors": func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 32000, indirect, 0) },
		"a table that goes on":        func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, m.Guest(0), 16, indirect|next, 1) },
		"a table that is nowhere":     func(q *vhosttest.Queue, m *vhosttest.Memory) { put(q, 0, 1<<50, 16, indirect, 0) },
		"a table with a circle": func(q *vhosttest.Queue, m *vhosttest.Memory) {
			at, b := m.Alloc(32)
			q.PutIn(b, m.Guest(0), 16, next, 0)
			q.PutIn(b[16:], m.Guest(0), 1<<31, next, 0) // packed: too long
			put(q, 0, at, 32, indirect, 0)
		},
		"a table in a table": func(q *vhosttest.Queue, m *vhosttest.Memory) {
			at, b := m.Alloc(16)
			q.PutIn(b, at, 16, indirect, 0)
			put(q, 0, at, 16, indirect, 0)
		},
		"1500 parts": func(q *vhosttest.Queue, m *vhosttest.Memory) {
			at, b := m.Alloc(16 * 1024)
			for i := range 1024 {
				q.PutIn(b[16*i:], m.Guest(0), 1, next, uint16(i+1)%1024)
			}
			put(q, 0, at, 16*1024, indirect, 0)
		},
	} {
		for _, packed := range []bool{false, true} {
			name := "split"
			o := vhosttest.Options{Features: vhosttest.FeatureIndirect, Memory: 16 << 20}
			if packed {
				name = "packed"
				o.Features |= vhosttest.FeaturePacked
			}
			t.Run(what+", "+name, func(t *testing.T) {
				_, path, _ := serve(t, nbdtest.NewMemory(diskSize))
				f := connect(t, path, o)
				attack(f.Queues[0], f.Memory)
				if err := f.Queues[0].Expose(0); err != nil {
					t.Fatal(err)
				}
				awaitHangUp(t, f)
			})
		}
	}
	for what, index := range map[string]uint16{"its index is far ahead": 129, "its index goes back": 65535} {
		t.Run(what, func(t *testing.T) {
			_, path, _ := serve(t, nbdtest.NewMemory(diskSize))
			f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
			if err := f.Queues[0].SetAvailable(index); err != nil {
				t.Fatal(err)
			}
			awaitHangUp(t, f)
		})
	}
}

// Memory that goes after it was mapped ends the front end that has it and nothing else: when
// the rings are in it, and when only data is.
func TestTruncatedMemory(t *testing.T) {
	for what, left := range map[string]int64{"all": 0, "the data": 4<<20 + 64<<10} {
		for _, typ := range []uint32{vhosttest.In, vhosttest.Out} {
			m := nbdtest.NewMemory(diskSize)
			_, path, _ := serve(t, m)
			f := connect(t, path, vhosttest.Options{Memory: 16 << 20, Unsealed: true})
			q := f.Queues[0]
			q.Rewind(8 << 20)
			q.Post(&vhosttest.Request{Typ: typ, Data: make([]byte, 1<<20)})
			if err := unix.Ftruncate(f.Memory.FD, left); err != nil {
				t.Fatal(what, err)
			}
			if err := q.Kick(); err != nil {
				t.Fatal(err)
			}
			if left > 0 {
				if err := q.SetAvailable(1); err != nil {
					t.Fatal(err)
				}
			}
			awaitHangUp(t, f)
			g := connect(t, path, vhosttest.Options{Memory: 16 << 20})
			do(t, g.Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
		}
	}
}

// A front end that makes the back end's wake-up wait, by a full counter whose descriptor waits,
// keeps nobody.
func TestFullCounter(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	_, path, end := serve(t, m)
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	q := f.Queues[0]
	if err := q.FillCall(); err != nil {
		t.Fatal(err)
	}
	r := &vhosttest.Request{Typ: vhosttest.In, Data: make([]byte, 512)}
	q.Post(r)
	if err := q.Announce(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); q.Poll() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the request has not ended")
		}
	}
	end()
}

// Nor does one that has another counter take its place meanwhile.
func TestFullCounterIsReplaced(t *testing.T) {
	_, path, end := serve(t, nbdtest.NewMemory(diskSize))
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	q := f.Queues[0]
	if err := q.FillCall(); err != nil {
		t.Fatal(err)
	}
	q.Post(&vhosttest.Request{Typ: vhosttest.In, Data: make([]byte, 512)})
	if err := q.Announce(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); q.Poll() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("the request has not ended")
		}
	}
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(event)
	f.Conn.SetDeadline(time.Now().Add(10 * time.Second))
	for range 3 { // the counter is full until the end, whoever else is there
		if err := f.Ack(vhosttest.SetVringCall, u64(0), event); err != nil {
			t.Fatal(err)
		}
	}
	f.Hangup()
	g := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	do(t, g.Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
	end()
}

// Nor does one that asks and does not read the answers.
func TestUnreadReplies(t *testing.T) {
	_, path, end := serve(t, nbdtest.NewMemory(diskSize))
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	var err error
	for err == nil {
		f.Conn.SetWriteDeadline(time.Now().Add(time.Second))
		err = f.Send(vhosttest.GetFeatures, 0, nil)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		end()
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the server does not end")
	}
}

// While a front end is connected another is hung up on. When the first has hung up, one that
// waits is served once the first one's requests have ended.
func TestOneAtATime(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	var mu sync.Mutex
	hold := true
	m.Hold = func(block.Op, uint64) bool {
		mu.Lock()
		defer mu.Unlock()
		return hold
	}
	_, path, _ := serve(t, m)
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	other, err := vhosttest.New(vhosttest.Options{Memory: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := other.Connect(path); err == nil {
		t.Fatal("two front ends are served")
	}
	other.Hangup()
	f.Queues[0].Post(&vhosttest.Request{Typ: vhosttest.Out, Data: []byte(strings.Repeat("a", 512))})
	if err := f.Queues[0].Announce(); err != nil {
		t.Fatal(err)
	}
	m.WaitHeld(1)
	f.Hangup()
	if err := other.Dial(path); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- other.Start() }()
	select {
	case err := <-done:
		t.Fatalf("it is served while the first one's write is under way: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	mu.Lock()
	hold = false
	mu.Unlock()
	m.LetAll()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	do(t, other.Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
}

// Front ends that come and go while another's requests have not ended cost nothing, and who has
// waited and is still there is served.
func TestWhoWaitsAndGoes(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	var hold atomic.Bool
	hold.Store(true)
	m.Hold = func(block.Op, uint64) bool { return hold.Load() }
	_, path, _ := serve(t, m)
	f := connect(t, path, vhosttest.Options{Memory: 16 << 20})
	other, err := vhosttest.New(vhosttest.Options{Memory: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	f.Queues[0].Post(&vhosttest.Request{Typ: vhosttest.Out, Data: make([]byte, 512)})
	if err := f.Queues[0].Announce(); err != nil {
		t.Fatal(err)
	}
	m.WaitHeld(1)
	f.Hangup()
	before := openFDs(t)
	for range 100 {
		if err := other.Dial(path); err != nil {
			t.Fatal(err)
		}
		other.Hangup()
	}
	if err := other.Dial(path); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); openFDs(t) > before+4; { // its two ends, and one that went
		if time.Now().After(deadline) {
			t.Fatalf("%d descriptors are open, %d were before", openFDs(t), before)
		}
	}
	late, err := vhosttest.New(vhosttest.Options{Memory: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := late.Connect(path); err == nil {
		t.Error("two wait")
	}
	hold.Store(false)
	m.LetAll()
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	do(t, other.Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
}
