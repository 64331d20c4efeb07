package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// turns let few at a time have a peer's ping service, and each consumer once: it
// serves this host as one.
type turns struct {
	mu    sync.Mutex
	peers map[string]*turn
}

type turn struct {
	slots chan struct{}
	held  map[*consumer]bool
	users int
}

// maxPings of ULPs at one peer at a time. The peer serves probe.MaxClientsPeer.
const maxPings = 2

// maxPing is how long a ULP's ping may take, so that others have their turn.
const maxPing = time.Minute

// errPingOver ends a ping that takes longer.
var errPingOver = &api.Error{Code: api.CodeTimeout, Message: fmt.Sprintf("a ULP's ping ends after %v: others have their turn", maxPing), Fix: "ask for fewer round trips, or a shorter interval"}

// pingTurn waits for the turn of a ping, which ends with the context.
func (d *Daemon) pingTurn(ctx context.Context, who caller, peer string) (context.Context, func(), error) {
	release, err := d.local.pings.take(ctx, peer, who)
	if err != nil || who.all {
		return ctx, release, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, maxPing, errPingOver)
	return ctx, func() {
		cancel()
		release()
	}, nil
}

// take waits for the turn of a consumer at a peer.
func (t *turns) take(ctx context.Context, peer string, who caller) (release func(), err error) {
	if who.all || !checks.On(checks.LocalShare) {
		return func() {}, nil
	}
	t.mu.Lock()
	if t.peers == nil {
		t.peers = map[string]*turn{}
	}
	p := t.peers[peer]
	if p == nil {
		p = &turn{slots: make(chan struct{}, maxPings), held: map[*consumer]bool{}}
		t.peers[peer] = p
	}
	if p.held[who.consumer] {
		t.mu.Unlock()
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("ULP %s is already pinging %s", who.name, peer), Fix: "wait until that has ended"}
	}
	p.held[who.consumer] = true
	p.users++
	t.mu.Unlock()
	leave := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(p.held, who.consumer)
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
