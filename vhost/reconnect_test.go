package vhost_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
	"github.com/ironwarp/ironwarp/vhost"
	"github.com/ironwarp/ironwarp/vhost/vhosttest"
)

// What was under way when the back end ended is carried out by the one that comes after it, in
// the order in which it was taken, and no request ends twice: on every kind of ring, again and
// again, while some of the requests end before and some don't.
func TestReconnect(t *testing.T) {
	for name, o := range kinds() {
		t.Run(name, func(t *testing.T) {
			m := nbdtest.NewMemory(diskSize)
			var holding atomic.Bool
			m.Hold = func(_ block.Op, off uint64) bool { return holding.Load() && off/512%3 != 0 }
			_, path, end := serve(t, m)
			o.Size = 64
			f := connect(t, path, o)
			q := f.Queues[0]
			mark := q.Mark()
			for round := range 10 {
				holding.Store(true)
				submitted := len(m.Calls()) + 8
				var all []*vhosttest.Request
				held := 0
				for _, i := range rand.Perm(8) {
					all = append(all, &vhosttest.Request{Typ: vhosttest.Out, Sector: uint64(i), Data: bytes.Repeat([]byte{byte(round), byte(i)}, 256)})
					if i%3 != 0 {
						held++
					}
					q.Post(all[len(all)-1])
				}
				if err := q.Announce(); err != nil {
					t.Fatal(err)
				}
				m.WaitCalls(submitted) // what comes after them comes from the next server
				for q.Poll() < len(all)-held && round%2 == 0 {
					if done(all) == len(all)-held {
						break
					}
				}
				f.Hangup()
				end() // what is held is at the disk
				m.LetAll()
				holding.Store(false)
				end = listen(t, vhost.NewServer(vhost.Config{Device: m, DrainTimeout: time.Millisecond}), path)
				before := done(all)
				if err := f.Connect(path); err != nil {
					t.Fatal(err)
				}
				if err := q.Wait(10*time.Second, all...); err != nil {
					t.Fatal(err)
				}
				again := m.Calls()[submitted:]
				if len(again) < held || len(again) > len(all)-before {
					t.Errorf("round %d: %d requests are carried out again; %d were held, and %d of %d had ended", round, len(again), held, before, len(all))
				}
				at := 0
				for _, c := range again {
					for at < len(all) && all[at].Sector*512 != c.Offset {
						at++
					}
				}
				if at == len(all) {
					t.Errorf("round %d: carried out again as %v", round, again)
				}
				for _, r := range all {
					got := make([]byte, 512)
					do(t, q, vhosttest.In, r.Sector, got, vhosttest.OK)
					if r.Status != vhosttest.OK || !bytes.Equal(got, r.Data) {
						t.Fatalf("round %d, sector %d: result %d, or other data", round, r.Sector, r.Status)
					}
				}
				q.Rewind(mark)
			}
		})
	}
}

// busy is a disk that has no room for an I/O, as one whose peer is away.
type busy struct {
	*nbdtest.Memory
	waiting chan struct{}
}

func (busy) TryGet(block.Op, uint64, uint32, block.Flags) (block.IO, error) {
	return nil, block.ErrBusy
}

