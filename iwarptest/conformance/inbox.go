package conformance

import (
	"context"
	"sync"

	"github.com/ironwarp/ironwarp/verbs"
)

// inbox keeps the completions that a completion queue's handler gets.
type inbox struct {
	ch chan struct{}

	mu  sync.Mutex // guards the fields below it
	wcs []verbs.WC
}

// Completions implements verbs.CQHandler.
func (i *inbox) Completions(_ *verbs.CQ, wcs []verbs.WC) {
	i.mu.Lock()
	i.wcs = append(i.wcs, wcs...)
	i.mu.Unlock()
	select {
	case i.ch <- struct{}{}:
	default:
	}
}

// Poll takes completions as verbs.CQ.Poll does.
func (i *inbox) Poll(wcs []verbs.WC) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := copy(wcs, i.wcs)
	i.wcs = i.wcs[n:]
	return n
}

// Wait waits until a completion may be there.
func (i *inbox) Wait(ctx context.Context) error {
	select {
	case <-i.ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
