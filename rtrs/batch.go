package rtrs

import (
	"sync"
	"sync/atomic"
)

// batchHooks are called after each batch of completions.
type batchHooks struct {
	mu    sync.Mutex // guards the fields below it
	hooks atomic.Pointer[[]*batchHook]
}

type batchHook struct {
	f       func()
	running sync.RWMutex // read-locked during f
	gone    bool
}

// OnBatchEnd registers f to be called after each batch of completions, on the goroutine
// that made them. f must not block. After cancel has returned, f is not called any more;
// cancel must not be called from f.
func (cl *Client) OnBatchEnd(f func()) (cancel func()) {
	b := &cl.batch
	h := &batchHook{f: f}
	b.change(func(hs []*batchHook) []*batchHook { return append(hs, h) })
	return func() {
		b.change(func(hs []*batchHook) []*batchHook {
			out := hs[:0]
			for _, x := range hs {
				if x != h {
					out = append(out, x)
				}
			}
			return out
		})
		h.running.Lock()
		h.gone = true
		h.running.Unlock()
	}
}

func (b *batchHooks) change(f func([]*batchHook) []*batchHook) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var hs []*batchHook
	if old := b.hooks.Load(); old != nil {
		hs = append(hs, *old...)
	}
	hs = f(hs)
	b.hooks.Store(&hs)
}

// EndBatch calls the functions registered with OnBatchEnd. It is for callers that end the
// I/O of others outside a completion.
func (cl *Client) EndBatch() {
	hs := cl.batch.hooks.Load()
	if hs == nil {
		return
	}
	for _, h := range *hs {
		h.running.RLock()
		if !h.gone {
			h.f()
		}
		h.running.RUnlock()
	}
}
