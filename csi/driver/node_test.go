package driver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	mount "k8s.io/mount-utils"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// scene is a node of a double's cluster, with a volume that is published to it.
type scene struct {
	*testing.T
	d       *double
	c       *Controller
	n       *Node
	ran     *programs
	id      string
	context map[string]string
	staging string
	cap     *csi.VolumeCapability
}

func newScene(t *testing.T, cap *csi.VolumeCapability) *scene {
	t.Helper()
	s := &scene{T: t, d: newDouble(), cap: cap}
	s.c = newController(s.d)
	s.id = s.c.makes(t, "vol", cap)
	p, err := s.c.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: s.id, NodeId: "node", VolumeCapability: cap})
	if err != nil {
		t.Fatal(err)
	}
	s.context = p.GetPublishContext()
	base := t.TempDir()
	s.staging = filepath.Join(base, "staging")
	if err := os.Mkdir(s.staging, 0o700); err != nil {
		t.Fatal(err)
	}
	s.n = &Node{id: "node", base: base, records: records{filepath.Join(base, "state")}, disks: disks{s.d, false}}
	s.n.mounter, s.ran = newMounts()
	return s
}

// restart is the node after its plugin was killed: with what it has on disk, in the kernel and in the daemon.
func (s *scene) restart() {
	s.n = &Node{id: s.n.id, base: s.n.base, records: s.n.records, disks: s.n.disks, mounter: s.n.mounter}
}

func (s *scene) stage() error {
	_, err := s.n.NodeStageVolume(s.Context(), &csi.NodeStageVolumeRequest{VolumeId: s.id, PublishContext: s.context, StagingTargetPath: s.staging, VolumeCapability: s.cap})
	return err
}

func (s *scene) unstage() error {
	_, err := s.n.NodeUnstageVolume(s.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: s.id, StagingTargetPath: s.staging})
	return err
}

func (s *scene) target(name string) string { return filepath.Join(s.n.base, name) }

func (s *scene) publish(name string, readOnly bool) error {
	_, err := s.n.NodePublishVolume(s.Context(), &csi.NodePublishVolumeRequest{VolumeId: s.id, PublishContext: s.context, StagingTargetPath: s.staging, TargetPath: s.target(name),
		VolumeCapability: s.cap, Readonly: readOnly})
	return err
}

func (s *scene) unpublish(name string) error {
	_, err := s.n.NodeUnpublishVolume(s.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: s.id, TargetPath: s.target(name)})
	return err
}

// mounts are what is mounted, below the base: device and options by path.
func (s *scene) mounts() map[string]string {
	s.Helper()
	list, err := s.n.mounter.List()
	if err != nil {
		s.Fatal(err)
	}
	m := make(map[string]string)
	for _, p := range list {
		m[strings.TrimPrefix(p.Path, s.n.base+"/")] = p.Device + " " + p.Type + " " + strings.Join(p.Opts, ",")
	}
	return m
}

func (s *scene) must(errs ...error) {
	s.Helper()
	for _, err := range errs {
		if err != nil {
			s.Fatal(err)
		}
	}
}

// A plugin that is killed at any time ends no I/O, and the next one goes on where it was.
func TestRestartedPluginGoesOn(t *testing.T) {
	for name, cap := range map[string]*csi.VolumeCapability{"file": capability(false, oneNode), "block": capability(true, oneNode)} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, cap)
			s.d.fail["Attach"] = &api.Error{Code: api.CodeUnavailable, Message: "no way"}
			wants(t, "stage without a way", s.stage(), codes.Unavailable)
			delete(s.d.fail, "Attach")
			s.restart()
			s.must(s.stage())
			s.restart()
			s.must(s.stage(), s.publish("a", false))
			s.restart()
			s.must(s.publish("a", false), s.publish("b", true))
			if s.d.calls["Attach"] != 2 || s.d.calls["Detach"] != 0 {
				t.Errorf("calls: %v", s.d.calls)
			}
			wants(t, "unstage while pods have it", s.unstage(), codes.FailedPrecondition)
			s.restart()
			s.must(s.unpublish("a"), s.unpublish("a"), s.unpublish("b"))
			s.restart()
			s.must(s.unstage(), s.unstage())
			if m := s.mounts(); len(m) != 0 || len(s.d.attached) != 0 {
				t.Errorf("left: %v, %v", m, s.d.attached)
			}
			if _, err := os.Stat(s.target("a")); err == nil {
				t.Error("the target is still there")
			}
		})
	}
}