func (d busy) Get(ctx context.Context, _ block.Op, _ uint64, _ uint32, _ block.Flags) (block.IO, error) {
	d.waiting <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// A request that waited for the disk when the back end ended has not failed: the next back end
// carries it out.
func TestEndFailsNoRequestThatWaits(t *testing.T) {
	m := nbdtest.NewMemory(diskSize)
	o := vhosttest.Options{Memory: 16 << 20, Queues: 8}
	for round := range 20 {
		d := busy{m, make(chan struct{}, o.Queues)}
		path := filepath.Join(t.TempDir(), "sock")
		end := listen(t, vhost.NewServer(vhost.Config{Device: d, DrainTimeout: time.Millisecond}), path)
		f := connect(t, path, o)
		var all []*vhosttest.Request
		for _, q := range f.Queues {
			r := &vhosttest.Request{Typ: vhosttest.Out, Data: make([]byte, 512)}
			all = append(all, r)
			q.Post(r)
			if err := q.Announce(); err != nil {
				t.Fatal(err)
			}
			<-d.waiting
		}
		end()
		f.Hangup()
		listen(t, vhost.NewServer(vhost.Config{Device: m}), path)
		if err := f.Connect(path); err != nil {
			t.Fatal(err)
		}
		for i, q := range f.Queues {
			if err := q.Wait(10*time.Second, all[i]); err != nil || all[i].Status != vhosttest.OK {
				t.Fatalf("round %d: result %d: %v", round, all[i].Status, err)
			}
		}
		f.Close()
	}
}

// What was asked of a disk reaches no other that is served at the same socket afterwards, nor
// the same when it has been detached and attached again: somebody else may have written to it
// meanwhile. A guest that begins anew is served.
func TestRequestsOfAnotherAttachment(t *testing.T) {
	for name, o := range kinds() {
		t.Run(name, func(t *testing.T) {
			first, second := nbdtest.NewMemory(diskSize), nbdtest.NewMemory(diskSize)
			var holding atomic.Bool
			holding.Store(true)
			first.Hold = func(block.Op, uint64) bool { return holding.Load() }
			path := filepath.Join(t.TempDir(), "sock")
			here, other := block.NewID(), block.NewID()
			serve := func(m *nbdtest.Memory, of block.ID) (end func()) {
				return listen(t, vhost.NewServer(vhost.Config{Device: m, Attachment: of, DrainTimeout: time.Millisecond}), path)
			}
			end := serve(first, here)
			f := connect(t, path, o)
			r := &vhosttest.Request{Typ: vhosttest.Out, Data: bytes.Repeat([]byte{1}, 512)}
			f.Queues[0].Post(r)
			if err := f.Queues[0].Announce(); err != nil {
				t.Fatal(err)
			}
			first.WaitHeld(1)
			f.Hangup()
			end()
			first.LetAll()
			holding.Store(false)

			end = serve(second, other)
			if err := f.Connect(path); !errors.Is(err, vhosttest.ErrRefused) {
				t.Errorf("it is served: %v", err)
			}
			f.Hangup()
			do(t, connect(t, path, o).Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
			end()
			if calls := second.Calls(); len(calls) != 1 {
				t.Errorf("the other disk was asked for %v", calls)
			}

			serve(first, here)
			if err := f.Connect(path); err != nil {
				t.Fatal(err)
			}
			if err := f.Queues[0].Wait(10*time.Second, r); err != nil || r.Status != vhosttest.OK {
				t.Errorf("result %d: %v", r.Status, err)
			}
		})
	}
}

func done(all []*vhosttest.Request) (n int) {
	for _, r := range all {
		if r.Done {
			n++
		}
	}
	return n
}

// A log that the front end has spoiled ends it, and nothing else.
func TestSpoiledLog(t *testing.T) {
	for name, o := range kinds() {
		t.Run(name, func(t *testing.T) {
			_, path, _ := serve(t, nbdtest.NewMemory(diskSize))
			for range 50 {
				f := connect(t, path, o)
				do(t, f.Queues[0], vhosttest.Out, 0, make([]byte, 512), vhosttest.OK)
				f.Hangup()
				log := f.Log()
				for range 1 + rand.IntN(4) {
					var b [2]byte
					b[0], b[1] = byte(rand.IntN(256)), byte(rand.IntN(3))
					if _, err := unix.Pwrite(log, b[:], int64(rand.IntN(128)&^1)); err != nil {
						t.Fatal(err)
					}
				}
				// It is served or refused; either way the next one is served.
				if err := f.Connect(path); err == nil {
					f.Hangup()
				}
				f.Close()
			}
			do(t, connect(t, path, o).Queues[0], vhosttest.In, 0, make([]byte, 512), vhosttest.OK)
		})
	}
}
