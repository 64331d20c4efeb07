package volumes

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/loopfs"
)

// A volume takes room only for what is written, from the beginning and after it has grown.
func TestVolumeTakesRoomForWhatIsWritten(t *testing.T) {
	ctx := t.Context()
	x, _ := newVolumes(t, t.TempDir(), loopfs.Mount(t, "ext4", 0), nil)
	v, err := x.Create(ctx, create("data", 4<<20))
	if err != nil || v.Used != 0 {
		t.Errorf("an empty volume takes %d bytes, %v", v.Used, err)
	}
	if v, err = x.Expand(ctx, "data", api.VolumeExpand{Size: 8 << 20}); err != nil || v.Used != 0 {
		t.Errorf("a grown one takes %d bytes, %v", v.Used, err)
	}
}

// Sizes are multiples of 512 above 0, whoever asks; what no disk has is no room, and no overflow.
func TestSizesOfVolumes(t *testing.T) {
	ctx := t.Context()
	x, _ := newVolumes(t, t.TempDir(), poolDir(t), nil)
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	for size, code := range map[int64]string{
		0: api.CodeInvalid, -512: api.CodeInvalid, 511: api.CodeInvalid, 513: api.CodeInvalid, 1<<20 + 1: api.CodeInvalid,
		math.MaxInt64: api.CodeInvalid, math.MinInt64: api.CodeInvalid, math.MaxInt64 - 511: api.CodeNoSpace,
	} {
		_, err := x.Create(ctx, create("more", size))
		says(t, err, code)
		_, err = x.Expand(ctx, "data", api.VolumeExpand{Size: size})
		says(t, err, code)
	}
	if v, err := x.Show(ctx, "data"); err != nil || v.Size != 512 || len(x.List(ctx)) != 1 {
		t.Errorf("%+v, %v, of %d", v, err, len(x.List(ctx)))
	}
}

// A directory to which others may write is no pool: what they put there would be a disk.
func TestDirectoryThatOthersMayWriteToIsNoPool(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to have a directory of another user")
	}
	for name, adjust := range map[string]func(dir string) error{
		"by its group":  func(dir string) error { return os.Chmod(dir, 0o720) },
		"by all":        func(dir string) error { return os.Chmod(dir, 0o702) },
		"by its owner":  func(dir string) error { return os.Chown(dir, 65534, 0) },
		"while it runs": nil,
	} {
		dir, ctx := poolDir(t), t.Context()
		x, _ := newVolumes(t, t.TempDir(), dir, nil)
		if adjust == nil {
			if _, err := x.Create(ctx, create("data", 512)); err != nil {
				t.Fatal(err)
			}
			adjust = func(dir string) error { return os.Chmod(dir, 0o777) }
		}
		if err := adjust(dir); err != nil {
			t.Fatal(err)
		}
		before := len(files(t, dir))
		_, err := x.Create(ctx, create("more", 512))
		says(t, err, api.CodeForbidden, "others than the daemon's user may write", "chmod 0700")
		if after := len(files(t, dir)); after != before {
			t.Errorf("%s: %d files, there were %d", name, after, before)
		}
	}
}

