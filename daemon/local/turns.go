package local

import (
	"context"
	"fmt"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// Turns let few ULPs at a time use a peer's ping service, and each only once, since it serves
// this host as one client. The zero value is ready.
type Turns struct {
	mu    sync.Mutex // guards the fields below it
	peers map[string]*turn
}

// turn is what ULPs have of one peer; it is guarded by Turns.mu.
type turn struct {
	slots chan struct{}
	held  map[any]bool
	users int
}

// maxPings of ULPs at one peer at a time. The peer serves probe.MaxClientsPeer.
const maxPings = 2

func (t *Turns) takeTurn(ctx context.Context, peer string, who any, name string) (release func(), err error) {
	t.mu.Lock()
	if t.peers == nil {
		t.peers = map[string]*turn{}
	}
	p := t.peers[peer]
	if p == nil {
		p = &turn{slots: make(chan struct{}, maxPings), held: map[any]bool{}}
		t.peers[peer] = p
	}
	if p.held[who] {
		t.mu.Unlock()
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("ULP %s is already pinging %s", name, peer), Fix: "wait until that has ended"}
	}
	p.held[who] = true
	p.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(p.held, who)
		if p.users--; p.users == 0 {
			delete(t.peers, peer)
		}
	}
	select {
	case p.slots <- struct{}{}:
		return func() {
			<-p.slots
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
