package driver

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// twice are two controllers at once, as while the lease of a leader is lost and the one before it works on. Neither knows of the other's
// calls: what they have in common are the daemons.
type twice struct {
	*testing.T
	store *host
	pool  string // its folder
	by    [2]caller
}

func newTwice(t *testing.T) *twice {
	t.Helper()
	c := &twice{T: t, pool: t.TempDir()}
	store, nodes := newStore(t, "driver: file, path: '"+c.pool+"'", "node", "node2")
	c.store = store
	for i := range c.by {
		c.by[i] = call(t, nodes[0].plugin(t, shortDir(t), true, false))
	}
	return c
}

// atOnce calls both controllers, each with its number, and returns the codes of their answers.
func (c *twice) atOnce(f func(ctx context.Context, n int, by caller) error) (got [2]codes.Code) {
	c.Helper()
	start := make(chan struct{})
	var both sync.WaitGroup
	for n, by := range c.by {
		both.Go(func() {
			<-start
			got[n] = status.Code(f(c.Context(), n, by))
		})
	}
	close(start)
	both.Wait()
	return got
}

func (c *twice) create(ctx context.Context, by caller, name string) (id string, err error) {
	v, err := by.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: name, VolumeCapabilities: []*csi.VolumeCapability{capability(true, oneNode)}, CapacityRange: &csi.CapacityRange{RequiredBytes: mega}})
	return v.GetVolume().GetVolumeId(), err
}

func (c *twice) publish(ctx context.Context, by caller, id, node string, mode csi.VolumeCapability_AccessMode_Mode) error {
	_, err := by.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capability(true, mode)})
	return err
}

// volumes are those that the storage host has, by name.
func (c *twice) volumes() map[string]api.Volume {
	c.Helper()
	list, err := c.store.api.Volumes(c.Context(), "")
	if err != nil {
		c.Fatal(err)
	}
	all := map[string]api.Volume{}
	for _, v := range list {
		all[v.Name] = v
	}
	return all
}

// files are how many the pool has of volumes, whole or half.
func (c *twice) files() (n int) {
	c.Helper()
	list, err := os.ReadDir(c.pool)
	if err != nil {
		c.Fatal(err)
	}
	for _, e := range list {
		if e.Name() != ".ironwarp-pool" { // by which it is known
			n++
		}
	}
	return n
}

// atOnceRounds is how often two calls are made at once.
const atOnceRounds = 12

// One volume comes of two calls for it at once. Whoever does not get it is told to come again, and gets the same one then.
func TestTwoControllersMakeOneVolume(t *testing.T) {
	c := newTwice(t)
	for i := range atOnceRounds {
		name := fmt.Sprintf("vol%d", i)
		var ids [2]string
		got := c.atOnce(func(ctx context.Context, n int, by caller) (err error) {
			ids[n], err = c.create(ctx, by, name)
			return err
		})
		for n, code := range got {
			if code != codes.OK && code != codes.Aborted {
				t.Errorf("%s: controller %d answers %v", name, n, code)
			}
			var err error
			if code != codes.OK {
				if ids[n], err = c.create(t.Context(), c.by[n], name); err != nil {
					t.Errorf("%s once more: %v", name, err)
				}
			}
		}
		if ids[0] != ids[1] || ids[0] == "" {
			t.Errorf("%s: ids %q", name, ids)
		}
	}
	if n, files := len(c.volumes()), c.files(); n != atOnceRounds || files != atOnceRounds {
		t.Errorf("the storage host has %d volumes in %d files; want: %d", n, files, atOnceRounds)
	}
}

