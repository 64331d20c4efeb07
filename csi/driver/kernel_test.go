package driver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/integration/vm"
)

// vmVar names the directory with the virtual machine; make interop sets it. insideVar is set in the machine.
const (
	vmVar     = "IRONWARP_VM_CACHE"
	insideVar = "IRONWARP_INSIDE"
)

const kernelScript = `
set -e
cd %s
mkdir -p /run/udev/rules.d
cp ../../packaging/90-ironwarp.rules /run/udev/rules.d/
# This kernel has both ends: LVM must not read the attached disk, which waits while LVM makes a snapshot of what is behind it.
printf 'devices { global_filter = [ "r|/dev/nbd.*|" ] }\n' >/etc/lvm/lvmlocal.conf
modprobe -a nbd ext4 xfs loop dm-mod dm-thin-pool
/lib/systemd/systemd-udevd --daemon
export %s=1
exec %s -test.v -test.run '^TestKernelVolumes$'
`

// TestKernelVolumes has volumes mounted by a kernel with nbd, in a virtual machine, over pools that make snapshots by reflinks and by thin
// logical volumes: what pods write is there, in snapshots, in clones, after they have grown, and after the node was killed and the
// volume has moved.
func TestKernelVolumes(t *testing.T) {
	if os.Getenv(insideVar) != "" {
		t.Run("reflinks", func(t *testing.T) { mounted(t, fileSystem(t), "xfs") })
		t.Run("thin logical volumes", func(t *testing.T) { mounted(t, thinPool(t), "ext4") })
		for name, test := range moves {
			t.Run(name, func(t *testing.T) { test(newMoving(t, fileSystem(t), true)) })
		}
		return
	}
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("make interop mounts volumes in a virtual machine; set %s to the directory of its own to do it here", vmVar)
	}
	for _, tool := range []string{"lvcreate", "mkfs.xfs", "mkfs.ext4"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed: apt install lvm2 thin-provisioning-tools xfsprogs e2fsprogs", tool)
		}
	}
	t.Attr("row", "volumes of the CSI driver, on XFS by reflinks and on thin logical volumes: mounted, snapshotted, cloned, grown; a node that is stopped or killed while the volume moves writes nothing after unpublish has answered")
	vm.RunTest(t, cache, vm.Options{Timeout: 18 * time.Minute, Memory: 3072}, func(here, self string) string {
		return fmt.Sprintf(kernelScript, here, insideVar, self)
	})
}

// thinPool is a pool of thin logical volumes, until the test ends.
func thinPool(t *testing.T) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "pv.img")
	run(t, "truncate", "-s", "1G", image)
	loop := strings.TrimSpace(run(t, "losetup", "-f", "--show", image))
	t.Cleanup(func() { run(t, "losetup", "-d", loop) })
	run(t, "vgcreate", "-q", "csitest", loop)
	t.Cleanup(func() { run(t, "vgremove", "-q", "-f", "csitest") })
	run(t, "lvcreate", "-q", "-L", "800M", "-T", "csitest/thin")
	return "driver: lvmthin, vg: csitest, thin_pool: thin"
}

func run(t *testing.T, argv ...string) string {
	t.Helper()
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// user is a plugin with all services on one node, and what it has mounted.
type user struct {
	*testing.T
	caller
	dir string
	cap *csi.VolumeCapability
}

// mount makes a volume, with the contents of a snapshot if it is not "", and mounts it for a pod, which finds it at the returned path.
func (u *user) mount(name, snapshot string) (id, path string) {
	u.Helper()
	ctx := u.Context()
	q := &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{u.cap}, CapacityRange: &csi.CapacityRange{RequiredBytes: 320 * mega}}
	if snapshot != "" {
		q.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot}}}
	}
	v, err := u.CreateVolume(ctx, q)
	if err != nil {
		u.Fatal(err)
	}
	id = v.GetVolume().GetVolumeId()
	p, err := u.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: "node", VolumeCapability: u.cap})
	if err != nil {
		u.Fatal(err)
	}
	staging, path := filepath.Join(u.dir, name+"-staging"), filepath.Join(u.dir, name)
	if err := os.Mkdir(staging, 0o700); err != nil {
		u.Fatal(err)
	}
	if _, err := u.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: id, PublishContext: p.GetPublishContext(), StagingTargetPath: staging, VolumeCapability: u.cap}); err != nil {
		u.Fatal(err)
	}
	if _, err := u.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: id, StagingTargetPath: staging, TargetPath: path, VolumeCapability: u.cap}); err != nil {
		u.Fatal(err)
	}
	return id, path
}

