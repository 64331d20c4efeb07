package driver

import (
	"context"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// Host is a host whose pools the controller makes volumes of, and the topology of those who reach it.
type Host struct {
	Name     string            // of the peer, or "." for the controller's own host
	Topology map[string]string // keys and values that a node must have to use its volumes; none: all nodes may
}

// Controller is the Controller service.
type Controller struct {
	csi.UnimplementedControllerServer
	daemon Volumes
	hosts  []Host // in the order in which they are tried
	busy   inflight
}

var controllerCapabilities = []csi.ControllerServiceCapability_RPC_Type{
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
	csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME,
	csi.ControllerServiceCapability_RPC_LIST_VOLUMES,
	csi.ControllerServiceCapability_RPC_GET_CAPACITY,
	csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS,
	csi.ControllerServiceCapability_RPC_GET_SNAPSHOT,
	csi.ControllerServiceCapability_RPC_CLONE_VOLUME,
	csi.ControllerServiceCapability_RPC_PUBLISH_READONLY,
	csi.ControllerServiceCapability_RPC_EXPAND_VOLUME,
	csi.ControllerServiceCapability_RPC_GET_VOLUME,
	csi.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	csi.ControllerServiceCapability_RPC_MODIFY_VOLUME,
}

// ControllerGetCapabilities returns what the service can do. It does not fail.
func (c *Controller) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	out := new(csi.ControllerGetCapabilitiesResponse)
	for _, t := range controllerCapabilities {
		out.Capabilities = append(out.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return out, nil
}

// host returns the storage host of a name.
func (c *Controller) host(name string) (Host, bool) {
	i := slices.IndexFunc(c.hosts, func(h Host) bool { return h.Name == name })
	if i < 0 {
		return Host{}, false
	}
	return c.hosts[i], true
}

// find looks a volume or snapshot up by the id that the orchestrator has, of which what says what it is. It fails with NOT_FOUND
// only where the host that has to know says that there is none, or where the id is not one of this driver's.
func (c *Controller) find(ctx context.Context, id, kind string) (volumeID, api.Volume, error) {
	if id == "" {
		return volumeID{}, api.Volume{}, invalid("no id of a %s was given", kind)
	}
	v, err := parseID(id)
	if err != nil {
		return volumeID{}, api.Volume{}, notFound("no such %s: %v", kind, err)
	}
	if _, ok := c.host(v.host); !ok {
		return v, api.Volume{}, refused("%s %s is of host %s, which is none of this controller's (--host): nobody here knows what became of it", kind, id, v.host)
	}
	vol, err := c.lookup(ctx, v.host, v.pool, v.name)
	if err != nil {
		return v, api.Volume{}, err
	}
	if vol.Pool != v.pool {
		return v, api.Volume{}, notFound("%s is in pool %s now", id, vol.Pool)
	}
	if vol.Kind != kind {
		return v, api.Volume{}, notFound("%s is not a %s but a %s", id, kind, vol.Kind)
	}
	return v, vol, nil
}

// lookup asks a host for a volume or snapshot, which is in a pool, or in any with "". It fails with NOT_FOUND only where that host has
// none of the name there.
func (c *Controller) lookup(ctx context.Context, host, pool, name string) (api.Volume, error) {
	vol, err := c.daemon.Volume(ctx, peerOf(host), name)
	if hasCode(err, api.CodeNotFound) {
		// It may be the peer that was not found, or the pool may be managed by others now: then the volume may well exist.
		pools, err := c.daemon.Pools(ctx, peerOf(host))
		if err != nil {
			return vol, unreachable(host, err)
		}
		if pool != "" && !slices.ContainsFunc(pools, func(p api.Pool) bool { return p.Name == pool }) {
			return vol, refused("storage host %s does not let this host manage a pool %s (manage:), so that nobody here knows what became of %s in it", host, pool, name)
		}
		return vol, notFound("host %s has no volume or snapshot %s", host, name)
	}
	if err != nil {
		return vol, statusOf("look up "+name+" on "+host, err)
	}
	return vol, nil
}

// describe is a volume as the orchestrator sees it.
func (c *Controller) describe(v volumeID, vol api.Volume) *csi.Volume {
	out := &csi.Volume{VolumeId: v.String(), CapacityBytes: vol.Size, VolumeContext: map[string]string{paramHost: v.host, paramPool: vol.Pool}}
	if h, ok := c.host(v.host); ok && len(h.Topology) > 0 {
		out.AccessibleTopology = []*csi.Topology{{Segments: h.Topology}}
	}
	return out
}
