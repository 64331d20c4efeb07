package driver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	mount "k8s.io/mount-utils"
)

// NodePublishVolume mounts a staged volume where a pod finds it: its file system on a folder, or its device on a file.
// It fails with FAILED_PRECONDITION where the volume is not staged, or is another pod's alone.
func (n *Node) NodePublishVolume(ctx context.Context, req *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	done := new(csi.NodePublishVolumeResponse)
	path := req.GetTargetPath()
	if err := checkPath(n.base, path); err != nil {
		return nil, invalid("target path: %v", err)
	}
	u, err := parseUse(req.GetVolumeCapability())
	if err != nil {
		return nil, invalid("%v", err)
	}
	rec, end, err := n.reserve(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	want := target{Path: path, ReadOnly: req.GetReadonly() || u.readOnly, Alone: u.alone}
	switch {
	case rec == nil:
		return nil, refused("volume %s is not staged on this node", req.GetVolumeId())
	case rec.Staging != req.GetStagingTargetPath():
		return nil, refused("volume %s is staged at %s, not at %q", rec.Volume, rec.Staging, req.GetStagingTargetPath())
	case rec.Block != u.block:
		return nil, invalid("volume %s is not staged for this capability", rec.Volume)
	case path == rec.Staging:
		return nil, invalid("target path: it is the staging path")
	}
	if err := n.prune(rec); err != nil {
		return nil, err
	}
	if old, ok := rec.target(path); ok {
		if old != want {
			return nil, exists("volume %s is at %s already, with read_only %v", rec.Volume, path, old.ReadOnly)
		}
	} else {
		if i := slices.IndexFunc(rec.Targets, func(t target) bool { return t.Alone || want.Alone }); i >= 0 {
			return nil, refused("volume %s is for one pod alone, and at %s already", rec.Volume, rec.Targets[i].Path)
		}
		if len(rec.Targets) == maxTargets {
			return nil, status.Errorf(codes.ResourceExhausted, "volume %s is at %d targets already", rec.Volume, maxTargets)
		}
		rec.Targets = append(rec.Targets, want)
		if err := n.save(rec); err != nil {
			return nil, err
		}
	}
	if err := n.bind(ctx, rec, want); err != nil {
		return nil, err
	}
	return done, nil
}

// bind mounts a staged volume at a target, unless it is there.
func (n *Node) bind(ctx context.Context, rec *record, t target) error {
	mounted, err := n.isMounted(t.Path)
	if err == nil && mounted && t.ReadOnly {
		// A bind mount is made read-only after it is there: that may have failed, or the plugin was killed in between.
		if mounted, err = n.isReadOnly(t.Path); err == nil && !mounted {
			err = n.unmount(t.Path)
		}
	}
	if err != nil || mounted {
		return err
	}
	source := rec.Staging
	if rec.Block {
		at, ok, err := n.disks.find(ctx, rec.Peer, rec.Export)
		if err != nil {
			return err
		}
		if !ok || n.disks.deviceOf(at) != rec.Device {
			return refused("%s/%s is not attached as %s any more: stage the volume anew", rec.Peer, rec.Export, rec.Device)
		}
		source = rec.Device
		if err := makeFile(t.Path); err != nil {
			return status.Errorf(codes.Internal, "make the target: %v", err)
		}
	} else {
		staged, err := n.isMounted(rec.Staging)
		if err != nil {
			return err
		}
		if !staged {
			// Binding the empty folder would give the pod the node's own disk to write to.
			return refused("nothing is mounted at %s: stage volume %s anew", rec.Staging, rec.Volume)
		}
		if err := os.Mkdir(t.Path, 0o750); err != nil && !errors.Is(err, os.ErrExist) {
			return status.Errorf(codes.Internal, "make the target: %v", err)
		}
	}
	options := []string{"bind"}
	if t.ReadOnly {
		options = append(options, "ro")
	}
	if err := n.mounter.Mount(source, t.Path, "", options); err != nil {
		return status.Errorf(codes.Internal, "mount volume %s at %s: %v", rec.Volume, t.Path, err)
	}
	return nil
}

// isReadOnly reports whether what is mounted at a path is read-only. It fails with the error of who lists the mounts.
func (n *Node) isReadOnly(path string) (bool, error) {
	list, err := n.mounter.List()
	if err != nil {
		return false, status.Errorf(codes.Internal, "is %s mounted read-only: %v", path, err)
	}
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		real = path // as of a device that is gone
	}
	return slices.ContainsFunc(list, func(m mount.MountPoint) bool { return m.Path == real && slices.Contains(m.Opts, "ro") }), nil
}

// makeFile makes an empty file on which a device is mounted. One that is there is no error.
func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if errors.Is(err, os.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// NodeUnpublishVolume unmounts a pod's target and removes it. One that is not there is no error.
func (n *Node) NodeUnpublishVolume(_ context.Context, req *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	done := new(csi.NodeUnpublishVolumeResponse)
	path := req.GetTargetPath()
	if err := checkPath(n.base, path); err != nil {
		return nil, invalid("target path: %v", err)
	}
	rec, end, err := n.reserve(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	if rec == nil {
		return done, nil
	}
	if _, ok := rec.target(path); !ok {
		return done, nil // nothing that this driver has put there, so nothing that it removes
	}
	if err := n.unmount(path); err != nil {
		return nil, err
	}
	// Remove takes an empty folder or a file: should something still be in there, it is not the volume's.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, status.Errorf(codes.Internal, "remove the target: %v", err)
	}
	rec.Targets = slices.DeleteFunc(rec.Targets, func(t target) bool { return t.Path == path })
	if err := n.save(rec); err != nil {
		return nil, err
	}
	return done, nil
}
