package verbs

import (
	"context"
	"sync"

	"github.com/ironwarp/ironwarp/transport"
)

// backlog holds the requests that wait for a Listener's Accept, the oldest first. When
// it is full, the peer with the most gives way to one with fewer, so that nobody keeps
// the others out (RFC 5042 section 6.4.1).
type backlog struct {
	signal chan struct{} // one slot: there is something

	mu    sync.Mutex // guards the fields below it
	most  int        // negative: it is closed
	all   []*ConnRequest
	peers map[transport.Identity]int
}

func newBacklog(most int) *backlog {
	return &backlog{signal: make(chan struct{}, 1), most: most, peers: make(map[transport.Identity]int)}
}

// put enters r. It returns the request for which there is no room: r, one that gives
// way to it, or nil.
func (b *backlog) put(r *ConnRequest) (refused *ConnRequest) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.most < 0:
		return r
	case len(b.all) < b.most:
	default:
		if refused = b.giveWayLocked(r.Peer()); refused == nil {
			return r
		}
	}
	b.all = append(b.all, r)
	b.peers[r.Peer()]++
	b.tell()
	return refused
}

// giveWayLocked removes the youngest request of the peer with the most, if to has fewer.
func (b *backlog) giveWayLocked(to transport.Identity) *ConnRequest {
	most, from := b.peers[to], to
	for id, n := range b.peers {
		if n > most {
			most, from = n, id
		}
	}
	if keepsOut(from, to) {
		return nil
	}
	for i := len(b.all) - 1; ; i-- {
		if b.all[i].Peer() == from {
			return b.removeLocked(i)
		}
	}
}

func (b *backlog) removeLocked(i int) *ConnRequest {
	r := b.all[i]
	copy(b.all[i:], b.all[i+1:])
	b.all[len(b.all)-1] = nil
	b.all = b.all[:len(b.all)-1]
	if b.peers[r.Peer()]--; b.peers[r.Peer()] == 0 {
		delete(b.peers, r.Peer())
	}
	return r
}

// close refuses further requests and returns those that wait.
func (b *backlog) close() []*ConnRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	all := b.all
	b.most, b.all = -1, nil
	clear(b.peers)
	return all
}

func (b *backlog) tell() {
	select {
	case b.signal <- struct{}{}:
	default:
	}
}

// pop takes the oldest request, nil if there is none.
func (b *backlog) pop() *ConnRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.all) == 0 {
		return nil
	}
	r := b.removeLocked(0)
	if len(b.all) > 0 {
		b.tell() // for another waiting Accept
	}
	return r
}

// take waits for a request until ctx or closed ends.
func (b *backlog) take(ctx context.Context, closed <-chan struct{}) (*ConnRequest, error) {
	for {
		if r := b.pop(); r != nil {
			return r, nil
		}
		select {
		case <-b.signal:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-closed:
			return nil, ErrClosed
		}
	}
}
