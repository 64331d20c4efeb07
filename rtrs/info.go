package rtrs

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// ConnInfo describes one connection of a path.
type ConnInfo struct {
	ID          uint64 // the QP's
	Flow        transport.Flow
	Peer        transport.Identity
	Established time.Time
	Paused      bool // its security association is away
}

func connInfo(qp *verbs.QP) ConnInfo {
	return ConnInfo{ID: qp.ID(), Flow: qp.Flow(), Peer: qp.Peer(), Established: qp.Established(), Paused: qp.Paused()}
}

// ClientInfo is a client's state for people.
type ClientInfo struct {
	Name        string
	State       State
	Since       time.Time      // in this state
	LastError   error          // why the path was lost or does not come up; nil while connected
	Remote      netip.AddrPort // of the path in use or tried last
	Incarnation uint64         // attempts to connect the path
	Reconnects  uint64         // that succeeded, the first not counted
	QueueDepth  int
	MaxIO       int
	InFlight    int // permits in use
	Conns       []ConnInfo
	Stats       Stats
}

// Info returns the client's state.
func (cl *Client) Info() ClientInfo {
	i := ClientInfo{Name: cl.cfg.Name, QueueDepth: cl.depth, MaxIO: cl.maxIO, InFlight: cl.pool.inUse(), Stats: cl.counters.snapshot()}
	cl.mu.Lock()
	defer cl.mu.Unlock()
	i.State, i.Since, i.LastError, i.Remote = cl.state, cl.since, cl.lastErr, cl.remote
	i.Incarnation, i.Reconnects = cl.inc, cl.reconnects
	if cl.current != nil {
		for _, c := range cl.current.conns {
			i.Conns = append(i.Conns, connInfo(c.qp))
		}
	}
	return i
}

// Stats returns the counts of completed I/O.
func (cl *Client) Stats() Stats { return cl.counters.snapshot() }

func (p *permitPool) inUse() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total - len(p.free)
}

// batchHooks are called after each batch of completions.
type batchHooks struct {
	mu    sync.Mutex
	hooks atomic.Pointer[[]*batchHook]
}

type batchHook struct {
	f       func()
	running sync.RWMutex // read-locked during f
	gone    bool
}

// OnBatchEnd registers f to be called after each batch of completions, on the
// goroutine that made them. f does not block. After cancel has returned f is
// not called any more; cancel must not be called from f.
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

func (cl *Client) batchEnd() {
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