// Of two nodes that are to get a volume for one node at once, exactly one gets it, and no lease is left of the other.
func TestTwoControllersGiveAVolumeToOneNode(t *testing.T) {
	c := newTwice(t)
	nodes := [2]string{"node", "node2"}
	for _, x := range []struct {
		mode csi.VolumeCapability_AccessMode_Mode
		both bool
	}{{oneNode, false}, {onePod, false}, {readers, true}} {
		id, err := c.create(t.Context(), c.by[0], "vol-"+strings.ToLower(x.mode.String()))
		if err != nil {
			t.Fatal(err)
		}
		v, err := parseID(id)
		if err != nil {
			t.Fatal(err)
		}
		for range atOnceRounds {
			got := c.atOnce(func(ctx context.Context, n int, by caller) error { return c.publish(ctx, by, id, nodes[n], x.mode) })
			var want []string
			for n, code := range got {
				switch code {
				case codes.OK:
					want = append(want, nodes[n])
				case codes.FailedPrecondition, codes.Aborted:
				default:
					t.Errorf("%v: %s gets %v", x.mode, nodes[n], code)
				}
			}
			if len(want) != 1 && !x.both || len(want) != 2 && x.both {
				t.Errorf("%v: the volume is given to %v", x.mode, want)
			}
			var has []string
			for _, l := range c.volumes()[v.name].Allow {
				has = append(has, l.Peer)
			}
			if fmt.Sprint(has) != fmt.Sprint(want) {
				t.Errorf("%v: %v were answered that they have the volume, and %v have a lease", x.mode, want, has)
			}
			if _, err := c.by[1].ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A volume that one controller removes while the other gives it to a node is there, whole and with the node's lease, or it is gone: with
// its file, its export and its leases, and so it is no error to remove it again, or to make it anew.
func TestVolumeIsRemovedBesideAPublish(t *testing.T) {
	c := newTwice(t)
	for i := range atOnceRounds {
		name := fmt.Sprintf("vol%d", i)
		id, err := c.create(t.Context(), c.by[0], name)
		if err != nil {
			t.Fatal(err)
		}
		remove := func(ctx context.Context, by caller) error {
			_, err := by.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
			return err
		}
		// Either comes first in half of the rounds, by what it has to ask before.
		got := c.atOnce(func(ctx context.Context, n int, by caller) error {
			if n == i%2 {
				return remove(ctx, by)
			}
			return c.publish(ctx, by, id, "node2", oneNode)
		})
		removed, published := got[i%2], got[1-i%2]
		exports, err := c.store.api.Exports(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		exported := 0
		for _, e := range exports {
			if e.Name == name {
				exported++
			}
		}
		v, is := c.volumes()[name]
		switch {
		case removed == codes.OK && (published == codes.NotFound || published == codes.FailedPrecondition || published == codes.Aborted):
			if is || exported > 0 || c.files() > 0 {
				t.Errorf("it was removed, and there are %+v, %d exports and %d files", v, exported, c.files())
			}
		case published == codes.OK && (removed == codes.FailedPrecondition || removed == codes.Aborted):
			if !is || v.Problem != nil || exported != 1 || c.files() != 1 || len(v.Allow) != 1 || v.Allow[0].Peer != "node2" || v.Allow[0].Leaving {
				t.Errorf("it was published, and there are %+v, %d exports and %d files", v, exported, c.files())
			}
		default:
			t.Errorf("the removal is answered with %v, and the publication with %v", removed, published)
		}
		// Once more, one after the other.
		if again, err := c.create(t.Context(), c.by[1], name); err != nil || again != id {
			t.Errorf("made once more: %s, %v", again, err)
		}
		if v := c.volumes()[name]; removed == codes.OK && len(v.Allow) > 0 {
			t.Errorf("a new volume has leases: %+v", v.Allow)
		}
		if _, err := c.by[0].ControllerUnpublishVolume(t.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: id}); err != nil {
			t.Fatal(err)
		}
		for _, by := range c.by {
			if err := remove(t.Context(), by); err != nil {
				t.Error(err)
			}
		}
		if v, is := c.volumes()[name]; is || c.files() > 0 {
			t.Errorf("it stays: %+v, %d files", v, c.files())
		}
	}
}
