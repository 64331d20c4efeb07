package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// snapshot is a snapshot as the orchestrator sees it.
func snapshot(id volumeID, vol api.Volume) *csi.Snapshot {
	s := &csi.Snapshot{SnapshotId: id.String(), SizeBytes: vol.Size, CreationTime: timestamppb.New(vol.Created), ReadyToUse: true}
	s.SourceVolumeId = volumeID{id.host, id.pool, vol.Source}.String()
	return s
}

// CreateSnapshot makes a snapshot of a volume, or finds the one that the same call made before: what programs had had acknowledged
// is in it. It fails with ALREADY_EXISTS where the name is that of something else.
func (c *Controller) CreateSnapshot(ctx context.Context, req *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, invalid("name of the snapshot: %v", err)
	}
	for key := range req.GetParameters() {
		if !isSidecar(key) {
			return nil, invalid("unknown parameter %q: snapshots have none", key)
		}
	}
	name := nameOf(req.GetName())
	end, err := c.busy.begin(name)
	if err != nil {
		return nil, err
	}
	defer end()
	source, _, err := c.find(ctx, req.GetSourceVolumeId(), api.KindVolume)
	if err != nil {
		return nil, err
	}
	id := volumeID{source.host, source.pool, name}
	switch vol, err := c.lookup(ctx, id.host, id.pool, id.name); {
	case status.Code(err) == codes.NotFound:
	case err != nil:
		return nil, err
	case isLeaving(vol):
		return nil, leaving(name)
	case vol.Kind != api.KindSnapshot || vol.Source != source.name:
		return nil, exists("%s is there already: a %s of %q", id, vol.Kind, vol.Source)
	default:
		return &csi.CreateSnapshotResponse{Snapshot: snapshot(id, vol)}, nil
	}
	vol, err := c.daemon.SnapshotVolume(ctx, source.peer(), source.name, api.VolumeSnapshot{Name: name})
	if err != nil {
		return nil, statusOf("make snapshot "+id.String()+" of "+source.String(), err)
	}
	return &csi.CreateSnapshotResponse{Snapshot: snapshot(id, vol)}, nil
}

// DeleteSnapshot removes a snapshot. One that is not there is no error.
func (c *Controller) DeleteSnapshot(ctx context.Context, req *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := c.remove(ctx, req.GetSnapshotId(), api.KindSnapshot); err != nil {
		return nil, err
	}
	return new(csi.DeleteSnapshotResponse), nil
}

// ListSnapshots lists the snapshots of all hosts, of one volume, or one of them. It fails as ListVolumes does.
func (c *Controller) ListSnapshots(ctx context.Context, req *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	list, err := c.all(ctx, api.KindSnapshot)
	if err != nil {
		return nil, err
	}
	var wanted []entry
	for _, e := range list {
		s := snapshot(e.id, e.vol)
		if (req.GetSnapshotId() == "" || s.GetSnapshotId() == req.GetSnapshotId()) && (req.GetSourceVolumeId() == "" || s.GetSourceVolumeId() == req.GetSourceVolumeId()) {
			wanted = append(wanted, e)
		}
	}
	part, next, err := page(wanted, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csi.ListSnapshotsResponse{NextToken: next}
	for _, e := range part {
		out.Entries = append(out.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: snapshot(e.id, e.vol)})
	}
	return out, nil
}

// GetSnapshot shows one snapshot. It fails with NOT_FOUND for one that is not there.
func (c *Controller) GetSnapshot(ctx context.Context, req *csi.GetSnapshotRequest) (*csi.GetSnapshotResponse, error) {
	id, vol, err := c.find(ctx, req.GetSnapshotId(), api.KindSnapshot)
	if err != nil {
		return nil, err
	}
	return &csi.GetSnapshotResponse{Snapshot: snapshot(id, vol)}, nil
}
