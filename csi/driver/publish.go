package driver

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/printable"
)

// Keys of a publish context, by which a node finds the volume.
const (
	contextHost       = "host"       // the storage host's name at the controller, which nodes may call otherwise
	contextIdentity   = "identity"   // the IKE identity of the storage host
	contextExport     = "export"     // the volume's export there
	contextGeneration = "generation" // of the disk when the node got its lease
)

// ControllerPublishVolume gives a node a lease of a volume: its IKE identity may attach the export from now on, in this generation
// of the disk. It fails with FAILED_PRECONDITION while another node has the volume for writing.
func (c *Controller) ControllerPublishVolume(ctx context.Context, req *csi.ControllerPublishVolumeRequest) (*csi.ControllerPublishVolumeResponse, error) {
	node := req.GetNodeId()
	if node == "" && req.GetVolumeId() != "" {
		return nil, invalid("no id of a node was given")
	}
	u, err := parseUse(req.GetVolumeCapability())
	if err != nil {
		return nil, invalid("%v", err)
	}
	id, _, end, err := c.reserve(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer end()
	if err := checkNodeID(node); err != nil {
		return nil, notFound("no such node: %v", err)
	}
	q := api.VolumePublish{Peer: node, ReadOnly: req.GetReadonly() || u.readOnly, Shared: u.shared}
	identity, err := c.identityOf(ctx, id.host, node)
	if err != nil {
		return nil, err
	}
	p, err := c.daemon.PublishVolume(ctx, id.peer(), id.name, q)
	if err != nil {
		return nil, statusOf("publish volume "+id.String()+" to node "+node, err)
	}
	return &csi.ControllerPublishVolumeResponse{PublishContext: map[string]string{
		contextHost: id.host, contextIdentity: identity, contextExport: p.Export, contextGeneration: strconv.FormatUint(p.Generation, 10),
	}}, nil
}

// reserve finds a volume and reserves it for a call until end.
func (c *Controller) reserve(ctx context.Context, id string) (v volumeID, vol api.Volume, end func(), err error) {
	end = func() {}
	if parsed, err := parseID(id); err == nil {
		if end, err = c.busy.begin(parsed.name); err != nil {
			return v, vol, nil, err
		}
	}
	if v, vol, err = c.find(ctx, id, api.KindVolume); err != nil {
		end()
		return v, vol, nil, err
	}
	return v, vol, end, nil
}

// identityOf is the IKE identity by which nodes know a storage host. Of the controller's own host it is the one that it has
// towards the node, if the node is one of its peers.
func (c *Controller) identityOf(ctx context.Context, host, node string) (string, error) {
	peers, err := c.daemon.Peers(ctx)
	if err != nil {
		return "", statusOf("list the peers of this host", err)
	}
	i := slices.IndexFunc(peers, func(p api.Peer) bool {
		if host == ownHost {
			return isNode(p, node)
		}
		return p.Name == host
	})
	switch {
	case i < 0:
		return "", nil
	case host == ownHost:
		return peers[i].LocalID, nil
	}
	return peers[i].RemoteID, nil
}

// identityPrefix begins a node id that is an IKE identity, and not the name that the storage host has for its peer.
const identityPrefix = "id:"

func isNode(p api.Peer, node string) bool {
	if id, ok := strings.CutPrefix(node, identityPrefix); ok {
		return p.RemoteID == id
	}
	return p.Name == node
}

// checkNodeID returns why an id cannot be a node's.
func checkNodeID(s string) error {
	if s == "" || len(s) > maxNodeID {
		return fmt.Errorf("the id has %d bytes; 1 to %d are allowed", len(s), maxNodeID)
	}
	return printable.Check(s)
}

// ControllerUnpublishVolume takes a node's lease away and fences the node: it answers when nothing that the node has sent, or will
// send, can be written to the volume any more, whether the node is alive or not. Until then it fails with DEADLINE_EXCEEDED, and
// the volume must not be given to another node. Without a node it does so for all that have the volume.
func (c *Controller) ControllerUnpublishVolume(ctx context.Context, req *csi.ControllerUnpublishVolumeRequest) (*csi.ControllerUnpublishVolumeResponse, error) {
	done := new(csi.ControllerUnpublishVolumeResponse)
	id, vol, end, err := c.reserve(ctx, req.GetVolumeId())
	if status.Code(err) == codes.NotFound {
		return done, nil // with the volume its leases have gone
	} else if err != nil {
		return nil, err
	}
	defer end()
	nodes := []string{req.GetNodeId()}
	if req.GetNodeId() == "" {
		nodes = nil
		for _, l := range vol.Allow {
			nodes = append(nodes, l.Peer)
		}
	}
	for _, node := range nodes {
		if checkNodeID(node) != nil {
			continue // nobody can have got a lease by that
		}
		q := api.VolumeUnpublish{Peer: node, TimeoutSeconds: patience(ctx).Seconds()}
		_, err := c.daemon.UnpublishVolume(ctx, id.peer(), id.name, q)
		switch {
		case err == nil || c.isGone(ctx, id, node, err):
		case hasCode(err, api.CodeNotFound):
			// NOT_FOUND would say that there is nothing left to do.
			return nil, refused("node %s has volume %s and is not fenced: %v", node, id, err)
		default:
			return nil, statusOf("fence node "+node+" from volume "+id.String(), err)
		}
	}
	return done, nil
}

// isGone reports whether a node could not be fenced because the volume is gone, or because the storage host does not know the
// node and has no lease of it: then nothing of the node can be written.
func (c *Controller) isGone(ctx context.Context, id volumeID, node string, err error) bool {
	if !hasCode(err, api.CodeNotFound) {
		return false
	}
	vol, err := c.lookup(ctx, id.host, id.pool, id.name)
	if err != nil {
		return status.Code(err) == codes.NotFound
	}
	return !slices.ContainsFunc(vol.Allow, func(l api.PeerLease) bool { return l.Peer == node })
}

// patience is how long a storage host may take to fence a node: so that its answer comes before the caller has gone.
func patience(ctx context.Context) time.Duration {
	if at, ok := ctx.Deadline(); ok {
		if left := time.Until(at) * 9 / 10; left < fenceTime {
			return max(left, time.Millisecond)
		}
	}
	return fenceTime
}
