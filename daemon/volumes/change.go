package volumes

import (
	"context"
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// locked is a volume that a request works on.
func (x *Volumes) locked(ctx context.Context, name string, f func(ctx context.Context, r *record) error) error {
	unlock, err := x.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := x.findReady(name)
	if err == nil && !x.manages(ctx, r) {
		err = errUnknownVolume(name)
	}
	if err != nil {
		return err
	}
	return f(ctx, r)
}

// Remove removes a volume or snapshot for good. It fails with an *api.Error.
func (x *Volumes) Remove(ctx context.Context, name string) error {
	unlock, err := x.lock(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	r := x.find(name)
	if r != nil && !x.manages(ctx, r) {
		return errUnknownVolume(name)
	}
	if r == nil || r.State == creating {
		_, err := x.findReady(name)
		return err
	}
	ctx, cancel := x.finishing()
	defer cancel()
	if len(r.Leases) > 0 {
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("volume %s is published to %s", name, r.Leases[0].Peer), Fix: fmt.Sprintf("`ironwarp volume unpublish %s %s` comes first", name, r.Leases[0].Peer)}
	}
	p, err := x.openPool(ctx, r.Pool)
	if err != nil {
		return err
	}
	gone := r.clone()
	gone.State = removing
	if err := x.storeRemoval(gone); err != nil {
		return err
	}
	x.cfg.step("removing")
	if err := x.finishRemoval(ctx, p, gone); err != nil {
		return err
	}
	x.log.Info("a volume was removed", "volume", name, "pool", r.Pool)
	return nil
}

// storeRemoval records that a volume is being removed. Where there is no room for that it is known to this daemon alone, as a removal is what
// makes room: if the daemon is killed before the end of it, the volume is there, or listed as one whose storage is gone, until it is removed again.
func (x *Volumes) storeRemoval(gone *record) error {
	err := x.store(gone)
	if errors.Is(err, &api.Error{Code: api.CodeNoSpace}) {
		x.log.Warn("a volume is removed without a record of that: there is no room for one", "volume", gone.Name, "error", err)
		x.know(gone)
		return nil
	}
	return err
}

func (x *Volumes) finishRemoval(ctx context.Context, p *pool, r *record) error {
	if r.Kind == api.KindVolume {
		x.host.Apply(ctx, r.Name)
		x.host.AwaitClosed()
	}
	if err := p.driver.remove(ctx, r.storage()); err != nil {
		return err
	}
	x.cfg.step("gone")
	return x.forget(r.Name)
}

// Expand makes a volume larger, see api.VolumeExpand. It fails with an *api.Error.
func (x *Volumes) Expand(ctx context.Context, name string, q api.VolumeExpand) (v api.Volume, err error) {
	if q.Size <= 0 || q.Size%sectorSize != 0 {
		return v, errSize(q.Size)
	}
	err = x.locked(ctx, name, func(_ context.Context, r *record) error {
		ctx, cancel := x.finishing()
		defer cancel()
		if r.Kind != api.KindVolume {
			return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s is a snapshot, and keeps its size", name)}
		}
		p, err := x.openPool(ctx, r.Pool)
		if err != nil {
			return err
		}
		if q.Size > r.Size {
			next := r.clone()
			next.Size = q.Size
			if err := checkRoom(ctx, p, next); err != nil {
				return err
			}
			if err := x.store(next); err != nil {
				return err
			}
			x.cfg.step("size recorded")
			if err := p.driver.expand(ctx, r.storage(), q.Size); err != nil {
				if serr := x.store(r); serr != nil {
					x.log.Warn("a volume that could not be expanded will be at the next start", "volume", name, "error", serr)
					x.know(r) // so that who asks again is not told that it has been
				}
				return err
			}
			x.cfg.step("expanded")
			x.log.Info("a volume was expanded", "volume", name, "from", r.Size, "bytes", q.Size)
		}
		x.host.Grown(name)
		v, err = x.Show(ctx, name)
		return err
	})
	return v, err
}

// SetQoS changes the limits of a volume's I/O. It fails with an *api.Error.
func (x *Volumes) SetQoS(ctx context.Context, name string, q api.QoS) (v api.Volume, err error) {
	if _, err := config.LimitsOf(q); err != nil {
		return v, err
	}
	err = x.locked(ctx, name, func(ctx context.Context, r *record) error {
		if r.Kind != api.KindVolume {
			return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s is a snapshot, and has no I/O", name)}
		}
		next := r.clone()
		next.QoS = q
		if err := x.store(next); err != nil {
			return err
		}
		x.host.Apply(ctx, name)
		v, err = x.Show(ctx, name)
		return err
	})
	return v, err
}
