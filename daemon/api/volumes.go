package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Drivers of pools.
const (
	DriverFile    = "file"    // regular files in a directory; snapshots and clones by FICLONE where its file system has that
	DriverLVMThin = "lvmthin" // thin volumes of a thin pool of LVM
)

// Features of a pool.
const (
	FeatureSnapshots = "snapshots" // volumes can be snapshotted
	FeatureClones    = "clones"    // volumes can begin with the contents of a volume or snapshot
	FeatureExpand    = "expand"    // volumes can be made larger while they are in use
	FeatureThin      = "thin"      // a volume takes room only for what was written
)

// Pool is storage of a host from which volumes are made.
type Pool struct {
	Name     string   `json:"name"`
	Driver   string   `json:"driver"`                 // DriverFile or DriverLVMThin
	Where    string   `json:"where"`                  // the directory, or VG/POOL
	Size     int64    `json:"size_bytes,omitzero"`    // absent: not known, see Problem
	Used     int64    `json:"used_bytes,omitzero"`    // of Size, by volumes and all else that is there
	Free     int64    `json:"free_bytes,omitzero"`    // of Size
	Volumes  int      `json:"volumes"`                // volumes and snapshots
	Quota    int      `json:"max_volumes"`            // how many there may be
	Manage   []string `json:"manage"`                 // peers that may manage the pool from their hosts
	Features []string `json:"features"`               // the Feature constants
	Alarm    int      `json:"alarm_percent,omitzero"` // the highest threshold of usage that is crossed; absent: none
	Problem  *Error   `json:"problem,omitempty"`
}

// Kinds of a Volume.
const (
	KindVolume   = "volume"   // an export, that can be published to peers
	KindSnapshot = "snapshot" // what a volume held at one time; peers cannot attach it, but a volume can begin with it
)

// Volume is a volume of a pool, or a snapshot of one. Its name is unique among those of a host, and
// that of its export.
type Volume struct {
	Name   string `json:"name"`
	Pool   string `json:"pool"`
	UUID   string `json:"uuid"`                // of the volume; a snapshot and a clone have their own
	Kind   string `json:"kind"`                // KindVolume or KindSnapshot
	Source string `json:"source,omitempty"`    // the volume or snapshot that its contents came from
	Size   int64  `json:"size_bytes,omitzero"` // as peers see it
	Used   int64  `json:"used_bytes,omitzero"` // room that it takes in its pool; absent: not known
	Export string `json:"export,omitempty"`    // the export that it is; absent of a snapshot
	State  string `json:"state,omitempty"`     // of the export: one of the Export constants
	// Problem is why peers cannot use it now. Without an Export, CodeInUse is that of one that is being removed.
	Problem    *Error      `json:"problem,omitempty"`
	QoS        QoS         `json:"qos"`
	Writers    string      `json:"writers,omitempty"` // as of an ExportSpec
	Allow      []PeerLease `json:"allow"`             // to whom it is published
	Created    time.Time   `json:"created,omitzero"`
	Generation uint64      `json:"generation"` // of the disk: how often writers were fenced
}

// PeerLease is a peer to whom a volume is published.
type PeerLease struct {
	Peer     string `json:"peer"` // its name, or its IKE identity behind "id:"
	ReadOnly bool   `json:"read_only,omitempty"`
	Shared   bool   `json:"shared,omitempty"` // others may write at the same time
	// Generation is that of the disk when the volume was published to the peer.
	Generation uint64 `json:"generation"`
	// Leaving: it may not attach it any more, and it is not certain yet that nothing of it is under way.
	Leaving bool `json:"leaving,omitempty"`
}

// QoS limits the I/O of an export, of all peers together. What is 0 is not limited. I/O beyond a limit waits.
type QoS struct {
	IOPS           int64 `json:"iops,omitzero"`             // reads and writes
	ReadIOPS       int64 `json:"read_iops,omitzero"`        // reads alone
	WriteIOPS      int64 `json:"write_iops,omitzero"`       // writes alone
	Bandwidth      int64 `json:"bytes_per_second,omitzero"` // of reads and writes
	ReadBandwidth  int64 `json:"read_bytes_per_second,omitzero"`
	WriteBandwidth int64 `json:"write_bytes_per_second,omitzero"`
	// BurstSeconds is for how long a limit's I/O may be saved up while there is less; 0 is a second.
	BurstSeconds float64 `json:"burst_seconds,omitzero"`
}

// VolumeCreate asks for a new volume. Where one of the name exists that the same request would have made, that one is the
// answer; another one is CodeExists.
type VolumeCreate struct {
	Pool    string `json:"pool"`
	Name    string `json:"name"`
	Size    int64  `json:"size_bytes,omitzero"` // a multiple of 512; 0: that of From
	From    string `json:"from,omitempty"`      // the volume or snapshot of the pool whose contents it begins with
	QoS     QoS    `json:"qos,omitzero"`
	Writers string `json:"writers,omitempty"` // as of an ExportSpec
}

// VolumeExpand asks that a volume be at least so large. Peers that have it attached see it grow.
type VolumeExpand struct {
	Size int64 `json:"size_bytes,omitzero"`
}

// VolumeSnapshot asks for a snapshot of a volume. What the volume's peers have had acknowledged is in it; where one of the
// name and of the volume exists, that one is the answer.
type VolumeSnapshot struct {
	Name string `json:"name"`
}

