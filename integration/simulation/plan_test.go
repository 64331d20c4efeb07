package simulation

import (
	"math/rand/v2"
	"time"

	"github.com/ironwarp/ironwarp/rtrs"
)

// plan is what is drawn of a run before it begins.
type plan struct {
	clients   []clientPlan
	shared    bool // writers
	workers   int
	sectors   int // that are in use
	ops       int // of each client
	think     time.Duration
	conns     int
	depth     int
	policy    rtrs.Policy
	heartbeat rtrs.HeartbeatConfig
	linger    time.Duration
	grace     time.Duration
	patience  time.Duration // of who attaches the disk
	noPath    rtrs.NoPath
	actions   []action
	orders    []action // of the server's administrator
	outages   []outage
}

// clientPlan is what is drawn of a client.
type clientPlan struct {
	delays []time.Duration // of the paths
	sctp   []*lossy        // of these over SCTP, else nil; nil: no path is
	reader bool
	nbd    bool // its programs use the disk by NBD
}

// action is a fault, and for how long it lasts.
type action struct {
	after  time.Duration // the one before
	last   time.Duration
	kind   kind
	client int
	path   int
	draw   uint64
}

// kind is what an action does.
type kind int

const (
	cutPath kind = iota
	holdPath
	pausePath
	refusePath
	cutAll
	isolate
	killServer
	cutPower
	killClient
	slowDisk
	failDisk
	pathOff
	pathAway
	setPolicy
	replaceExport
	detachDisk
	numKinds
)

// What the server's administrator orders. It is drawn apart.
const (
	fencePeer = numKinds + iota
	growDisk
	numOrders = iota
)

var kindNames = [...]string{"path cut", "path swallows", "SA away", "path refuses", "all paths cut", "client isolated", "server killed", "power cut", "client killed",
	"storage slow", "storage fails", "path disconnected", "path removed", "policy", "export replaced", "disk detached",
	"peer fenced", "disk grows"}

// draw draws a plan; orders, who speaks NBD, and noPath have sequences of their own.
func draw(rnd, orders, nbd, noPath *rand.Rand) plan {
	p := plan{shared: rnd.IntN(3) == 0, workers: 1 + rnd.IntN(4), sectors: 1 + rnd.IntN(sectors), ops: 10 + rnd.IntN(20), think: logTime(rnd, time.Millisecond, 2*time.Second),
		conns: 1 + rnd.IntN(2), depth: 2 + rnd.IntN(6), policy: rtrs.Policy(rnd.IntN(4)), heartbeat: rtrs.HeartbeatConfig{Interval: time.Second, Missed: 1 + rnd.IntN(3)},
		linger: logTime(rnd, time.Second, 15*time.Second), grace: logTime(rnd, 5*time.Second, 30*time.Second),
		patience: logTime(rnd, 100*time.Millisecond, 20*time.Second)}
	for i := range 1 + rnd.IntN(3) {
		c := clientPlan{reader: i > 0 && rnd.IntN(3) == 0}
		for range 1 + rnd.IntN(3) {
			c.delays = append(c.delays, logTime(rnd, 20*time.Microsecond, 20*time.Millisecond))
		}
		c.nbd = nbd.IntN(3) == 0
		p.clients = append(p.clients, c)
	}
	// Few kinds of faults in a run, again and again, come together in more ways than all.
	kinds := rnd.Perm(int(numKinds))[:1+rnd.IntN(4)]
	if rnd.IntN(4) == 0 && len(p.clients) > 1 {
		// A writer is away for so long that another comes, writes and leaves.
		p.shared, p.linger, p.grace, kinds = false, time.Second, 5*time.Second, append(kinds[:1], int(isolate))
		for i := range p.clients {
			p.clients[i].reader = false
		}
	}
	p.noPath = rtrs.NoPath{Fail: noPath.IntN(3) == 0, After: logTime(noPath, 10*time.Millisecond, 10*time.Second)}
	slow := false
	if p.noPath.Fail && noPath.IntN(2) == 0 {
		// What has failed without a path is still with slow storage.
		p.noPath.After, kinds, slow = p.noPath.After/10, []int{int(refusePath), int(holdPath)}, true
		for i := range p.clients {
			p.clients[i].delays = p.clients[i].delays[:1]
		}
	}
	for range 2 + rnd.IntN(6) {
		a := action{after: logTime(rnd, time.Millisecond, 3*time.Second), last: logTime(rnd, time.Millisecond, 10*time.Second), kind: kind(kinds[rnd.IntN(len(kinds))]), draw: rnd.Uint64()}
		a.client = rnd.IntN(len(p.clients))
		a.path = rnd.IntN(len(p.clients[a.client].delays))
		p.actions = append(p.actions, a)
	}
	if slow {
		p.actions[0].after, p.actions[0].kind, p.actions[0].last = time.Millisecond, slowDisk, 10*time.Second
	}
	for range orders.IntN(4) {
		p.orders = append(p.orders, action{after: logTime(orders, time.Millisecond, 5*time.Second), kind: fencePeer + kind(orders.IntN(numOrders)), client: orders.IntN(len(p.clients))})
	}
	return p
}
