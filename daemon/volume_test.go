package daemon

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/loopfs"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// poolPair is two linked hosts, of which beta has a pool that alpha may manage.
func poolPair(t *testing.T, dir string) (alpha, beta *host) {
	t.Helper()
	alpha, beta = newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	beta.configure(fmt.Sprintf("pools: [{name: pool, driver: file, path: %s, manage: [alpha]}, {name: private, driver: file, path: %s}]\n", dir, t.TempDir()))
	return alpha, beta
}

// configure replaces what was added to the main file, and reloads it.
func (h *host) configure(more string) {
	h.t.Helper()
	h.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n%s", h.port, h.udp, more))
	if _, err := h.api.Reload(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// A peer that a pool names makes a volume there over the streams, attaches it, writes, takes snapshots and clones, and lets it grow;
// all of it is there after both daemons were restarted.
func TestPeerManagesVolumesAndUsesThem(t *testing.T) {
	alpha, beta := poolPair(t, loopfs.Mount(t, "xfs", 0))
	ctx := t.Context()
	v, err := alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "pool", Name: "data", Size: 16 << 20})
	if err != nil || v.Export != "data" || v.State != api.ExportReady || v.Size != 16<<20 || v.Used > 64<<10 {
		t.Fatalf("%+v, %v", v, err)
	}
	if again, err := alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "pool", Name: "data", Size: 16 << 20}); err != nil || again.UUID != v.UUID {
		t.Errorf("the same request once more: %+v, %v", again, err)
	}
	_, err = alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "pool", Name: "data", Size: 32 << 20})
	says(t, err, api.CodeExists, "peer beta", "data")
	_, err = alpha.api.Attach(ctx, api.AttachRequest{Peer: "beta", Export: "data"}, nil)
	if err == nil {
		t.Fatal("a volume that is not published was attached")
	}
	p, err := alpha.api.PublishVolume(ctx, "beta", "data", api.VolumePublish{})
	if err != nil || p.Export != "data" || p.Size != 16<<20 {
		t.Fatalf("%+v, %v", p, err)
	}
	c := alpha.attach("data")
	old, young := bytes.Repeat([]byte{1}, 4096), bytes.Repeat([]byte{2}, 4096)
	ok(t, c, cmdWrite, 0, 4096, old)
	if _, err := alpha.api.SnapshotVolume(ctx, "beta", "data", api.VolumeSnapshot{Name: "before"}); err != nil {
		t.Fatal(err)
	}
	ok(t, c, cmdWrite, 0, 4096, young)
	clone, err := alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "pool", Name: "copy", From: "before"})
	if err != nil || clone.Source != "before" || clone.Size != 16<<20 {
		t.Fatalf("%+v, %v", clone, err)
	}
	if _, err := alpha.api.PublishVolume(ctx, "beta", "copy", api.VolumePublish{}); err != nil {
		t.Fatal(err)
	}
	cc := alpha.attach("copy")
	if got := ok(t, cc, cmdRead, 0, 4096, nil); !bytes.Equal(got, old) {
		t.Errorf("the clone of the snapshot begins with %d, want what was written before it", got[0])
	}
	ok(t, cc, cmdWrite, 0, 4096, make([]byte, 4096))
	if got := ok(t, c, cmdRead, 0, 4096, nil); !bytes.Equal(got, young) {
		t.Errorf("the volume begins with %d, want what was written after the snapshot", got[0])
	}
	if v, err := alpha.api.ExpandVolume(ctx, "beta", "data", api.VolumeExpand{Size: 32 << 20}); err != nil || v.Size != 32<<20 {
		t.Fatalf("%+v, %v", v, err)
	}
	eventually(t, "the peer sees the volume grow", func() bool {
		e, _ := do(t, c, cmdWrite, 31<<20, 4096, young)
		return e == 0
	})
	err = alpha.api.RemoveVolume(ctx, "beta", "data")
	says(t, err, api.CodeInUse, "published to alpha")
	beta.stop()
	beta.start()
	if got := ok(t, c, cmdRead, 31<<20, 4096, nil); !bytes.Equal(got, young) {
		t.Error("what was written behind the old end is gone after a restart")
	}
	all, err := alpha.api.Volumes(ctx, "beta")
	if err != nil || len(all) != 3 || all[0].Name != "before" || all[0].Kind != api.KindSnapshot || all[1].Name != "copy" || all[2].Allow[0].Peer != "alpha" {
		t.Errorf("%+v, %v", all, err)
	}
	f, err := alpha.api.UnpublishVolume(ctx, "beta", "data", api.VolumeUnpublish{})
	if err != nil || f.Generation != 1 || len(f.Tokens) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	if e, _ := do(t, c, cmdWrite, 0, 512, make([]byte, 512)); e == 0 {
		t.Error("a peer to whom the volume is not published any more writes to it")
	}
	if err := alpha.api.Detach(ctx, "beta", "data", true); err != nil {
		t.Error(err)
	}
	for range 2 {
		err = alpha.api.RemoveVolume(ctx, "beta", "data")
		if err != nil {
			says(t, err, api.CodeNotFound, "data")
		}
	}
	pool, err := alpha.api.Pool(ctx, "beta", "pool")
	if err != nil || pool.Volumes != 2 || pool.Size == 0 || len(pool.Features) != 4 {
		t.Errorf("%+v, %v", pool, err)
	}
}

