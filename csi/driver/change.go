package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// ControllerExpandVolume makes a volume larger, while it is in use or not. It fails with OUT_OF_RANGE where it is larger than the
// range allows, and with RESOURCE_EXHAUSTED where the pool has no room.
func (c *Controller) ControllerExpandVolume(ctx context.Context, req *csi.ControllerExpandVolumeRequest) (*csi.ControllerExpandVolumeResponse, error) {
	if req.GetVolumeId() != "" && req.GetCapacityRange() == nil {
		return nil, invalid("no capacity range was given")
	}
	id, vol, end, err := c.reserve(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	size, limit, err := sizeOf(req.GetCapacityRange(), vol.Size)
	if err != nil {
		return nil, err
	}
	if vol.Size < req.GetCapacityRange().GetRequiredBytes() {
		if vol, err = c.daemon.ExpandVolume(ctx, id.peer(), id.name, api.VolumeExpand{Size: size}); err != nil {
			return nil, statusOf("expand volume "+id.String(), err)
		}
	}
	if vol.Size > limit {
		return nil, outOfRange("volume %s has %d bytes, more than %d", id, vol.Size, limit)
	}
	// With a file system on it, the node has to make that larger too; a raw block device grows by itself.
	return &csi.ControllerExpandVolumeResponse{CapacityBytes: vol.Size, NodeExpansionRequired: req.GetVolumeCapability().GetBlock() == nil}, nil
}

// ControllerModifyVolume changes the limits of a volume's I/O, also while it is in use. It fails with INVALID_ARGUMENT for
// parameters that are none.
func (c *Controller) ControllerModifyVolume(ctx context.Context, req *csi.ControllerModifyVolumeRequest) (*csi.ControllerModifyVolumeResponse, error) {
	id, vol, end, err := c.reserve(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	qos, err := parseQoS(req.GetMutableParameters())
	if err != nil {
		return nil, invalid("mutable parameters: %v", err)
	}
	if qos != vol.QoS {
		if _, err := c.daemon.SetVolumeQoS(ctx, id.peer(), id.name, qos); err != nil {
			return nil, statusOf("limit the I/O of volume "+id.String(), err)
		}
	}
	return new(csi.ControllerModifyVolumeResponse), nil
}
