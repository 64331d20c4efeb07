package driver

import (
	"cmp"
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// entry is a volume or snapshot of a list.
type entry struct {
	id  volumeID
	vol api.Volume
}

// all lists what the hosts have of a kind, in the order of the ids. It fails where a host does not answer: a volume that is missing from
// a list would be taken for one that is gone.
func (c *Controller) all(ctx context.Context, kind string) ([]entry, error) {
	var list []entry
	for _, h := range c.hosts {
		vols, err := c.daemon.Volumes(ctx, peerOf(h.Name))
		if err != nil {
			return nil, unreachable(h.Name, err)
		}
		for _, v := range vols {
			// A name that ids cannot have is none that this driver, or the control API, gave.
			if v.Kind == kind && isName(v.Name, maxName) && isName(v.Pool, maxPool) {
				list = append(list, entry{volumeID{h.Name, v.Pool, v.Name}, v})
			}
		}
	}
	slices.SortFunc(list, func(a, b entry) int { return cmp.Compare(a.id.String(), b.id.String()) })
	return list, nil
}

// page cuts a page from a list: at most most entries after the one whose id is the token. The next token is "" at the end.
// It fails with ABORTED for a token that is none of these ids.
func page(list []entry, token string, most int32) (part []entry, next string, err error) {
	if most < 0 {
		return nil, "", invalid("max_entries is %d", most)
	}
	if token != "" {
		if _, err := parseID(token); err != nil {
			return nil, "", status.Errorf(codes.Aborted, "starting_token is none that this driver has given: %v; begin anew without one", err)
		}
		// The entry itself may be gone by now.
		i, found := slices.BinarySearchFunc(list, token, func(e entry, t string) int { return cmp.Compare(e.id.String(), t) })
		if found {
			i++
		}
		list = list[i:]
	}
	n := maxEntries
	if most > 0 {
		n = min(n, int(most))
	}
	if len(list) > n {
		return list[:n], list[n-1].id.String(), nil
	}
	return list, "", nil
}

// ListVolumes lists the volumes of all hosts. It fails with UNAVAILABLE where one does not answer, and with ABORTED for a strange
// token.
func (c *Controller) ListVolumes(ctx context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	list, err := c.all(ctx, api.KindVolume)
	if err != nil {
		return nil, err
	}
	part, next, err := page(list, req.GetStartingToken(), req.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csi.ListVolumesResponse{NextToken: next}
	for _, e := range part {
		out.Entries = append(out.Entries, &csi.ListVolumesResponse_Entry{Volume: c.describe(e.id, e.vol)})
	}
	return out, nil
}

// ControllerGetVolume shows one volume. It fails with NOT_FOUND for one that is not there.
func (c *Controller) ControllerGetVolume(ctx context.Context, req *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	id, vol, err := c.find(ctx, req.GetVolumeId(), api.KindVolume)
	if err != nil {
		return nil, err
	}
	return &csi.ControllerGetVolumeResponse{Volume: c.describe(id, vol), Status: new(csi.ControllerGetVolumeResponse_VolumeStatus)}, nil
}

// ValidateVolumeCapabilities confirms what a volume can be used for. It fails with NOT_FOUND for one that is not there.
func (c *Controller) ValidateVolumeCapabilities(ctx context.Context, req *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	if len(req.GetVolumeCapabilities()) == 0 {
		return nil, invalid("no volume capability was given")
	}
	_, vol, err := c.find(ctx, req.GetVolumeId(), api.KindVolume)
	if err != nil {
		return nil, err
	}
	uses, err := parseUses(req.GetVolumeCapabilities())
	if err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	if vol.Writers != writersShared && slices.ContainsFunc(uses, func(u use) bool { return u.shared }) {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: "the volume was not made for several writers"}, nil
	}
	if _, err := parseParams(req.GetParameters()); err != nil {
		return &csi.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: req.GetVolumeContext(), VolumeCapabilities: req.GetVolumeCapabilities(), Parameters: req.GetParameters(),
	}}, nil
}

// GetCapacity returns the room in the pools that fit, and that of the largest one. It fails with UNAVAILABLE where a host does not
// answer.
func (c *Controller) GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	out := new(csi.GetCapacityResponse)
	if len(req.GetVolumeCapabilities()) > 0 {
		if _, err := parseUses(req.GetVolumeCapabilities()); err != nil {
			return out, nil // there is no room for what cannot be made
		}
	}
	p, err := parseParams(req.GetParameters())
	if err != nil {
		return nil, invalid("%v", err)
	}
	var largest int64
	for _, h := range c.hosts {
		if p.host != "" && h.Name != p.host || req.GetAccessibleTopology() != nil && !h.reachedFrom(req.GetAccessibleTopology()) {
			continue
		}
		pools, err := c.daemon.Pools(ctx, peerOf(h.Name))
		if err != nil {
			return nil, unreachable(h.Name, err)
		}
		for _, pool := range pools {
			if p.pool == "" || pool.Name == p.pool {
				out.AvailableCapacity += max(pool.Free, 0)
				largest = max(largest, pool.Free)
			}
		}
	}
	out.MaximumVolumeSize = wrapperspb.Int64(largest / sizeUnit * sizeUnit)
	out.MinimumVolumeSize = wrapperspb.Int64(sizeUnit)
	return out, nil
}
