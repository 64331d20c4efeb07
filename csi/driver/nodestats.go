package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// at finds the volume that is staged or published at a path, and reserves it until end. It fails with NOT_FOUND where there is none.
func (n *Node) at(volume, path string) (rec *record, end func(), err error) {
	if volume != "" && path == "" {
		return nil, nil, invalid("no path of the volume was given")
	}
	if rec, end, err = n.reserve(volume); err != nil {
		return nil, nil, err
	}
	if rec == nil || !rec.has(path) {
		end()
		return nil, nil, notFound("volume %s is not at %q on this node", volume, path)
	}
	return rec, end, nil
}

// NodeGetVolumeStats returns how full the file system of a volume is, or how large its device is. It fails with NOT_FOUND where the
// volume is not at the path.
func (n *Node) NodeGetVolumeStats(ctx context.Context, req *csi.NodeGetVolumeStatsRequest) (*csi.NodeGetVolumeStatsResponse, error) {
	rec, end, err := n.at(req.GetVolumeId(), req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer end()
	if rec.Block {
		at, ok, err := n.disks.find(ctx, rec.Peer, rec.Export)
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, notFound("%s/%s is not attached to this node", rec.Peer, rec.Export)
		}
		return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{{Unit: csi.VolumeUsage_BYTES, Total: int64(at.Size)}}}, nil
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(req.GetVolumePath(), &fs); err != nil {
		return nil, status.Errorf(codes.Internal, "ask for the usage of %s: %v", req.GetVolumePath(), err)
	}
	unit := int64(fs.Bsize)
	return &csi.NodeGetVolumeStatsResponse{Usage: []*csi.VolumeUsage{
		{Unit: csi.VolumeUsage_BYTES, Total: int64(fs.Blocks) * unit, Available: int64(fs.Bavail) * unit, Used: int64(fs.Blocks-fs.Bfree) * unit},
		{Unit: csi.VolumeUsage_INODES, Total: int64(fs.Files), Available: int64(fs.Ffree), Used: int64(fs.Files - fs.Ffree)},
	}}, nil
}

// NodeExpandVolume makes the file system of a volume as large as its disk, which the controller has made larger, while it is in use.
// It fails with UNAVAILABLE where the disk has not grown yet.
func (n *Node) NodeExpandVolume(ctx context.Context, req *csi.NodeExpandVolumeRequest) (*csi.NodeExpandVolumeResponse, error) {
	rec, end, err := n.at(req.GetVolumeId(), req.GetVolumePath())
	if err != nil {
		return nil, err
	}
	defer end()
	size, err := n.disks.grown(ctx, rec.Peer, rec.Export, req.GetCapacityRange().GetRequiredBytes())
	if err != nil {
		return nil, err
	}
	if !rec.Block && !rec.ReadOnly {
		if err := n.resize(rec); err != nil {
			return nil, err
		}
	}
	return &csi.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}