// halfway mounts as the kernel does, where a bind mount is made read-only after it is there, and stops in between as often as it says.
type halfway struct {
	*mount.FakeMounter
	stops int
}

func (h *halfway) Mount(source, target, fsType string, options []string) error {
	if slices.Contains(options, "ro") && h.stops > 0 {
		h.stops--
		options = slices.DeleteFunc(slices.Clone(options), func(o string) bool { return o == "ro" })
		return errors.Join(h.FakeMounter.Mount(source, target, fsType, options), errors.New("remount: no"))
	}
	return h.FakeMounter.Mount(source, target, fsType, options)
}

// A pod that is to read alone does not get a volume to write to, though the call that bound it came to no end.
func TestTargetThatIsNotReadOnlyYetIsBoundAnew(t *testing.T) {
	for name, cap := range map[string]*csi.VolumeCapability{"file": capability(false, oneNode), "block": capability(true, oneNode)} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, cap)
			s.must(s.stage())
			s.n.mounter.Interface = &halfway{mount.NewFakeMounter(nil), 1}
			if s.cap.GetBlock() == nil {
				s.must(s.n.mounter.Mount("/run/nbd/vol", s.staging, "ext4", nil))
			}
			wants(t, "publish, of which half is done", s.publish("a", true), codes.Internal)
			s.restart()
			s.must(s.publish("a", true), s.publish("a", true))
			if m := s.mounts(); !strings.HasSuffix(m["a"], "bind,ro") {
				t.Errorf("mounts: %v", m)
			}
			if n := len(s.n.mounter.Interface.(*halfway).MountPoints); n != 1 && name == "block" || n != 2 && name == "file" {
				t.Errorf("mounted %d times", n)
			}
		})
	}
}

// A volume is mounted with its file system, which an empty disk gets, and which grows with the disk.
func TestFileSystems(t *testing.T) {
	for _, tc := range []struct{ fs, options, grow string }{{"ext4", "nodev,nosuid,noatime,defaults", "resize2fs"}, {"xfs", "nodev,nosuid,noatime,nouuid,defaults", "xfs_growfs"}} {
		c := capability(false, oneNode)
		c.GetMount().FsType, c.GetMount().MountFlags = tc.fs, []string{"noatime"}
		s := newScene(t, c)
		s.must(s.stage(), s.publish("a", true))
		m := s.mounts()
		if want := "/run/nbd/vol " + tc.fs + " " + tc.options; m["staging"] != want || !strings.HasSuffix(m["a"], "bind,ro") {
			t.Errorf("mounts: %v, want %q", m, want)
		}
		if made := s.ran.commands("mkfs." + tc.fs); len(made) != 1 {
			t.Errorf("made: %v", made)
		}
		before := len(s.ran.commands(tc.grow))
		if _, err := s.c.ControllerExpandVolume(t.Context(), &csi.ControllerExpandVolumeRequest{VolumeId: s.id, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mega}}); err != nil {
			t.Fatal(err)
		}
		v, err := s.n.NodeExpandVolume(t.Context(), &csi.NodeExpandVolumeRequest{VolumeId: s.id, VolumePath: s.target("a"), CapacityRange: &csi.CapacityRange{RequiredBytes: 2 * mega}})
		if err != nil || v.GetCapacityBytes() != 2*mega || len(s.ran.commands(tc.grow)) != before+1 {
			t.Errorf("%v, %v, %v", v, err, s.ran.commands(tc.grow))
		}
		s.must(s.unpublish("a"), s.unstage(), s.stage())
		if made := s.ran.commands("mkfs." + tc.fs); len(made) != 1 {
			t.Errorf("a disk with data on it got a new file system: %v", made)
		}
	}
}

