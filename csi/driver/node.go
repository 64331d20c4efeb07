package driver

import (
	"context"
	"errors"
	"os"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	mount "k8s.io/mount-utils"
	"k8s.io/utils/exec"
)

// Node is the Node service. What a volume goes through there:
//
//	           Stage                     Publish (each pod)
//	nothing ----------> attached, mounted ------------> bound at its targets
//	        <----------                   <------------
//	          Unstage                     Unpublish
type Node struct {
	csi.UnimplementedNodeServer
	id       string
	topology map[string]string
	most     int64 // volumes at once; 0: as many as the daemon attaches
	base     string
	disks    disks
	records  records
	mounter  *mount.SafeFormatAndMount
	busy     inflight
}

var nodeCapabilities = []csi.NodeServiceCapability_RPC_Type{
	csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
	csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
	csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
	csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
}

// NodeGetCapabilities returns what the service can do. It does not fail.
func (n *Node) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := new(csi.NodeGetCapabilitiesResponse)
	for _, t := range nodeCapabilities {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// NodeGetInfo returns the node's id, by which storage hosts know it, and its topology. It does not fail.
func (n *Node) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	out := &csi.NodeGetInfoResponse{NodeId: n.id, MaxVolumesPerNode: n.most}
	if len(n.topology) > 0 {
		out.AccessibleTopology = &csi.Topology{Segments: n.topology}
	}
	return out, nil
}

// reserve reserves a volume for a call until end, and reads its record, nil if nothing was done for it here.
func (n *Node) reserve(id string) (rec *record, end func(), err error) {
	if id == "" {
		return nil, nil, invalid("no id of a volume was given")
	}
	if len(id) > maxID {
		return nil, nil, notFound("the id of the volume has %d bytes; %d are allowed", len(id), maxID)
	}
	if end, err = n.busy.begin(id); err != nil {
		return nil, nil, err
	}
	if rec, err = n.records.load(id); err != nil {
		end()
		return nil, nil, status.Error(codes.Internal, err.Error())
	}
	return rec, end, nil
}

