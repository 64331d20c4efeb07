package daemon

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/rate"
)

// What one principal may have of the control socket. Each has a gate of its own, so
// that none can keep another one out.
const (
	// rootConns and rootRequests are of root and of each privileged ULP.
	rootConns    = 256
	rootRequests = 64
	// ulpConns of other ULPs; each costs two goroutines and some 20 KiB.
	ulpConns = 32
	// ulpRequests under way at a time: an attachment that waits for its peer is one.
	ulpRequests = 8
	// strangerConns of all who are nobody here, while they are told so.
	strangerConns = 8
	// ulpWait is how long a request of a ULP waits for one of its others to end.
	ulpWait = 5 * time.Second

	// requestEvery and requestBurst pace the requests of a ULP. One that changes
	// something counts as changeCost: it may be written to disk.
	requestEvery = 20 * time.Millisecond
	requestBurst = 100
	changeCost   = 5
	// dialEvery and dialBurst pace what makes streams to a peer, which takes those who
	// make too many for attackers and blocks this host.
	dialEvery = time.Second
	dialBurst = 8
)

// gate bounds what one principal has of the control socket.
type gate struct {
	maxConns int
	wait     time.Duration // for a slot; 0: as long as the client does
	slots    chan struct{} // of requests under way
	requests *rate.Pacer   // nil: as many as it likes
	dials    *rate.Pacer

	mu      sync.Mutex
	conns   int
	refused uint64 // connections and requests
}

func newGate(conns, requests int) *gate {
	return &gate{maxConns: conns, slots: make(chan struct{}, requests)}
}

func newULPGate(privileged bool) *gate {
	if privileged {
		return newGate(rootConns, rootRequests)
	}
	g := newGate(ulpConns, ulpRequests)
	g.wait, g.requests, g.dials = ulpWait, rate.NewPacer(requestEvery, requestBurst), rate.NewPacer(dialEvery, dialBurst)
	return g
}

// enter takes a place for a connection, false if there is none.
func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns >= g.maxConns {
		g.refused++
		return false
	}
	g.conns++
	return true
}

func (g *gate) leave() {
	g.mu.Lock()
	g.conns--
	g.mu.Unlock()
}

// use is how many connections there are, and what was refused.
func (g *gate) use() (conns int, refused uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.conns, g.refused
}

// begin waits for the turn of a request. end gives its slot back.
func (g *gate) begin(ctx context.Context, who string, r *http.Request) (end func(), err error) {
	if g.requests != nil {
		cost := 1
		if r.Method != http.MethodGet {
			cost = changeCost
		}
		if err := g.requests.Wait(ctx, cost, g.wait); err != nil {
			return nil, g.busy(who, "it asks for too much at once")
		}
	}
	var late <-chan time.Time
	if g.wait > 0 {
		t := time.NewTimer(g.wait)
		defer t.Stop()
		late = t.C
	}
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-late:
		return nil, g.busy(who, fmt.Sprintf("%d of its requests are under way", cap(g.slots)))
	}
}

func (g *gate) busy(who, why string) error {
	g.mu.Lock()
	g.refused++
	g.mu.Unlock()
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("ULP %s has to wait: %s", who, why), Fix: "try again when some of them have ended"}
}

// userListener tells each connection's user, and closes at once what finds no place
// in its gate: whoever waits in the kernel's queue is never behind one who may not
// come in.
type userListener struct {
	net.Listener
	gateOf func(user) *gate
}

func (l *userListener) Accept() (net.Conn, error) {
	for {
		c, u, err := acceptUser(l.Listener)
		if err != nil {
			return nil, err
		}
		g := l.gateOf(u)
		if !g.enter() {
			c.Close()
			continue
		}
		return &userConn{Conn: c, user: u, leave: sync.OnceFunc(g.leave)}, nil
	}
}

// userConn is a connection of a user who is known.
type userConn struct {
	net.Conn
	user  user
	leave func()
}

func (c *userConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
