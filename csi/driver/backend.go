package driver

import (
	"context"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// Volumes is the part of the control API by which the controller makes volumes and gives them to nodes. Each call's peer is the
// host that has them, "" for the daemon's own. *api.Client implements it.
type Volumes interface {
	Peers(ctx context.Context) ([]api.Peer, error)
	Pools(ctx context.Context, peer string) ([]api.Pool, error)
	Volumes(ctx context.Context, peer string) ([]api.Volume, error)
	Volume(ctx context.Context, peer, name string) (api.Volume, error)
	CreateVolume(ctx context.Context, peer string, q api.VolumeCreate) (api.Volume, error)
	RemoveVolume(ctx context.Context, peer, name string) error
	ExpandVolume(ctx context.Context, peer, name string, q api.VolumeExpand) (api.Volume, error)
	SnapshotVolume(ctx context.Context, peer, name string, q api.VolumeSnapshot) (api.Volume, error)
	PublishVolume(ctx context.Context, peer, name string, q api.VolumePublish) (api.VolumePublished, error)
	UnpublishVolume(ctx context.Context, peer, name string, q api.VolumeUnpublish) (api.Fenced, error)
	SetVolumeQoS(ctx context.Context, peer, name string, q api.QoS) (api.Volume, error)
}

// Disks is the part of the control API by which a node attaches disks. *api.Client implements it.
type Disks interface {
	Peers(ctx context.Context) ([]api.Peer, error)
	Attachments(ctx context.Context) ([]api.Attachment, error)
	Attach(ctx context.Context, req api.AttachRequest, on func(api.Event)) (api.Attachment, error)
	Detach(ctx context.Context, peer, export string, force bool) error
}

// Prober says whether the daemon answers. *api.Client implements it.
type Prober interface {
	Info(ctx context.Context) (api.Info, error)
}

// Daemon is the control API of this host's daemon, as far as the driver needs it. *api.Client implements it.
type Daemon interface {
	Volumes
	Disks
	Prober
}
