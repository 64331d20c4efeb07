package volumes

import (
	"context"

	"github.com/ironwarp/ironwarp/daemon/config"
)

type managerKey struct{}

// Managing returns a context for the requests of somebody who manages those pools for which may is true. What is in another pool when a request
// gets to it, which may be later than it was asked for, does not exist for it.
func Managing(ctx context.Context, may func(config.Pool) bool) context.Context {
	return context.WithValue(ctx, managerKey{}, may)
}

// manages reports whether a request may do something to a volume, or make one.
func (x *Volumes) manages(ctx context.Context, r *record) bool {
	may, ok := ctx.Value(managerKey{}).(func(config.Pool) bool)
	if !ok {
		return true
	}
	x.mu.Lock()
	p := x.pools[r.Pool]
	x.mu.Unlock()
	return p != nil && may(p.config())
}