// A volume is staged when its file system is as large as its disk, also if the call that mounted it came no further.
func TestStagingThatWasNotFinishedGrowsTheFileSystem(t *testing.T) {
	s := newScene(t, capability(false, oneNode))
	s.ran.fail = "resize2fs"
	wants(t, "stage while nothing grows", s.stage(), codes.Internal)
	s.restart()
	wants(t, "stage while nothing grows yet", s.stage(), codes.Internal)
	s.ran.fail = ""
	before := len(s.ran.commands("resize2fs"))
	s.must(s.stage())
	if m := s.mounts(); len(m) != 1 || len(s.ran.commands("resize2fs")) != before+1 {
		t.Errorf("%v, %v", m, s.ran.commands("resize2fs"))
	}
}

// Where the staged file system is not mounted any more, a pod does not get the node's own folder in its place.
func TestNothingIsBoundWithoutTheVolume(t *testing.T) {
	s := newScene(t, capability(false, oneNode))
	wants(t, "publish before stage", s.publish("a", false), codes.FailedPrecondition)
	s.must(s.stage())
	s.must(s.n.mounter.Unmount(s.staging))
	wants(t, "publish without the mount", s.publish("a", false), codes.FailedPrecondition)
	if m := s.mounts(); len(m) != 0 {
		t.Errorf("mounts: %v", m)
	}
	b := newScene(t, capability(true, oneNode))
	b.must(b.stage())
	b.must(b.d.Detach(t.Context(), "store", "vol", true))
	wants(t, "publish without the disk", b.publish("a", false), codes.FailedPrecondition)
}

// A disk from which the node was fenced is attached anew when the volume is staged again.
func TestFencedDiskIsAttachedAnew(t *testing.T) {
	s := newScene(t, capability(true, oneNode))
	s.must(s.stage())
	at := s.d.attached["store/vol"]
	at.State = api.AttachFailed
	s.d.attached["store/vol"] = at
	s.must(s.stage())
	if s.d.calls["Attach"] != 2 || s.d.calls["Detach"] != 1 || s.d.attached["store/vol"].State != api.AttachReady {
		t.Errorf("%v, %v", s.d.calls, s.d.attached)
	}
}

func TestTargetsOfAVolume(t *testing.T) {
	s := newScene(t, capability(false, onePod))
	s.must(s.stage(), s.publish("a", false))
	wants(t, "a second pod", s.publish("b", false), codes.FailedPrecondition)
	wants(t, "the same target otherwise", s.publish("a", true), codes.AlreadyExists)
	s.cap = capability(true, onePod)
	wants(t, "stage as another kind", s.stage(), codes.AlreadyExists)
	wants(t, "publish as another kind", s.publish("a", false), codes.InvalidArgument)
	// After a reboot nothing is mounted, and nobody unpublishes what the last boot had.
	s.cap = capability(false, onePod)
	s.must(s.n.mounter.Unmount(s.target("a")), s.n.mounter.Unmount(s.staging))
	s.must(s.stage(), s.publish("b", false))
}

