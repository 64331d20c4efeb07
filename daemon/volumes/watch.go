package volumes

import (
	"context"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/rate"
)

// Watch looks at the pools from time to time, until ctx ends: it opens those that could not be opened, finishes what was left half done, and
// warns when one becomes full.
func (x *Volumes) Watch(ctx context.Context) {
	x.look(ctx)
	for range rate.Ticks(ctx, watchEvery) {
		x.look(ctx)
	}
}

func (x *Volumes) look(ctx context.Context) {
	x.mu.Lock()
	all := make([]*pool, 0, len(x.pools))
	for _, p := range x.pools {
		all = append(all, p)
	}
	x.mu.Unlock()
	for _, p := range all {
		x.lookAt(ctx, p)
	}
}

// lookAt looks at one pool.
func (x *Volumes) lookAt(ctx context.Context, p *pool) {
	ctx, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	name, before := p.config().Name, p.problemText()
	if err := x.open(ctx, p); err != nil {
		if text := err.Error(); text != before && ctx.Err() == nil {
			x.log.Warn("a pool cannot be used", "pool", name, "error", err)
		}
		return
	}
	x.recover(ctx, p)
	u, err := p.driver.usage(ctx)
	if err != nil {
		return // the next look says it
	}
	x.noteUsage(p, u)
}

func (p *pool) problemText() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.problem == nil {
		return ""
	}
	return p.problem.Error()
}

// noteUsage warns of each threshold of a pool's usage when it is crossed.
func (x *Volumes) noteUsage(p *pool, u usage) {
	p.mu.Lock()
	c, was := p.cfg, p.alarm
	p.usage, p.alarm = u, crossed(u.percent(), c.Alarms)
	now := p.alarm
	p.mu.Unlock()
	attrs := []any{"pool", c.Name, "used_percent", int(u.percent()), "bytes", u.size, "free", u.free, "alarm_percent", max(now, was)}
	if u.metadata > 0 {
		attrs = append(attrs, "metadata_percent", int(u.metadata))
	}
	switch {
	case now > was:
		x.log.Warn("a pool becomes full: when it has no room left, writes to its volumes fail", attrs...)
	case now < was:
		x.log.Info("a pool has room again", attrs...)
	}
}

// recover finishes what requests of a pool have left half done that have failed, or whose daemon was killed.
func (x *Volumes) recover(ctx context.Context, p *pool) {
	name := p.config().Name
	x.mu.Lock()
	var half []*record
	for _, r := range x.records {
		if r.Pool == name && (r.State != ready || r.Kind == api.KindVolume && !x.checked[r.ID]) {
			half = append(half, r)
		}
	}
	x.mu.Unlock()
	for _, r := range half {
		if err := x.recoverOne(ctx, p, r.Name); err != nil && ctx.Err() == nil {
			x.log.Warn("what was begun with a volume cannot be finished now; that is tried again", "volume", r.Name, "state", r.State, "error", err)
		}
	}
}

func (x *Volumes) recoverOne(ctx context.Context, p *pool, name string) error {
	if x.tryLock(name) != nil {
		return nil // a request works on it
	}
	defer x.unlockOne(name)
	r := x.find(name)
	switch {
	case r == nil:
		return nil
	case r.PoolID != p.poolID():
		return &api.Error{Code: api.CodeUnavailable, Message: "its pool was another one of the same name", Fix: "have the pool's storage where it was"}
	case r.State == creating:
		x.log.Info("a volume that was being made is taken away: whoever asked for it has had no answer", "volume", name)
		return x.undo(ctx, p, r)
	case r.State == removing:
		x.log.Info("the removal of a volume is finished", "volume", name)
		return x.finishRemoval(ctx, p, r)
	}
	m, err := p.driver.measure(ctx, r.storage())
	if err != nil {
		return err
	}
	if m.size < r.Size {
		if err := p.driver.expand(ctx, r.storage(), r.Size); err != nil {
			return err
		}
		x.host.Grown(name)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.checked[r.ID] = true
	return nil
}

func (x *Volumes) unlockOne(name string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	close(x.busy[name])
	delete(x.busy, name)
}
