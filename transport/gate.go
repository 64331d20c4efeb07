package transport

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/transport/sctp"
)

// errEarly ends an association whose peer does not wait for its admission.
var errEarly = errors.New("the peer sent more than fits before it was admitted")

// gate is the Receiver of an association. It keeps what comes before the
// association is admitted, and passes it on afterwards.
//
//	shut --open--> open --EventDown--> over
//	  |                                 ^
//	  +----------- EventDown -----------+
type gate struct {
	assoc sctp.Association
	path  func(e sctp.Event) // EventPathUp, EventPathDown
	moved func()             // EventMoved

	opened atomic.Bool
	recv   sctp.Receiver // set before opened

	mu      sync.Mutex
	kept    []keptItem
	bytes   int
	isOver  bool
	ctx     context.Context // ends with the association
	cancel  context.CancelFunc
	release func() // called when an open gate is over
}

// keptItem is one call of the Receiver's methods.
type keptItem struct {
	message sctp.Message // its payload copied
	event   sctp.Event
}

func newGate(a sctp.Association) *gate {
	g := &gate{assoc: a}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	return g
}

// Message implements sctp.Receiver.
func (g *gate) Message(m *sctp.Message) bool {
	if g.opened.Load() {
		return g.recv.Message(m)
	}
	g.mu.Lock()
	if g.opened.Load() {
		g.mu.Unlock()
		return g.recv.Message(m)
	}
	full := len(g.kept) >= maxEarlyMessages || g.bytes+len(m.Payload) > maxEarly
	if !full && !g.isOver {
		c := *m
		c.Payload = append([]byte(nil), m.Payload...)
		g.kept = append(g.kept, keptItem{message: c})
		g.bytes += len(c.Payload)
	}
	g.mu.Unlock()
	if full {
		g.assoc.Abort(errEarly.Error())
	}
	return true
}

// Event implements sctp.Receiver.
func (g *gate) Event(e sctp.Event) {
	switch e.Kind {
	case sctp.EventPathUp, sctp.EventPathDown:
		if g.path != nil {
			g.path(e)
		}
	case sctp.EventMoved:
		if g.moved != nil {
			g.moved()
		}
	}
	if !g.opened.Load() {
		g.mu.Lock()
		if !g.opened.Load() {
			if len(g.kept) < 2*maxEarlyMessages {
				g.kept = append(g.kept, keptItem{event: e})
			}
			if e.Kind == sctp.EventDown {
				g.isOver = true
				g.cancel()
			}
			g.mu.Unlock()
			return
		}
		g.mu.Unlock()
	}
	g.recv.Event(e)
	if e.Kind == sctp.EventDown {
		g.over()
	}
}

func (g *gate) over() {
	g.cancel()
	g.release()
}

// BatchEnd implements sctp.Receiver.
func (g *gate) BatchEnd() {
	if g.opened.Load() {
		g.recv.BatchEnd()
	}
}

// open passes on to recv what was kept and what comes from now on. release is
// called when the association is over. It is false if that has happened already:
// then neither is ever called.
func (g *gate) open(recv sctp.Receiver, release func()) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.isOver {
		g.kept = nil
		return false
	}
	g.recv, g.release = recv, release
	messages := false
	for i := range g.kept {
		k := &g.kept[i]
		if k.event.Kind != 0 {
			recv.Event(k.event)
			continue
		}
		messages = true
		if n := len(k.message.Payload); !recv.Message(&k.message) {
			g.assoc.Release(n)
		}
	}
	if messages {
		recv.BatchEnd()
	}
	g.kept = nil
	g.opened.Store(true)
	return true
}