// The node knows its storage host by the IKE identity, whatever it calls it.
func TestStorageHostIsFoundByItsIdentity(t *testing.T) {
	peer := func(name, id string) api.Peer { return api.Peer{PeerSpec: api.PeerSpec{Name: name, RemoteID: id}} }
	for what, tc := range map[string]struct {
		peers []api.Peer
		want  string
	}{
		"another name":             {[]api.Peer{peer("beta", "store.example"), peer("store", "somebody.else")}, "beta"},
		"two of the identity":      {[]api.Peer{peer("beta", "store.example"), peer("store", "store.example")}, "store"},
		"two, and neither is it":   {[]api.Peer{peer("beta", "store.example"), peer("gamma", "store.example"), peer("store", "x")}, ""},
		"only the name is known":   {[]api.Peer{peer("store", "192.0.2.1")}, "store"},
		"neither of both is known": {[]api.Peer{peer("beta", "beta.example")}, ""},
	} {
		d := newDouble()
		d.peers = tc.peers
		got, err := disks{d, false}.peer(t.Context(), map[string]string{contextHost: "store", contextIdentity: "store.example"})
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
}

// Whatever paths a call has, nothing outside the base is touched.
func TestHostilePathsOfCalls(t *testing.T) {
	s := newScene(t, capability(false, oneNode))
	s.must(s.stage())
	outside := t.TempDir()
	if err := os.Symlink(outside, s.target("link")); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/etc", outside + "/x", s.n.base + "/../x", s.n.base + "/link/x", "x", "", s.n.base + "/a\x00"} {
		ctx := t.Context()
		_, err := s.n.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: s.id, StagingTargetPath: s.staging, TargetPath: path, VolumeCapability: s.cap})
		wants(t, "publish at "+path, err, codes.InvalidArgument)
		_, err = s.n.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: s.id, TargetPath: path})
		wants(t, "unpublish "+path, err, codes.InvalidArgument)
		_, err = s.n.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: "store/fast/other", PublishContext: s.context, StagingTargetPath: path, VolumeCapability: s.cap})
		wants(t, "stage at "+path, err, codes.InvalidArgument)
		_, err = s.n.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: s.id, StagingTargetPath: path})
		wants(t, "unstage "+path, err, codes.InvalidArgument)
	}
	// A folder that is not this driver's stays, though it is below the base.
	if err := os.Mkdir(s.target("mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.must(s.unpublish("mine"))
	if _, err := os.Stat(s.target("mine")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	_, err := s.n.NodeStageVolume(t.Context(), &csi.NodeStageVolumeRequest{VolumeId: "store/fast/other", PublishContext: map[string]string{contextHost: "store", contextExport: "../x"},
		StagingTargetPath: s.target("s"), VolumeCapability: s.cap})
	wants(t, "an export that is a path", err, codes.InvalidArgument)
}

// Secrets of a call are neither in the log nor in the answer, whatever becomes of the call.
func TestSecretsStayOutOfTheLog(t *testing.T) {
	const secret = "s3cr3t-canary"
	var log bytes.Buffer
	s := &Server{log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	c := newController(newDouble())
	secrets := map[string]string{"password": secret}
	handler := func(ctx context.Context, req any) (any, error) {
		return c.CreateVolume(ctx, req.(*csi.CreateVolumeRequest))
	}
	for _, caps := range [][]*csi.VolumeCapability{nil, {capability(false, oneNode)}} {
		out, err := s.intercept(t.Context(), &csi.CreateVolumeRequest{Name: "a", VolumeCapabilities: caps, Secrets: secrets}, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/CreateVolume"}, handler)
		if text := log.String(); strings.Contains(text, secret) || !strings.Contains(text, "CreateVolume") {
			t.Errorf("log: %s", text)
		}
		if r, ok := out.(*csi.CreateVolumeResponse); ok && strings.Contains(r.String(), secret) || err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("answer: %v, %v", out, err)
		}
	}
	// Nor does an id steer the terminal of who reads it.
	_, _ = s.intercept(t.Context(), &csi.DeleteVolumeRequest{VolumeId: "\x1b[2J\n" + strings.Repeat("x", 1<<16)}, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Controller/DeleteVolume"},
		func(ctx context.Context, req any) (any, error) {
			return c.DeleteVolume(ctx, req.(*csi.DeleteVolumeRequest))
		})
	if text := log.String(); strings.Contains(text, "\x1b") || strings.Contains(text, strings.Repeat("x", maxID+1)) {
		t.Errorf("log: %.200s", text)
	}
}
