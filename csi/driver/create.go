package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// writersShared lets several hosts write to a volume, as api.VolumeCreate has it.
const writersShared = "shared"

// order is a volume that the orchestrator asks for.
type order struct {
	name    string // of the volume
	params  params
	sizes   *csi.CapacityRange
	source  volumeID   // whose contents it begins with; zero: it begins empty
	from    api.Volume // the source
	writers string
	hosts   []Host // where it may be, the preferred one first
}

// CreateVolume makes a volume, or finds the one that the same call made before. See the specification for its errors.
func (c *Controller) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := checkName(req.GetName()); err != nil {
		return nil, invalid("name of the volume: %v", err)
	}
	uses, err := parseUses(req.GetVolumeCapabilities())
	if err != nil {
		return nil, invalid("%v", err)
	}
	o := order{name: nameOf(req.GetName()), sizes: req.GetCapacityRange()}
	if o.params, err = parseParams(req.GetParameters()); err != nil {
		return nil, invalid("%v", err)
	}
	mutable, err := parseQoS(req.GetMutableParameters())
	if err != nil {
		return nil, invalid("mutable parameters: %v", err)
	}
	if mutable != (api.QoS{}) {
		o.params.qos = mutable
	}
	if slices.ContainsFunc(uses, func(u use) bool { return u.shared }) {
		o.writers = writersShared
	}
	end, err := c.busy.begin(o.name)
	if err != nil {
		return nil, err
	}
	defer end()
	if o.source, o.from, err = c.sourceOf(ctx, req.GetVolumeContentSource()); err != nil {
		return nil, err
	}
	if o.hosts, err = c.candidates(o.params.host, o.source.host, req.GetAccessibilityRequirements()); err != nil {
		return nil, err
	}
	id, vol, err := c.findOrMake(ctx, &o)
	if err != nil {
		return nil, err
	}
	out := c.describe(id, vol)
	out.ContentSource = req.GetVolumeContentSource()
	return &csi.CreateVolumeResponse{Volume: out}, nil
}

// sourceOf finds the volume or snapshot that a new volume begins with.
func (c *Controller) sourceOf(ctx context.Context, s *csi.VolumeContentSource) (id volumeID, from api.Volume, err error) {
	switch {
	case s.GetSnapshot() != nil:
		return c.find(ctx, s.GetSnapshot().GetSnapshotId(), api.KindSnapshot)
	case s.GetVolume() != nil:
		return c.find(ctx, s.GetVolume().GetVolumeId(), api.KindVolume)
	case s != nil:
		return id, from, invalid("the content source is neither a snapshot nor a volume")
	}
	return id, from, nil
}

// findOrMake returns the volume of an order: the one that is there already, on whatever host it was made, or a new one.
func (c *Controller) findOrMake(ctx context.Context, o *order) (volumeID, api.Volume, error) {
	size, limit, err := sizeOf(o.sizes, o.from.Size)
	if err != nil {
		return volumeID{}, api.Volume{}, err
	}
	// A host that does not answer may have the volume: making a second one elsewhere would leave the first one behind.
	for _, h := range o.hosts {
		vol, err := c.lookup(ctx, h.Name, "", o.name)
		switch {
		case status.Code(err) == codes.NotFound:
		case err != nil:
			return volumeID{}, vol, err
		case isLeaving(vol):
			return volumeID{}, vol, leaving(o.name)
		default:
			return volumeID{h.Name, vol.Pool, o.name}, vol, o.matches(vol, limit)
		}
	}
	var failures []error
	code := codes.ResourceExhausted
	for _, h := range o.hosts {
		id, vol, err := c.make(ctx, o, h.Name, size)
		if err == nil && vol.Size > limit {
			err = outOfRange("pool %s made %d bytes of it, more than %d", vol.Pool, vol.Size, limit)
			if rest := c.daemon.RemoveVolume(ctx, id.peer(), id.name); rest != nil {
				err = outOfRange("%v, and does not remove it: %v", status.Convert(err).Message(), rest)
			}
		}
		if err == nil {
			return id, vol, nil
		}
		s, _ := status.FromError(err)
		if s.Code() != codes.ResourceExhausted && s.Code() != codes.NotFound || len(o.hosts) == 1 {
			return id, vol, err
		}
		failures = append(failures, fmt.Errorf("host %s: %s", h.Name, s.Message()))
	}
	return volumeID{}, api.Volume{}, status.Errorf(code, "no host has room for volume %s: %v", o.name, errors.Join(failures...))
}

