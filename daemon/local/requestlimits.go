package local

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

// Limits of what one principal may use of the control socket. Each has a gate of its own, so
// that none can keep another out.
const (
	// rootConns and rootRequests are of root and of each privileged ULP.
	rootConns    = 256
	rootRequests = 64
	// ulpConns of other ULPs; each costs two goroutines and some 20 KiB.
	ulpConns = 32
	// ulpRequests under way at a time: an attachment that waits for its peer is one.
	ulpRequests = 8
	// unknownUserConns of all users without an account, who are refused.
	unknownUserConns = 8
	// ulpWait is how long a request of a ULP waits for one of its others to end.
	ulpWait = 5 * time.Second

	// requestEvery and requestBurst pace the requests of a ULP. One that changes
	// something counts as changeCost: it may be written to disk.
	requestEvery = 20 * time.Millisecond
	requestBurst = 100
	changeCost   = 5
	// dialEvery and dialBurst pace requests that make streams to a peer, which would take a
	// host that makes too many for an attacker and block it.
	dialEvery = time.Second
	dialBurst = 8
)

// Gate bounds what one principal uses of the control socket.
type Gate struct {
	maxConns int
	wait     time.Duration // for a slot; 0: as long as the client does
	slots    chan struct{} // of requests under way
	requests *rate.Pacer   // nil: as many as it likes
	dials    *rate.Pacer

	mu      sync.Mutex // guards the fields below it
	conns   int
	refused uint64 // connections and requests
}

func newGate(conns, requests int) *Gate {
	return &Gate{maxConns: conns, slots: make(chan struct{}, requests)}
}

// RootGate returns the gate of root.
func RootGate() *Gate { return newGate(rootConns, rootRequests) }

// UnknownUsersGate returns the gate of all users without an account.
func UnknownUsersGate() *Gate { return newGate(unknownUserConns, 1) }

// ULPGate returns the gate of a ULP.
func ULPGate(privileged bool) *Gate {
	if privileged {
		return RootGate()
	}
	g := newGate(ulpConns, ulpRequests)
	g.wait, g.requests, g.dials = ulpWait, rate.NewPacer(requestEvery, requestBurst), rate.NewPacer(dialEvery, dialBurst)
	return g
}

// addConn counts a connection. It reports false if there is no room for it.
func (g *Gate) addConn() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.conns >= g.maxConns {
		g.refused++
		return false
	}
	g.conns++
	return true
}

func (g *Gate) removeConn() {
	g.mu.Lock()
	g.conns--
	g.mu.Unlock()
}

// Use is the number of connections, of requests under way, and of both that were refused.
func (g *Gate) Use() (conns, requests int, refused uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.conns, len(g.slots), g.refused
}

// AwaitDial waits until the principal may make streams again: if it made too many, the peer
// would block this host. It fails if that takes longer than limit, and with ctx's error.
func (g *Gate) AwaitDial(ctx context.Context, limit time.Duration) error {
	if !g.boundsDials() {
		return nil
	}
	return g.dials.Wait(ctx, 1, limit)
}

// Begin waits for the turn of a request of the ULP who. end gives its slot back. It fails
// with an *api.Error of CodeUnavailable where the ULP asks for too much, and with ctx's
// error.
func (g *Gate) Begin(ctx context.Context, who string, r *http.Request) (end func(), err error) {
	if g.requests != nil {
		cost := 1
		if r.Method != http.MethodGet {
			cost = changeCost
		}
		if err := g.requests.Wait(ctx, cost, g.wait); err != nil {
			return nil, g.errBusy(who, "it asks for too much at once")
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
		return nil, g.errBusy(who, fmt.Sprintf("%d of its requests are under way", cap(g.slots)))
	}
}

func (g *Gate) errBusy(who, why string) error {
	g.mu.Lock()
	g.refused++
	g.mu.Unlock()
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("ULP %s has to wait: %s", who, why), Fix: "try again when some of them have ended"}
}

// Listener accepts connections with their users, and closes at once those for which their
// gate has no room, so that nobody waits in the kernel's queue behind a connection that may
// not come in.
type Listener struct {
	net.Listener
	GateOf func(User) *Gate
}

// Accept returns a *Conn. It fails as the Listener below does.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, u, err := acceptUser(l.Listener)
		if err != nil {
			return nil, err
		}
		g := l.GateOf(u)
		if !g.addConn() {
			c.Close()
			continue
		}
		return &Conn{Conn: c, User: u, leave: sync.OnceFunc(g.removeConn)}, nil
	}
}

// Conn is a connection with its user.
type Conn struct {
	net.Conn
	User  User
	leave func()
}

// Detach gives up the connection's place without closing it, and returns what is below it.
func (c *Conn) Detach() *net.UnixConn {
	c.leave()
	u, _ := c.Conn.(*net.UnixConn)
	return u
}

// Close closes the connection and gives up its place. It fails as that below does.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.leave()
	return err
}
