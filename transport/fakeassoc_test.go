package transport

import (
	"net/netip"
	"sync"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// fakeAssoc stands for an association of the kernel: kernelAssoc.
type fakeAssoc struct {
	assoc.Association
	local, peer []netip.AddrPort
	remote      netip.AddrPort // of Remote

	mu       sync.Mutex
	recv     assoc.Receiver
	done     chan struct{}
	aborted  []string
	released int
}

func newFakeAssoc(local, peer []netip.AddrPort) *fakeAssoc {
	return &fakeAssoc{local: local, peer: peer, done: make(chan struct{})}
}

func (a *fakeAssoc) LocalAddrs() []netip.AddrPort { return a.local }
func (a *fakeAssoc) PeerAddrs() []netip.AddrPort  { return a.peer }
func (a *fakeAssoc) Remote() netip.AddrPort       { return a.remote }
func (a *fakeAssoc) Done() <-chan struct{}        { return a.done }
func (a *fakeAssoc) Outq() (int, error)           { return 0, nil }

func (a *fakeAssoc) Err() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.aborted) == 0 {
		return nil
	}
	return &assoc.AbortError{Local: true, Cause: assoc.Cause{Code: assoc.CauseUserAbort, Info: []byte(a.aborted[0])}}
}

func (a *fakeAssoc) Release(n int) {
	a.mu.Lock()
	a.released += n
	a.mu.Unlock()
}

func (a *fakeAssoc) Start(r assoc.Receiver) {
	a.mu.Lock()
	a.recv = r
	over := len(a.aborted) > 0
	a.mu.Unlock()
	r.Event(assoc.Event{Kind: assoc.EventUp})
	if over {
		r.Event(assoc.Event{Kind: assoc.EventDown})
	}
}

func (a *fakeAssoc) Abort(reason string) {
	a.mu.Lock()
	first := len(a.aborted) == 0
	a.aborted = append(a.aborted, reason)
	r := a.recv
	a.mu.Unlock()
	if !first {
		return
	}
	if r != nil {
		r.Event(assoc.Event{Kind: assoc.EventDown, Err: a.Err()})
	}
	close(a.done)
}

// isOver tells whether the association was ended.
func (a *fakeAssoc) isOver() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}