// TestFrozenVolumeHoldsWrites: what freezes a volume for a copy reaches the storage of its export: a peer's write waits until it is thawed, and a
// read does not. A file system that copies by itself what is written would hide that it does not.
func TestFrozenVolumeHoldsWrites(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pool")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	alpha, beta := poolPair(t, dir)
	ctx := t.Context()
	if _, err := alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "pool", Name: "data", Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := alpha.api.PublishVolume(ctx, "beta", "data", api.VolumePublish{}); err != nil {
		t.Fatal(err)
	}
	c := alpha.attach("data")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	thaw, err := volumeHost{beta.d}.Freeze(ctx, "data")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(0, cmdWrite, 1, 0, 512, bytes.Repeat([]byte{2}, 512)); err != nil {
		t.Fatal(err)
	}
	// The write is at the gate before a read of another client that comes after it has been there for a while.
	other := alpha.nbd("data")
	for range 200 {
		if r, err := other.Do(0, cmdRead, 0, 512, nil); err != nil || !bytes.Equal(r.Data, bytes.Repeat([]byte{1}, 512)) {
			t.Fatalf("read while it is frozen: %v, %x", err, r.Data[:2])
		}
	}
	thaw()
	if r, err := c.Receive(func(uint64) int { return 0 }); err != nil || r.Error != 0 {
		t.Errorf("the write: %+v, %v", r, err)
	}
	if r, err := other.Do(0, cmdRead, 0, 512, nil); err != nil || !bytes.Equal(r.Data, bytes.Repeat([]byte{2}, 512)) {
		t.Errorf("read after the thaw: %v", err)
	}
}

// Snapshots are taken while a program writes one region after another, each when the one before was acknowledged. Each of them
// holds what was acknowledged before it was asked for, nothing later without what came before it, and no write by half.
func TestSnapshotUnderWritesIsWhatACrashWouldLeave(t *testing.T) {
	dir := loopfs.Mount(t, "xfs", 0)
	alpha, _ := poolPair(t, dir)
	ctx := t.Context()
	if _, err := alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "pool", Name: "data", Size: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	if _, err := alpha.api.PublishVolume(ctx, "beta", "data", api.VolumePublish{}); err != nil {
		t.Fatal(err)
	}
	const region, second = 64 << 10, 8 << 20
	c := alpha.attach("data")
	var acknowledged atomic.Uint32 // in both regions
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		block := make([]byte, region)
		for n := uint32(1); ; n++ {
			for at := 0; at < region; at += 4 {
				binary.BigEndian.PutUint32(block[at:], n)
			}
			for _, off := range []uint64{0, second} {
				r, err := c.Do(0, cmdWrite, off, region, block)
				if err == nil && r.Error != 0 {
					err = fmt.Errorf("NBD error %d", r.Error)
				}
				if err != nil {
					ended <- err
					return
				}
			}
			acknowledged.Store(n)
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
		}
	}()
	// numberIn is the number that fills a region of a file.
	numberIn := func(b []byte) uint32 {
		n := binary.BigEndian.Uint32(b)
		if want := bytes.Repeat(binary.BigEndian.AppendUint32(nil, n), len(b)/4); !bytes.Equal(b, want) {
			t.Errorf("a write of number %d or one beside it is in the snapshot by half", n)
		}
		return n
	}
	for i := range 10 {
		before := acknowledged.Load()
		name := fmt.Sprintf("snap%d", i)
		if _, err := alpha.api.SnapshotVolume(ctx, "beta", "data", api.VolumeSnapshot{Name: name}); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, name+".*"))
		if err != nil || len(files) != 1 {
			t.Fatalf("files of snapshot %s: %v, %v", name, files, err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil || len(data) != 16<<20 {
			t.Fatalf("%d bytes, %v", len(data), err)
		}
		a, b := numberIn(data[:region]), numberIn(data[second:second+region])
		if b < before || a < b || a > b+1 {
			t.Errorf("%s has number %d, and %d behind it; acknowledged before was %d", name, a, b, before)
		}
		eventually(t, "the writer goes on", func() bool { return acknowledged.Load() > b })
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Errorf("the writer: %v", err)
	}
}

