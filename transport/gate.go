package transport

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// errEarly ends an association whose peer does not wait for admission.
var errEarly = errors.New("the peer sent more than fits before it was admitted")

// gate is the Receiver of an association. It keeps what arrives before the association is
// admitted, and passes it on afterwards.
//
//	shut --open--> passing on what was kept --> open
type gate struct {
	assoc assoc.Association
	flows []Flow
	cfg   *Config
	start func() // starts reading, nil if the association already reads

	opened  atomic.Bool
	recv    assoc.Receiver // set before opened, as are paths and release
	paths   *paths
	release func() // called when an admitted association is over

	ctx    context.Context // ends with the association
	cancel context.CancelFunc

	mu     sync.Mutex // guards the fields below it
	kept   []keptItem
	bytes  int
	isOver bool
}

// keptItem is one call of the Receiver's methods.
type keptItem struct {
	message assoc.Message // its payload copied
	event   assoc.Event
}

func newGate(a assoc.Association, flows []Flow, cfg *Config) *gate {
	g := &gate{assoc: a, flows: flows, cfg: cfg}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Message implements assoc.Receiver.
func (g *gate) Message(m *assoc.Message) bool {
	if g.opened.Load() {
		return g.recv.Message(m)
	}
	g.mu.Lock()
	if g.opened.Load() {
		g.mu.Unlock()
		return g.recv.Message(m)
	}
	full := len(g.kept) >= maxEarlyMessages || g.bytes+len(m.Payload) > maxEarly
	if !full {
		c := *m
		c.Payload, c.Memory = append([]byte(nil), m.Payload...), nil
		g.kept = append(g.kept, keptItem{message: c})
		g.bytes += len(c.Payload)
	}
	g.mu.Unlock()
	if full {
		g.assoc.Abort(errEarly.Error())
	}
	return true
}

// Event implements assoc.Receiver.
func (g *gate) Event(e assoc.Event) {
	if !g.keep(e) {
		g.pass(e)
	}
}

// keep keeps an event unless the gate is open.
func (g *gate) keep(e assoc.Event) bool {
	if g.opened.Load() {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened.Load() {
		return false
	}
	if e.Kind == assoc.EventDown {
		g.isOver = true
		g.cancel()
	}
	if e.Kind == assoc.EventDown || len(g.kept) < 2*maxEarlyMessages {
		g.kept = append(g.kept, keptItem{event: e})
	}
	return true
}

// pass hands an event to the Receiver of an admitted association.
func (g *gate) pass(e assoc.Event) {
	g.recv.Event(e)
	switch e.Kind {
	case assoc.EventPathUp, assoc.EventPathDown:
		g.paths.changed(e.Path.Addr(), e.Kind == assoc.EventPathUp)
	case assoc.EventMoved:
		g.screen()
	case assoc.EventDown:
		g.cancel()
		g.release()
	}
}

// screen asks the Protector again after the peer's UDP port has changed (RFC 6951 section
// 5.4), which makes it another flow.
func (g *gate) screen() {
	a, ok := g.assoc.(interface{ Remote() netip.AddrPort })
	if !ok {
		return
	}
	f := g.flows[0]
	f.Remote = a.Remote()
	if screen(g.cfg.Protector, f) != nil {
		g.assoc.Abort("the peer's UDP port has changed to one that is not admitted")
	}
}

// BatchEnd implements assoc.Receiver.
func (g *gate) BatchEnd() {
	if g.opened.Load() {
		g.recv.BatchEnd()
	}
}

// open passes to recv what was kept and what arrives from now on. release is called when
// the association ends. open returns false if it has already ended: then neither is ever
// called.
func (g *gate) open(recv assoc.Receiver, p *paths, release func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOver {
		g.kept = nil
		return false
	}
	g.recv, g.paths, g.release = recv, p, release
	for len(g.kept) > 0 {
		kept := g.kept
		g.kept, g.bytes = nil, 0
		// Without the lock: the Receiver may abort the association, which calls Event.
		g.mu.Unlock()
		g.replay(kept)
		g.mu.Lock()
	}
	g.opened.Store(true)
	return true
}

func (g *gate) replay(kept []keptItem) {
	messages := false
	for i := range kept {
		k := &kept[i]
		if k.event.Kind != 0 {
			if messages {
				g.recv.BatchEnd()
				messages = false
			}
			g.pass(k.event)
			continue
		}
		messages = true
		if n := len(k.message.Payload); !g.recv.Message(&k.message) {
			g.assoc.Release(n)
		}
	}
	if messages {
		g.recv.BatchEnd()
	}
}