// VolumePublish asks that a peer may attach a volume.
type VolumePublish struct {
	Peer     string `json:"peer"` // by its name on the volume's host, or its IKE identity behind "id:"; "": the peer that asks
	ReadOnly bool   `json:"read_only,omitempty"`
	Shared   bool   `json:"shared,omitempty"` // others may have it for writing at the same time; without it that is CodeInUse
}

// VolumePublished is how a peer attaches what was published to it.
type VolumePublished struct {
	Export     string `json:"export"`
	UUID       string `json:"uuid"`
	Size       int64  `json:"size_bytes,omitzero"`
	Generation uint64 `json:"generation"` // of the disk
}

// VolumeUnpublish asks that a peer may attach a volume no more, and be fenced from it: the answer comes when nothing of it can
// reach the storage any more.
type VolumeUnpublish struct {
	Peer string `json:"peer"` // as in VolumePublish; or the name that it had then, unless it is that of a peer with a lease now
	// TimeoutSeconds is how long its I/O may take to end; 0 is a minute.
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
}

// Pools lists the pools of this host, or with a name those of a peer that lets this host manage them. It fails as each call does.
func (c *Client) Pools(ctx context.Context, peer string) (v []Pool, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/pools"+peerQuery(peer), nil, &v)
}

// Pool shows one pool. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) Pool(ctx context.Context, peer, name string) (v Pool, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/pools/"+url.PathEscape(name)+peerQuery(peer), nil, &v)
}

// Volumes lists the volumes and snapshots. It fails as each call does.
func (c *Client) Volumes(ctx context.Context, peer string) (v []Volume, err error) {
	return v, c.call(ctx, http.MethodGet, "/v1/volumes"+peerQuery(peer), nil, &v)
}

// Volume shows one volume or snapshot. It fails as each call does, with CodeNotFound for an unknown name.
func (c *Client) Volume(ctx context.Context, peer, name string) (v Volume, err error) {
	return v, c.call(ctx, http.MethodGet, volumePath(name, "")+peerQuery(peer), nil, &v)
}

// CreateVolume makes a volume. It fails as each call does: with CodeExists where another volume has the name, with CodeNoSpace, and
// with CodeNotFound for an unknown pool or source.
func (c *Client) CreateVolume(ctx context.Context, peer string, q VolumeCreate) (v Volume, err error) {
	return v, c.call(ctx, http.MethodPost, "/v1/volumes"+peerQuery(peer), q, &v)
}

// RemoveVolume removes a volume or snapshot for good. It fails as each call does: with CodeNotFound where there is none, and
// with CodeInUse while it is published to a peer.
func (c *Client) RemoveVolume(ctx context.Context, peer, name string) error {
	return c.call(ctx, http.MethodDelete, volumePath(name, "")+peerQuery(peer), nil, nil)
}

// ExpandVolume makes a volume larger; one that is as large already stays as it is. It fails as each call does, with CodeNoSpace
// where the pool has no room.
func (c *Client) ExpandVolume(ctx context.Context, peer, name string, q VolumeExpand) (v Volume, err error) {
	return v, c.call(ctx, http.MethodPost, volumePath(name, "expand")+peerQuery(peer), q, &v)
}

// SnapshotVolume makes a snapshot of a volume, which goes on meanwhile. It fails as each call does, with CodeUnsupported where
// the pool makes none, and with CodeExists where the name is taken.
func (c *Client) SnapshotVolume(ctx context.Context, peer, name string, q VolumeSnapshot) (v Volume, err error) {
	return v, c.call(ctx, http.MethodPost, volumePath(name, "snapshot")+peerQuery(peer), q, &v)
}

// PublishVolume lets a peer attach a volume. It fails as each call does, with CodeInUse where another peer has it for writing.
func (c *Client) PublishVolume(ctx context.Context, peer, name string, q VolumePublish) (v VolumePublished, err error) {
	return v, c.call(ctx, http.MethodPost, volumePath(name, "publish")+peerQuery(peer), q, &v)
}

// UnpublishVolume fences a peer from a volume. It fails as each call does, with CodeTimeout if I/O of the peer has not ended: then
// nobody else is to write until a further call succeeds.
func (c *Client) UnpublishVolume(ctx context.Context, peer, name string, q VolumeUnpublish) (v Fenced, err error) {
	return v, c.call(ctx, http.MethodPost, volumePath(name, "unpublish")+peerQuery(peer), q, &v)
}

// SetVolumeQoS changes the limits of a volume's I/O, also while it is in use. It fails as each call does.
func (c *Client) SetVolumeQoS(ctx context.Context, peer, name string, q QoS) (v Volume, err error) {
	return v, c.call(ctx, http.MethodPost, volumePath(name, "qos")+peerQuery(peer), q, &v)
}

func volumePath(name, what string) string {
	path := "/v1/volumes/" + url.PathEscape(name)
	if what != "" {
		path += "/" + what
	}
	return path
}

// peerQuery is the query of a request that a peer's daemon is to answer, "" for this host's.
func peerQuery(peer string) string {
	if peer == "" {
		return ""
	}
	return "?" + url.Values{"peer": {peer}}.Encode()
}