// What a pool does not let a peer manage does not exist for it.
func TestPeerManagesNothingElse(t *testing.T) {
	alpha, beta := poolPair(t, t.TempDir())
	ctx := t.Context()
	if _, err := beta.api.CreateVolume(ctx, "", api.VolumeCreate{Pool: "private", Name: "own", Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	_, err := alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "private", Name: "mine", Size: 1 << 20})
	says(t, err, api.CodeNotFound, "no pool", "may manage")
	_, err = alpha.api.Volume(ctx, "beta", "own")
	says(t, err, api.CodeNotFound)
	says(t, alpha.api.RemoveVolume(ctx, "beta", "own"), api.CodeNotFound)
	_, err = alpha.api.PublishVolume(ctx, "beta", "own", api.VolumePublish{})
	says(t, err, api.CodeNotFound)
	_, err = alpha.api.CreateVolume(ctx, "beta", api.VolumeCreate{Pool: "pool", Name: "copy", From: "own"})
	says(t, err, api.CodeNotFound, "no volume own")
	if all, err := alpha.api.Volumes(ctx, "beta"); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	if all, err := alpha.api.Pools(ctx, "beta"); err != nil || len(all) != 1 || all[0].Name != "pool" {
		t.Errorf("%+v, %v", all, err)
	}
	// Alpha has no pools, so that beta may manage nothing there.
	_, err = beta.api.Pools(ctx, "alpha")
	says(t, err, api.CodeForbidden, "does not let this host manage")
	beta.configure(fmt.Sprintf("pools: [{name: pool, driver: file, path: %s}]\n", t.TempDir()))
	_, err = alpha.api.Volumes(ctx, "beta")
	says(t, err, api.CodeForbidden)
}

// The name of a volume is that of an export, and neither takes the other's.
func TestVolumesAndExportsKeepTheirNames(t *testing.T) {
	_, beta := poolPair(t, t.TempDir())
	ctx := t.Context()
	if _, err := beta.api.CreateVolume(ctx, "", api.VolumeCreate{Pool: "pool", Name: "data", Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	_, err := beta.api.AddExport(ctx, api.ExportSpec{Name: "data", Path: beta.image("data.img", 1<<20)})
	says(t, err, api.CodeExists, "volume")
	says(t, beta.api.RemoveExport(ctx, "data", true), api.CodeInvalid, "is a volume")
	_, err = beta.api.ResizeExport(ctx, "data", api.ResizeRequest{Size: 2 << 20})
	says(t, err, api.CodeInvalid, "volume expand")
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	_, err = beta.api.CreateVolume(ctx, "", api.VolumeCreate{Pool: "pool", Name: "disk", Size: 1 << 20})
	says(t, err, api.CodeExists, "export")
	if st := beta.status(); len(st.Exports) != 2 || st.Exports[0].Name != "data" || st.Exports[0].State != api.ExportReady {
		t.Errorf("%+v", st.Exports)
	}
	// A link that somebody puts in place of a volume's file leads nowhere.
	path := beta.status().Exports[0].Path
	beta.stop()
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path+".away", path); err != nil {
		t.Fatal(err)
	}
	beta.start()
	if v, err := beta.api.Volume(ctx, "", "data"); err != nil || v.Problem == nil || v.State == api.ExportReady {
		t.Errorf("%+v, %v", v, err)
	}
}

// A volume whose I/O is limited holds up nobody else: other disks of the same session go on, what waits does not fail, and it goes on at once
// when the limit is lifted.
func TestLimitedVolumeHoldsUpNoOtherDisk(t *testing.T) {
	alpha, _ := poolPair(t, t.TempDir())
	ctx := t.Context()
	disks := map[string]*nbdtest.Client{}
	for _, name := range []string{"slow", "quick"} {
		q := api.VolumeCreate{Pool: "pool", Name: name, Size: 1 << 20}
		if name == "slow" {
			q.QoS = api.QoS{WriteIOPS: 1, BurstSeconds: 1}
		}
		if _, err := alpha.api.CreateVolume(ctx, "beta", q); err != nil {
			t.Fatal(err)
		}
		if _, err := alpha.api.PublishVolume(ctx, "beta", name, api.VolumePublish{}); err != nil {
			t.Fatal(err)
		}
		disks[name] = alpha.attach(name)
	}
	ok(t, disks["slow"], cmdWrite, 0, 512, make([]byte, 512)) // what has been saved up
	written := make(chan uint32, 1)
	go func() {
		// Without the change of the limits below, the last of these is written in ten minutes.
		for i := range uint64(600) {
			if e, _ := do(t, disks["slow"], cmdWrite, 512*i, 512, make([]byte, 512)); e != 0 {
				written <- e
				return
			}
		}
		written <- 0
	}()
	for i := range uint64(1000) {
		ok(t, disks["quick"], cmdWrite, 512*i, 512, make([]byte, 512))
	}
	select {
	case e := <-written:
		t.Fatalf("the limit is not kept: %d", e)
	default:
	}
	if v, err := alpha.api.SetVolumeQoS(ctx, "beta", "slow", api.QoS{}); err != nil || v.QoS != (api.QoS{}) {
		t.Fatalf("%+v, %v", v, err)
	}
	if e := <-written; e != 0 {
		t.Errorf("a write that waited failed: %d", e)
	}
}