// unmount undoes mount.
func (u *user) unmount(id, path string) {
	u.Helper()
	ctx := u.Context()
	if _, err := u.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: path}); err != nil {
		u.Fatal(err)
	}
	if _, err := u.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: id, StagingTargetPath: path + "-staging"}); err != nil {
		u.Fatal(err)
	}
	if _, err := u.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: "node"}); err != nil {
		u.Fatal(err)
	}
	if _, err := u.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id}); err != nil {
		u.Fatal(err)
	}
}

// put writes a pod's file durably.
func (u *user) put(path string, b []byte) {
	u.Helper()
	f, err := os.Create(path)
	if err != nil {
		u.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		u.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		u.Fatal(err)
	}
}

// holds checks a pod's file.
func (u *user) holds(path string, want []byte) {
	u.Helper()
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, want) {
		u.Errorf("%s has %d bytes that are not what was written: %v", path, len(b), err)
	}
}

// mounted is the life of a volume with a file system.
func mounted(t *testing.T, pool, fs string) {
	_, nodes := newStore(t, pool, "node")
	u := &user{T: t, dir: shortDir(t), cap: capability(false, oneNode)}
	u.cap.GetMount().FsType = fs
	endpoint := nodes[0].plugin(t, u.dir, true, true)
	u.caller = call(t, endpoint)
	ctx := t.Context()
	old, young := bytes.Repeat([]byte("old."), 64<<10), bytes.Repeat([]byte("new."), 64<<10)
	id, path := u.mount("vol", "")
	u.put(filepath.Join(path, "file"), old)
	var s *csi.CreateSnapshotResponse
	eventually(t, "the snapshot is made", func() (made bool) {
		var err error
		// LVM may take longer, in an emulated machine, than writes are held back: then the call is repeated, as orchestrators do.
		if s, err = u.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: "snap", SourceVolumeId: id}); err != nil && status.Code(err) != codes.DeadlineExceeded {
			t.Fatal(err)
		}
		return err == nil
	})
	u.put(filepath.Join(path, "file"), young)
	// The clone of a file system is mounted beside it.
	clone, copied := u.mount("clone", s.GetSnapshot().GetSnapshotId())
	u.holds(filepath.Join(copied, "file"), old)
	u.put(filepath.Join(copied, "file"), []byte("other"))
	u.holds(filepath.Join(path, "file"), young)
	total := func() int64 {
		v, err := u.NodeGetVolumeStats(ctx, &csi.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
		if err != nil {
			t.Fatal(err)
		}
		return v.GetUsage()[0].GetTotal()
	}
	before := total()
	if _, err := u.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: 448 * mega}}); err != nil {
		t.Fatal(err)
	}
	if _, err := u.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{VolumeId: id, VolumePath: path, CapacityRange: &csi.CapacityRange{RequiredBytes: 448 * mega}}); err != nil {
		t.Fatal(err)
	}
	if after := total(); after < before+100*mega {
		t.Errorf("the file system had %d bytes, and has %d", before, after)
	}
	u.holds(filepath.Join(path, "file"), young)

	// The daemon is killed under the mounted file system, and restarted.
	nodes[0].end(syscall.SIGKILL)
	nodes[0].start()
	u.put(filepath.Join(path, "later"), old)
	u.holds(filepath.Join(path, "later"), old)
	u.unmount(clone, copied)
	u.unmount(id, path)
	if _, err := u.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: s.GetSnapshot().GetSnapshotId()}); err != nil {
		t.Error(err)
	}
	if out := run(t, "mount"); strings.Contains(out, u.dir) {
		t.Errorf("still mounted:\n%s", out)
	}
	left, err := u.ListVolumes(ctx, new(csi.ListVolumesRequest))
	if err != nil || len(left.GetEntries()) != 0 {
		t.Errorf("%v, %v", left, err)
	}
}
