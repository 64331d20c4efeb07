package attach

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// newAttacher returns one without peers, and its state directory.
func newAttacher(t *testing.T) (*Attacher, string) {
	t.Helper()
	cfg := config.Default("")
	cfg.StateDir = t.TempDir()
	now := func() *config.Config { return cfg }
	var running sync.WaitGroup
	t.Cleanup(running.Wait)
	return New(Config{Log: slog.New(slog.DiscardHandler), Users: local.NewConsumers(now), Context: t.Context(), Config: now,
		Run:  func(f func(context.Context)) { running.Go(func() { f(t.Context()) }) },
		Peer: func(name string) (Peer, error) { return nil, &api.Error{Code: api.CodeNotFound, Message: name} }}), cfg.StateDir
}

// The state is one file of all disks. A daemon that brings many back at once writes it a
// few times, and not once for each.
func TestManyDisksAreWrittenDownTogether(t *testing.T) {
	const disks = 50
	a, dir := newAttacher(t)
	made := iwarptest.WatchDir(t, dir)
	a.saving.Lock() // as while they are brought back
	var wg sync.WaitGroup
	for range disks {
		wg.Go(func() {
			if err := a.save(); err != nil {
				t.Error(err)
			}
		})
	}
	for a.toSave.Load() != disks {
		runtime.Gosched()
	}
	a.saving.Unlock()
	wg.Wait()
	if n := made(); n != 1 {
		t.Errorf("the state was written %d times for %d disks that wait together, want once", n, disks)
	}
}

// Who shares a write with others finds his disk in the file as soon as he is told that it is there.
func TestDisksThatAreWrittenDownTogetherAreThere(t *testing.T) {
	const disks = 200
	a, dir := newAttacher(t)
	var wg sync.WaitGroup
	for i := range disks {
		wg.Go(func() {
			s := Saved{Disk: Disk{ULP: "away", Peer: "beta", Export: fmt.Sprintf("disk%d", i)}}
			a.mu.Lock()
			a.suspended[s.Disk] = suspended{Saved: s}
			a.mu.Unlock()
			if err := a.save(); err != nil {
				t.Error(err)
			}
			if have, err := Load(dir); err != nil || !slices.Contains(have, s) {
				t.Errorf("%s is not written down: %v", s.Disk, err)
			}
		})
	}
	wg.Wait()
}
