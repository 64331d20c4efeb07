package volumes

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// mayShare reports whether two peers may have a volume at once.
func mayShare(a, b lease, writers string) bool {
	switch {
	case a.Leaving || b.Leaving:
		return a.ReadOnly && b.ReadOnly
	case a.ReadOnly && b.ReadOnly, a.Shared && b.Shared:
		return true
	}
	return config.ParseWriters(writers) != config.OneWriter
}

// Publish lets a peer attach a volume, see api.VolumePublish. It fails with an *api.Error.
func (x *Volumes) Publish(ctx context.Context, name string, q api.VolumePublish) (v api.VolumePublished, err error) {
	err = x.locked(ctx, name, func(ctx context.Context, r *record) error {
		peer, allow, ok := x.host.Peer(q.Peer) // now: whom a name stands for may have changed while this has waited
		if !ok {
			return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("no peer is called %q, or has that identity", q.Peer), Fix: "`ironwarp peer ls` lists the peers"}
		}
		if r.Kind != api.KindVolume {
			return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s is a snapshot, which is not attached", name), Fix: fmt.Sprintf("`ironwarp volume clone %s NAME` makes a volume of it", name)}
		}
		l := lease{Peer: peer, Allow: allow, ReadOnly: q.ReadOnly, Shared: q.Shared}
		e, ok := x.host.Describe(name)
		if !ok || e.UUID == "" {
			x.host.Await(name)
			if e, ok = x.host.Describe(name); !ok || e.UUID == "" {
				return cmp.Or(e.Problem, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the storage of volume %s is not open", name), Fix: "`ironwarp volume show " + name + "` says why"})
			}
		}
		l.Generation = e.Generation
		if err := x.grant(r, l); err != nil {
			return err
		}
		x.host.Apply(ctx, name)
		v = api.VolumePublished{Export: name, UUID: r.ID.String(), Size: e.Size, Generation: e.Generation}
		return nil
	})
	return v, err
}

// grant records a lease.
func (x *Volumes) grant(r *record, l lease) error {
	for _, o := range r.Leases {
		switch {
		case o.Allow == l.Allow && !o.Leaving && o.ReadOnly == l.ReadOnly && o.Shared == l.Shared:
			return nil
		case o.Allow == l.Allow && o.Leaving:
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("peer %s is still being fenced from volume %s", o.Peer, r.Name), Fix: fmt.Sprintf("`ironwarp volume unpublish %s %s` waits for the end of it", r.Name, o.Peer)}
		case o.Allow == l.Allow:
			return &api.Error{Code: api.CodeExists, Message: fmt.Sprintf("volume %s is published to peer %s in another mode", r.Name, o.Peer), Fix: "unpublish it first"}
		case o.excludes(l, r.Writers):
			return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("volume %s is published to peer %s", r.Name, o.Peer),
				Fix: fmt.Sprintf("`ironwarp volume unpublish %s %s` fences that one; --shared on both is for file systems that know of each other", r.Name, o.Peer)}
		}
	}
	if len(r.Leases) >= maxLeases {
		return &api.Error{Code: api.CodeNoSpace, Message: fmt.Sprintf("volume %s is published to %d peers, as many as there may be", r.Name, maxLeases)}
	}
	next := r.clone()
	next.Leases = append(next.Leases, l)
	slices.SortFunc(next.Leases, func(a, b lease) int { return cmp.Compare(a.Allow, b.Allow) })
	return x.store(next)
}

// Unpublish fences a peer from a volume, see api.VolumeUnpublish. It fails with an *api.Error, and with CodeNotFound for a peer that is
// not known and has no lease.
func (x *Volumes) Unpublish(ctx context.Context, name string, q api.VolumeUnpublish) (f api.Fenced, err error) {
	err = x.locked(ctx, name, func(ctx context.Context, r *record) error {
		_, allow, known := x.host.Peer(q.Peer)
		i := slices.IndexFunc(r.Leases, func(l lease) bool { return known && l.Allow == allow || l.Allow == q.Peer })
		if i < 0 {
			// No peer is called so any more, or another one is than when it got the lease: of that one the name has nothing to leave.
			i = slices.IndexFunc(r.Leases, func(l lease) bool { return l.Peer == q.Peer })
		}
		switch {
		case i >= 0:
			allow = r.Leases[i].Allow
		case !known:
			return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("volume %s is not published to %q, and no peer is called so", name, q.Peer), Fix: "`ironwarp volume show " + name + "` says to whom it is published"}
		}
		if i >= 0 && !r.Leases[i].Leaving {
			next := r.clone()
			next.Leases[i].Leaving = true
			if err := x.store(next); err != nil {
				return err
			}
			r = next
			x.cfg.step("leaving")
			x.host.Apply(ctx, name) // it opens it no more
		}
		if f, err = x.host.Fence(ctx, name, api.FenceRequest{Peer: allow, TimeoutSeconds: q.TimeoutSeconds}); err != nil {
			return err
		}
		f.Peer = q.Peer
		if i < 0 {
			return nil
		}
		x.cfg.step("fenced")
		next := r.clone()
		next.Leases = slices.Delete(next.Leases, i, i+1)
		return x.store(next)
	})
	return f, err
}
