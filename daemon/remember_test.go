package daemon

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
)

// The state is one file of all disks. A daemon that brings many back at once writes it a
// few times, and not once for each.
func TestManyDisksAreWrittenDownTogether(t *testing.T) {
	const disks = 50
	h := newHost(t, "")
	made := iwarptest.WatchDir(t, h.d.config().StateDir)
	h.d.saving.Lock() // as while they are brought back
	before := h.d.toSave.Load()
	var wg sync.WaitGroup
	for range disks {
		wg.Go(func() {
			if err := h.d.remember(); err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all ask", func() bool { return h.d.toSave.Load() == before+disks })
	h.d.saving.Unlock()
	wg.Wait()
	if n := made(); n != 1 {
		t.Errorf("the state was written %d times for %d disks that wait together, want once", n, disks)
	}
}

// Who shares a write with others finds his disk in the file as soon as he is told that it is there.
func TestDisksThatAreWrittenDownTogetherAreThere(t *testing.T) {
	const disks = 200
	h := newHost(t, "")
	dir := h.d.config().StateDir
	var wg sync.WaitGroup
	for i := range disks {
		wg.Go(func() {
			s := saved{disk: disk{ULP: "away", Peer: "beta", Export: fmt.Sprintf("disk%d", i)}}
			h.d.mu.Lock()
			h.d.aside = append(h.d.aside, aside{saved: s})
			h.d.mu.Unlock()
			if err := h.d.remember(); err != nil {
				t.Error(err)
			}
			if have, err := loadState(dir); err != nil || !slices.Contains(have.Attachments, s) {
				t.Errorf("%s is not written down: %v", s.disk, err)
			}
		})
	}
	wg.Wait()
}

// A disk is written down before it is used, and not once more when it is there.
func TestADiskIsWrittenDownOnce(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	here, there := iwarptest.WatchDir(t, alpha.d.config().StateDir), iwarptest.WatchDir(t, beta.d.config().StateDir)
	alpha.attach("disk")
	if a, b := here(), there(); a != 1 || b != 1 {
		t.Errorf("to attach a disk the state was written %d times, and %d times by who exports it; want 1 and 1", a, b)
	}
}
