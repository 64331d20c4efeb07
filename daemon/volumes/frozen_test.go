package volumes

import (
	"context"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// copies is a driver that can always copy, and writes down whether the host's volumes were frozen then.
type copies struct {
	driver
	h      *host
	frozen []bool
}

func (c *copies) open(ctx context.Context, known block.ID) (block.ID, []string, error) {
	id, features, err := c.driver.open(ctx, known)
	return id, append(features, api.FeatureSnapshots, api.FeatureClones), err
}

func (c *copies) clone(ctx context.Context, _, to storage) error {
	c.h.mu.Lock()
	c.frozen = append(c.frozen, c.h.frozen > 0)
	c.h.mu.Unlock()
	return c.driver.create(ctx, to, 1<<20)
}

// TestWhatMayBeInUseIsFrozenWhileItIsCopied: a snapshot or clone of a volume is made while nothing writes to it; a snapshot, which nobody
// writes to, needs no more. Afterwards all goes on.
func TestWhatMayBeInUseIsFrozenWhileItIsCopied(t *testing.T) {
	ctx := t.Context()
	x, h := newVolumes(t, t.TempDir(), poolDir(t), nil)
	spy := &copies{driver: x.pools["pool"].driver, h: h}
	x.pools["pool"].driver = spy
	if _, err := x.Create(ctx, create("data", 1<<20)); err != nil {
		t.Fatal(err)
	}
	_, err := x.Snapshot(ctx, "data", api.VolumeSnapshot{Name: "snap"})
	if err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"copy": "data", "back": "snap"} {
		if _, err := x.Create(ctx, api.VolumeCreate{Pool: "pool", Name: name, From: from}); err != nil {
			t.Fatal(err)
		}
		want := from == "data"
		if got := spy.frozen[len(spy.frozen)-1]; got != want {
			t.Errorf("the volume is frozen while %s is copied: %v, want %v", from, got, want)
		}
	}
	if !spy.frozen[0] || h.frozen != 0 {
		t.Errorf("frozen while the snapshot is made: %v, and %d times after all", spy.frozen[0], h.frozen)
	}
}

// A snapshot is of the volume that it was asked for, not of one that another request has put in its place meanwhile.
func TestSnapshotIsNotOfAVolumeThatHasTakenThePlace(t *testing.T) {
	x, h := newVolumes(t, t.TempDir(), poolDir(t), nil)
	x.pools["pool"].driver = &copies{driver: x.pools["pool"].driver, h: h}
	if _, err := x.Create(t.Context(), create("data", 1<<20)); err != nil {
		t.Fatal(err)
	}
	replaced := false
	ctx := Managing(t.Context(), func(config.Pool) bool { // it is asked when the volume has been found
		if !replaced {
			replaced = true
			err := x.Remove(t.Context(), "data")
			if err == nil {
				_, err = x.Create(t.Context(), create("data", 1<<20))
			}
			if err != nil {
				t.Error(err)
			}
		}
		return true
	})
	_, err := x.Snapshot(ctx, "data", api.VolumeSnapshot{Name: "snap"})
	says(t, err, api.CodeNotFound, "data")
	if x.Has("snap") {
		t.Error("there is a snapshot of another volume")
	}
	if v, err := x.Snapshot(t.Context(), "data", api.VolumeSnapshot{Name: "snap"}); err != nil || v.Source != "data" {
		t.Errorf("of the one that is there now: %+v, %v", v, err)
	}
}