// A link in the place of a volume's file leads nowhere: what it points to is neither read, nor changed, nor removed.
func TestNoLinkInAPoolIsFollowed(t *testing.T) {
	for _, link := range []string{"symbolic", "directory"} {
		dir, ctx := loopfs.Mount(t, "xfs", 0), t.Context()
		x, _ := newVolumes(t, t.TempDir(), dir, nil)
		if _, err := x.Create(ctx, create("data", 1<<20)); err != nil {
			t.Fatal(err)
		}
		outside := filepath.Join(dir, "outside")
		if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		e, _ := x.Export("data")
		err := os.Remove(e.Path)
		if link == "symbolic" {
			err = errors.Join(err, os.Symlink("outside", e.Path))
		} else {
			err = errors.Join(err, os.Mkdir(e.Path, 0o700))
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.Expand(ctx, "data", api.VolumeExpand{Size: 2 << 20}); err == nil {
			t.Errorf("%s: it grows", link)
		}
		if v, err := x.Snapshot(ctx, "data", api.VolumeSnapshot{Name: "snap"}); err == nil {
			t.Errorf("%s: a snapshot of it: %+v", link, v)
		}
		if link == "symbolic" {
			if err := x.Remove(ctx, "data"); err != nil {
				t.Error(err)
			}
		}
		if data, err := os.ReadFile(outside); err != nil || string(data) != "secret" {
			t.Errorf("%s: what it points to is %q, %v", link, data, err)
		}
	}
}

// A pool has so many volumes and snapshots, together; one that goes makes room.
func TestPoolHasAtMostSoManyVolumes(t *testing.T) {
	dir, ctx := loopfs.Mount(t, "xfs", 0), t.Context()
	x, _ := newVolumes(t, t.TempDir(), dir, nil)
	x.SetPools([]config.Pool{{Name: "pool", Driver: api.DriverFile, Path: dir, MaxVolumes: 3}})
	for _, name := range []string{"a", "b"} {
		if _, err := x.Create(ctx, create(name, 512)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.Snapshot(ctx, "a", api.VolumeSnapshot{Name: "s"}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		_, err := x.Create(ctx, create("c", 512))
		says(t, err, api.CodeNoSpace, "as many as it may have", "max_volumes")
		_, err = x.Snapshot(ctx, "a", api.VolumeSnapshot{Name: "s2"})
		says(t, err, api.CodeNoSpace)
	}
	if left := files(t, dir); len(left) != 3 {
		t.Errorf("%v", left)
	}
	if err := x.Remove(ctx, "s"); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Create(ctx, create("c", 512)); err != nil {
		t.Error(err)
	}
}

// A volume begins with what is in its own pool alone: who manages one pool learns nothing of another.
func TestNoCopyOfAnotherPool(t *testing.T) {
	dir, ctx := loopfs.Mount(t, "xfs", 0), t.Context()
	x, _ := newVolumes(t, t.TempDir(), dir, nil)
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	if _, err := x.Snapshot(ctx, "data", api.VolumeSnapshot{Name: "snap"}); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "other")
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	x.SetPools([]config.Pool{{Name: "pool", Driver: api.DriverFile, Path: dir, MaxVolumes: 9}, {Name: "other", Driver: api.DriverFile, Path: other, MaxVolumes: 9}})
	for _, from := range []string{"data", "snap"} {
		_, err := x.Create(ctx, api.VolumeCreate{Pool: "other", Name: "copy", From: from})
		says(t, err, api.CodeInvalid, "in pool pool, and not in other")
	}
	_, err := x.Snapshot(ctx, "snap", api.VolumeSnapshot{Name: "again"})
	says(t, err, api.CodeInvalid, "is a snapshot")
	if left := files(t, other); len(left) != 0 {
		t.Errorf("%v", left)
	}
}

// Limits are kept: the export has them, and has them again after a restart.
func TestLimitsOfAVolumeAreKept(t *testing.T) {
	state, dir, ctx := t.TempDir(), poolDir(t), t.Context()
	x, _ := newVolumes(t, state, dir, nil)
	q := create("data", 512)
	q.QoS = api.QoS{IOPS: 100}
	if _, err := x.Create(ctx, q); err != nil {
		t.Fatal(err)
	}
	limits := func(x *Volumes, want api.QoS) {
		t.Helper()
		l, err := config.LimitsOf(want)
		if err != nil {
			t.Fatal(err)
		}
		if e, _ := x.Export("data"); e.QoS != l {
			t.Errorf("the export has %+v, want %+v", e.QoS, l)
		}
		if v, err := x.Show(ctx, "data"); err != nil || v.QoS != want {
			t.Errorf("%+v, %v, want %+v", v.QoS, err, want)
		}
	}
	limits(x, q.QoS)
	next := api.QoS{ReadIOPS: 7, WriteBandwidth: 1 << 20, BurstSeconds: 5}
	if _, err := x.SetQoS(ctx, "data", next); err != nil {
		t.Fatal(err)
	}
	limits(x, next)
	_, err := x.SetQoS(ctx, "data", api.QoS{IOPS: -1})
	says(t, err, api.CodeInvalid)
	again, _ := newVolumes(t, state, dir, nil)
	limits(again, next)
}

// A pool that is taken out keeps its volumes: they are not offered, and are again when it is back.
func TestPoolThatIsTakenOut(t *testing.T) {
	dir, ctx := poolDir(t), t.Context()
	x, _ := newVolumes(t, t.TempDir(), dir, nil)
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	x.SetPools(nil)
	x.look(ctx)
	if e := x.Exports(); len(e) != 0 {
		t.Errorf("offered without its pool: %+v", e)
	}
	says(t, x.Remove(ctx, "data"), api.CodeNotFound, "no pool")
	if all := x.List(ctx); len(all) != 1 || all[0].Problem == nil || len(files(t, dir)) != 1 {
		t.Errorf("%+v", all)
	}
	x.SetPools([]config.Pool{{Name: "pool", Driver: api.DriverFile, Path: dir, MaxVolumes: 9}})
	if e := x.Exports(); len(e) != 1 || e[0].Name != "data" {
		t.Errorf("with its pool: %+v", e)
	}
}

// Files of the directory that are no volume's stay as they are, whatever they are called.
func TestFilesThatAreNoVolumesStay(t *testing.T) {
	state, dir, ctx := t.TempDir(), loopfs.Mount(t, "xfs", 0), t.Context()
	for _, name := range []string{"data.00000000-0000-4000-8000-000000000000.vol", "data.vol", "data", "new.snap", ".hidden"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := contents(t, dir)
	x, _ := newVolumes(t, state, dir, nil)
	for _, op := range []string{"data", "new"} {
		if _, err := x.Create(ctx, create(op, 512)); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Snapshot(ctx, op, api.VolumeSnapshot{Name: op + "s"}); err != nil {
			t.Fatal(err)
		}
	}
	again, _ := newVolumes(t, state, dir, nil)
	again.look(ctx)
	for _, v := range again.List(ctx) {
		if err := again.Remove(ctx, v.Name); err != nil {
			t.Error(err)
		}
	}
	if after := contents(t, dir); !maps.Equal(after, before) {
		t.Errorf("%q, want %q", after, before)
	}
}

// So many peers may have a volume, and no more.
func TestLeasesAreBounded(t *testing.T) {
	ctx := t.Context()
	x, _ := newVolumes(t, t.TempDir(), poolDir(t), nil)
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	for i := range maxLeases {
		if _, err := x.Publish(ctx, "data", api.VolumePublish{Peer: strings.Repeat("p", 60) + fmt.Sprint(i), ReadOnly: true}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := x.Publish(ctx, "data", api.VolumePublish{Peer: "one-more", ReadOnly: true})
	says(t, err, api.CodeNoSpace, "as many as there may be")
	if _, err := x.Publish(ctx, "data", api.VolumePublish{Peer: strings.Repeat("p", 60) + "7", ReadOnly: true}); err != nil {
		t.Errorf("one of them, again: %v", err)
	}
}

// Whoever has a volume attached is told that it has grown, also when the daemon that was asked did not come to that.
func TestGrowthIsTold(t *testing.T) {
	state, dir, ctx := t.TempDir(), poolDir(t), t.Context()
	x, h := newVolumes(t, state, dir, nil)
	if _, err := x.Create(ctx, create("data", 512)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time for a request that is made again, whose first answer was lost
		if _, err := x.Expand(ctx, "data", api.VolumeExpand{Size: 1024}); err != nil {
			t.Fatal(err)
		}
	}
	if len(h.grown) != 2 {
		t.Errorf("told of %q, want data twice", h.grown)
	}
	half := x.find("data").clone()
	half.Size = 2048 // recorded, and not done
	if err := x.store(half); err != nil {
		t.Fatal(err)
	}
	again, h := newVolumes(t, state, dir, nil)
	again.look(ctx)
	again.look(ctx)
	if len(h.grown) != 1 {
		t.Errorf("after a restart told of %q, want data once", h.grown)
	}
	if e, _ := again.Export("data"); len(contents(t, dir)[filepath.Base(e.Path)]) != 2048 {
		t.Error("its growth is not finished")
	}
}