// isLeaving reports whether a volume or snapshot is being removed: its host lists it until its storage is gone, as one without an export
// that is in use.
func isLeaving(vol api.Volume) bool {
	return vol.Export == "" && vol.Problem != nil && vol.Problem.Code == api.CodeInUse
}

// leaving is the answer to who asks for one of its name meanwhile.
func leaving(name string) error {
	return status.Errorf(codes.Aborted, "%s is being removed; repeat this call when it is gone", name)
}

// matches fails with ALREADY_EXISTS unless a volume is what an order would have made.
func (o *order) matches(vol api.Volume, limit int64) error {
	switch {
	case vol.Kind != api.KindVolume:
		return exists("%s is a %s", o.name, vol.Kind)
	case vol.Size < o.sizes.GetRequiredBytes() || vol.Size > limit:
		return exists("volume %s is there already, with %d bytes, not %d to %d", o.name, vol.Size, o.sizes.GetRequiredBytes(), limit)
	case vol.Source != o.source.name:
		return exists("volume %s is there already, with the contents of %q, not of %q", o.name, vol.Source, o.source.name)
	case o.params.pool != "" && vol.Pool != o.params.pool:
		return exists("volume %s is there already, in pool %s", o.name, vol.Pool)
	case o.writers != "" && vol.Writers != o.writers:
		return exists("volume %s is there already, and not for several writers", o.name)
	}
	return nil
}

// make makes a volume on a host.
func (c *Controller) make(ctx context.Context, o *order, host string, size int64) (id volumeID, vol api.Volume, err error) {
	pool := o.params.pool
	switch {
	case o.source.name != "" && pool != "" && pool != o.from.Pool:
		return id, vol, invalid("%s is in pool %s, and so would be what begins with its contents, not in %s", o.source, o.from.Pool, pool)
	case o.source.name != "":
		pool = o.from.Pool
	case pool == "":
		pools, err := c.daemon.Pools(ctx, peerOf(host))
		if err != nil {
			return id, vol, unreachable(host, err)
		}
		if len(pools) != 1 {
			return id, vol, invalid("storage host %s has %d pools: name one with the parameter %s", host, len(pools), paramPool)
		}
		pool = pools[0].Name
	}
	if id = (volumeID{host, pool, o.name}); len(pool) > maxPool {
		return id, vol, invalid("the name of pool %s has %d bytes; in ids there is room for %d", pool, len(pool), maxPool)
	}
	q := api.VolumeCreate{Pool: pool, Name: id.name, Size: size, From: o.source.name, QoS: o.params.qos, Writers: o.writers}
	if vol, err = c.daemon.CreateVolume(ctx, id.peer(), q); err != nil {
		return id, vol, statusOf("make volume "+id.String(), err)
	}
	return id, vol, nil
}

// DeleteVolume removes a volume. One that is not there is no error.
func (c *Controller) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := c.remove(ctx, req.GetVolumeId(), api.KindVolume); err != nil {
		return nil, err
	}
	return new(csi.DeleteVolumeResponse), nil
}

// remove removes a volume or snapshot, whichever kind says.
func (c *Controller) remove(ctx context.Context, id, kind string) error {
	if id == "" {
		return invalid("no id of a %s was given", kind)
	}
	if v, err := parseID(id); err == nil {
		end, err := c.busy.begin(v.name)
		if err != nil {
			return err
		}
		defer end()
	}
	v, _, err := c.find(ctx, id, kind)
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound:
		return nil
	default:
		return err
	}
	if err := c.daemon.RemoveVolume(ctx, v.peer(), v.name); err != nil && !hasCode(err, api.CodeNotFound) {
		return statusOf("remove "+id, err)
	}
	return nil
}
