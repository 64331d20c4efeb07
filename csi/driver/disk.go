package driver

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// disks attaches exports by the daemon of this host, which keeps them when this program ends.
type disks struct {
	daemon Disks
	device bool // as block devices of the kernel; without it as NBD sockets, for tests on kernels without nbd
}

// peer finds the storage host of a publish context among this host's peers: by its IKE identity, which is the same everywhere. Where
// several, or none, have that, its name at the controller decides. It fails with FAILED_PRECONDITION where there is none.
func (d disks) peer(ctx context.Context, publish map[string]string) (string, error) {
	peers, err := d.daemon.Peers(ctx)
	if err != nil {
		return "", statusOf("list the peers of this node", err)
	}
	host, identity := publish[contextHost], publish[contextIdentity]
	var same []string
	for _, p := range peers {
		if identity != "" && p.RemoteID == identity {
			same = append(same, p.Name)
		}
	}
	if len(same) == 1 {
		return same[0], nil
	}
	i := slices.IndexFunc(peers, func(p api.Peer) bool { return p.Name == host })
	if i < 0 || len(same) > 1 && !slices.Contains(same, host) {
		return "", refused("this node has no peer of the identity %q, which storage host %q has: add it with `ironwarp peer add`", identity, host)
	}
	return host, nil
}

// find returns an attachment of this host.
func (d disks) find(ctx context.Context, peer, export string) (at api.Attachment, ok bool, err error) {
	list, err := d.daemon.Attachments(ctx)
	if err != nil {
		return at, false, statusOf("list the attached disks", err)
	}
	i := slices.IndexFunc(list, func(a api.Attachment) bool { return a.ULP == "" && a.Peer == peer && a.Export == export })
	if i < 0 {
		return at, false, nil
	}
	return list[i], true, nil
}

// attach attaches an export, if it is not, and returns its device. One that has failed is attached anew: the peer has fenced this
// node from it, and has let it in again.
func (d disks) attach(ctx context.Context, peer, export, name string) (device string, err error) {
	at, ok, err := d.find(ctx, peer, export)
	if err != nil {
		return "", err
	}
	if ok && (at.State == api.AttachFailed || at.State == api.AttachOrphaned) {
		if err := d.daemon.Detach(ctx, peer, export, true); err != nil && !hasCode(err, api.CodeNotFound) {
			return "", statusOf("detach "+at.Name()+", which has failed", err)
		}
		ok = false
	}
	if !ok {
		q := api.AttachRequest{Peer: peer, Export: export}
		if d.device {
			q.Device, q.Name = true, name
		}
		if at, err = d.daemon.Attach(ctx, q, nil); err != nil {
			return "", statusOf("attach "+peer+"/"+export, err)
		}
	}
	if device := d.deviceOf(at); device != "" {
		return device, nil
	}
	return "", status.Errorf(codes.Unavailable, "%s is attached (%s) and has no device: somebody attached it otherwise, or it is not up yet", at.Name(), at.State)
}

func (d disks) deviceOf(at api.Attachment) string {
	if d.device {
		return at.Device
	}
	return at.Socket
}

// detach ends an attachment that nothing uses any more. One that is not there is no error.
func (d disks) detach(ctx context.Context, peer, export string) error {
	at, ok, err := d.find(ctx, peer, export)
	if err != nil || !ok {
		return err
	}
	// Nothing has it mounted. What has failed has nothing to lose, and might not end by itself.
	if err := d.daemon.Detach(ctx, peer, export, at.State == api.AttachFailed); err != nil && !hasCode(err, api.CodeNotFound) {
		return statusOf("detach "+at.Name(), err)
	}
	return nil
}

// grown waits until an attached disk has at least a size, in the kernel too, and returns what it has. It fails with UNAVAILABLE
// where that takes too long.
func (d disks) grown(ctx context.Context, peer, export string, size int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, growTime)
	defer cancel()
	tick := time.NewTicker(growTick)
	defer tick.Stop()
	for {
		at, ok, err := d.find(ctx, peer, export)
		if err != nil {
			return 0, err
		}
		if !ok {
			return 0, refused("%s/%s is not attached to this node", peer, export)
		}
		has := int64(at.Size)
		if d.device {
			if has, err = deviceSize(at.Device); err != nil {
				return 0, status.Errorf(codes.Internal, "size of %s: %v", at.Name(), err)
			}
		}
		if has >= size {
			return has, nil
		}
		select {
		case <-ctx.Done():
			return 0, status.Errorf(codes.Unavailable, "%s has %d bytes, and not %d yet", at.Name(), has, size)
		case <-tick.C:
		}
	}
}

// deviceSize is the size of a block device, in bytes.
func deviceSize(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	n, err := f.Seek(0, 2)
	if err != nil {
		return 0, fmt.Errorf("find the end of %s: %w", path, err)
	}
	return n, nil
}
