package volumes

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// TestLeaseIsOfWhomANameStandsForNow: a request waits for a volume, and a reload gives its peer's name to another host meanwhile. That one is
// told that it may attach the volume, and may; the one before may not.
func TestLeaseIsOfWhomANameStandsForNow(t *testing.T) {
	state, dir := t.TempDir(), poolDir(t)
	synctest.Test(t, func(t *testing.T) {
		x, h := newVolumes(t, state, dir, nil)
		if _, err := x.Create(t.Context(), create("data", 512)); err != nil {
			t.Fatal(err)
		}
		unlock, err := x.lock(t.Context(), "data")
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan error, 1)
		go func() {
			_, err := x.Publish(t.Context(), "data", api.VolumePublish{Peer: "node"})
			answer <- err
		}()
		synctest.Wait()
		h.identities = map[string]string{"node": "192.0.2.12"}
		unlock()
		if err := <-answer; err != nil {
			t.Fatal(err)
		}
		if e, _ := x.Export("data"); !slices.Equal(e.Allow, []string{"id:192.0.2.12"}) {
			t.Errorf("%v may attach it", e.Allow)
		}
	})
}

// TestRequestThatWaitsTouchesNothingOfAnotherPool: a manager's request waits for a volume's name, and when it gets there another manager's
// volume has that name: it does not exist for the request, whatever that is. Nor does a pool that is no longer the manager's.
func TestRequestThatWaitsTouchesNothingOfAnotherPool(t *testing.T) {
	for name, ask := range map[string]func(x *Volumes, ctx context.Context) error{
		"rm": func(x *Volumes, ctx context.Context) error { return x.Remove(ctx, "data") },
		"expand": func(x *Volumes, ctx context.Context) error {
			_, err := x.Expand(ctx, "data", api.VolumeExpand{Size: 1 << 20})
			return err
		},
		"qos": func(x *Volumes, ctx context.Context) error {
			_, err := x.SetQoS(ctx, "data", api.QoS{ReadIOPS: 7})
			return err
		},
		"publish": func(x *Volumes, ctx context.Context) error {
			_, err := x.Publish(ctx, "data", api.VolumePublish{Peer: "alpha"})
			return err
		},
		"unpublish": func(x *Volumes, ctx context.Context) error {
			_, err := x.Unpublish(ctx, "data", api.VolumeUnpublish{Peer: "alpha"})
			return err
		},
		"create": func(x *Volumes, ctx context.Context) error { _, err := x.Create(ctx, create("data", 512)); return err },
		"snapshot": func(x *Volumes, ctx context.Context) error {
			_, err := x.Snapshot(ctx, "data", api.VolumeSnapshot{Name: "snap"})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			state, dir := t.TempDir(), poolDir(t)
			synctest.Test(t, func(t *testing.T) {
				x, _ := newVolumes(t, state, dir, nil)
				if _, err := x.Create(t.Context(), create("data", 512)); err != nil {
					t.Fatal(err)
				}
				unlock, err := x.lock(t.Context(), "data")
				if err != nil {
					t.Fatal(err)
				}
				mine := true // as it was when the request was let in
				ctx := Managing(t.Context(), func(config.Pool) bool { return mine })
				answer := make(chan error, 1)
				go func() { answer <- ask(x, ctx) }()
				synctest.Wait()
				mine = false
				unlock()
				says(t, <-answer, api.CodeNotFound)
				r := x.find("data")
				if r == nil || r.State != ready || r.Size != 512 || len(r.Leases) != 0 || r.QoS != (api.QoS{}) || x.find("snap") != nil {
					t.Errorf("%+v", r)
				}
				_, err = x.Show(ctx, "data")
				says(t, err, api.CodeNotFound)
			})
		})
	}
}