// NodeStageVolume attaches a volume, and mounts it at the staging path unless it is for raw block. A disk without any data on it
// gets a file system first. It fails with FAILED_PRECONDITION where the storage host is no peer of this node, and with ALREADY_EXISTS
// where the volume is staged otherwise.
func (n *Node) NodeStageVolume(ctx context.Context, req *csi.NodeStageVolumeRequest) (*csi.NodeStageVolumeResponse, error) {
	done := new(csi.NodeStageVolumeResponse)
	staging := req.GetStagingTargetPath()
	if err := checkPath(n.base, staging); err != nil {
		return nil, invalid("staging path: %v", err)
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
	export := req.GetPublishContext()[contextExport]
	if !isName(export, maxName) {
		return nil, invalid("the publish context names no export (%s): it is not that of ControllerPublishVolume", contextExport)
	}
	peer, err := n.disks.peer(ctx, req.GetPublishContext())
	if err != nil {
		return nil, err
	}
	want := record{Volume: req.GetVolumeId(), Peer: peer, Export: export, Staging: staging, Block: u.block, ReadOnly: u.readOnly}
	if !u.block {
		want.FSType = u.fsType
	}
	switch {
	case rec == nil:
		rec = &want
		if err := n.save(rec); err != nil {
			return nil, err
		}
	case rec.Staging != staging || rec.Block != u.block || rec.FSType != want.FSType || rec.ReadOnly != u.readOnly || rec.Export != export:
		return nil, exists("volume %s is staged here already, at %s, with other capabilities", rec.Volume, rec.Staging)
	}
	mounted := false
	if !u.block {
		if mounted, err = n.isMounted(staging); err != nil {
			return nil, err
		}
	}
	if mounted {
		at, ok, err := n.disks.find(ctx, rec.Peer, rec.Export)
		switch {
		case err != nil:
			return nil, err
		case !ok || n.disks.deviceOf(at) != rec.Device:
			return nil, refused("volume %s is mounted at %s, and its disk is gone: unstage it first", rec.Volume, staging)
		case rec.ReadOnly:
			return done, nil
		}
		// Whoever mounted it may have come no further.
		if err := n.resize(rec); err != nil {
			return nil, err
		}
		return done, nil
	}
	device, err := n.disks.attach(ctx, rec.Peer, rec.Export, n.linkOf(rec.Volume))
	if err != nil {
		return nil, err
	}
	if rec.Device != device {
		rec.Device = device
		if err := n.save(rec); err != nil {
			return nil, err
		}
	}
	if !u.block {
		if err := n.mount(rec, u); err != nil {
			return nil, err
		}
	}
	return done, nil
}

// linkOf is the name of a volume's link below /dev/disk/by-ironwarp. The daemon finds a device again by it, so that two nodes in one kernel,
// as clusters in containers are, must not have the same one.
func (n *Node) linkOf(volume string) string { return nameOf(hashed + n.id + "\n" + volume) }

// save writes a record down.
func (n *Node) save(rec *record) error {
	if err := n.records.save(rec); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// isMounted reports whether something is mounted at a path. It fails with the kernel's error, unless there is nothing.
func (n *Node) isMounted(path string) (bool, error) {
	ok, err := n.mounter.IsMountPoint(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !mount.IsCorruptedMnt(err) {
		return false, status.Errorf(codes.Internal, "is something mounted at %s: %v", path, err)
	}
	return ok || mount.IsCorruptedMnt(err), nil
}

// mount mounts a staged disk with its file system, made new if the disk is empty, as large as the disk is.
func (n *Node) mount(rec *record, u use) error {
	options := append([]string{"nodev", "nosuid"}, u.flags...)
	if rec.FSType == xfs {
		options = append(options, "nouuid") // a clone has the UUID of its source, which may be mounted here as well
	}
	if rec.ReadOnly {
		options = append(options, "ro")
	}
	if err := n.mounter.FormatAndMount(rec.Device, rec.Staging, rec.FSType, options); err != nil {
		return status.Errorf(codes.Internal, "mount %s of volume %s at %s: %v", rec.Device, rec.Volume, rec.Staging, err)
	}
	if rec.ReadOnly {
		return nil
	}
	return n.resize(rec)
}

// resize makes the file system of a volume as large as its disk, while it is mounted.
func (n *Node) resize(rec *record) error {
	if _, err := mount.NewResizeFs(n.mounter.Exec).Resize(rec.Device, rec.Staging); err != nil {
		return status.Errorf(codes.Internal, "make the file system of volume %s as large as %s: %v", rec.Volume, rec.Device, err)
	}
	return nil
}

// NodeUnstageVolume unmounts a volume and detaches it. One that is not staged is no error; one that pods have is refused.
func (n *Node) NodeUnstageVolume(ctx context.Context, req *csi.NodeUnstageVolumeRequest) (*csi.NodeUnstageVolumeResponse, error) {
	done := new(csi.NodeUnstageVolumeResponse)
	if err := checkPath(n.base, req.GetStagingTargetPath()); err != nil {
		return nil, invalid("staging path: %v", err)
	}
	rec, end, err := n.reserve(req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	switch {
	case rec == nil:
		return done, nil
	case rec.Staging != req.GetStagingTargetPath():
		return nil, refused("volume %s is staged at %s, not at %s", rec.Volume, rec.Staging, req.GetStagingTargetPath())
	}
	if err := n.prune(rec); err != nil {
		return nil, err
	}
	if len(rec.Targets) > 0 {
		return nil, refused("volume %s is still at %s", rec.Volume, rec.Targets[0].Path)
	}
	if !rec.Block {
		if err := n.unmount(rec.Staging); err != nil {
			return nil, err
		}
	}
	if err := n.disks.detach(ctx, rec.Peer, rec.Export); err != nil {
		return nil, err
	}
	if err := n.records.remove(rec.Volume); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return done, nil
}

// prune takes those targets off a record where nothing is mounted any more, as after a reboot.
func (n *Node) prune(rec *record) error {
	var left []target
	for _, t := range rec.Targets {
		mounted, err := n.isMounted(t.Path)
		if err != nil {
			return err
		}
		if mounted {
			left = append(left, t)
		}
	}
	rec.Targets = left
	return nil
}

// unmount unmounts whatever is mounted at a path.
func (n *Node) unmount(path string) error {
	mounted, err := n.isMounted(path)
	if err != nil || !mounted {
		return err
	}
	if err := n.mounter.Unmount(path); err != nil {
		return status.Errorf(codes.Internal, "unmount %s: %v", path, err)
	}
	return nil
}

// mounting is the mounter of a node that is none of a test.
func mounting() *mount.SafeFormatAndMount {
	return mount.NewSafeFormatAndMount(mount.New(""), exec.New())
}
