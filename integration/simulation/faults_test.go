package simulation

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
)

// play carries out the plan, and takes back what it did.
func (w *world) play() {
	var undone sync.WaitGroup
	undone.Go(w.administer)
	if len(w.plan.outages) > 0 {
		undone.Go(w.lose)
	}
	for _, a := range w.plan.actions {
		sleep(a.after)
		w.happens("%s: client %d, path %d, for %v", kindNames[a.kind], a.client, a.path, a.last)
		if undo := w.act(a); undo != nil {
			undone.Go(func() {
				sleep(a.last)
				w.happens("%s is over", kindNames[a.kind])
				undo()
			})
		}
	}
	undone.Wait()
}

// act begins an action. It returns what ends it, or nil.
func (w *world) act(a action) (undo func()) {
	c := w.clients[a.client]
	link := c.links[a.path]
	switch a.kind {
	case cutPath:
		link.Cut()
	case holdPath:
		link.Hold(true)
		return func() { link.Hold(false) }
	case pausePath:
		link.Pause(true)
		return func() { link.Pause(false) }
	case refusePath:
		link.Refuse(true)
		link.Cut()
		return func() { link.Refuse(false) }
	case cutAll:
		w.host.Cut()
	case isolate:
		for _, l := range c.links {
			l.Hold(true)
		}
		return func() {
			sleep(w.plan.linger + w.plan.grace)
			for _, l := range c.links {
				l.Hold(false)
			}
		}
	case killServer, cutPower:
		s := w.takeServer()
		if s == nil {
			return nil // it is down already
		}
		s.kill(a.kind == cutPower, a.draw%2 == 0)
		return w.back
	case killClient:
		c.kill()
	case slowDisk:
		w.disk.set(func(d *disk) { d.slow = 1 + int(a.draw%2000) })
		return func() { w.disk.set(func(d *disk) { d.slow = 0 }) }
	case failDisk:
		w.disk.set(func(d *disk) { d.failing += 1 + int(a.draw%3) })
	case pathOff:
		if t := c.path(a.path); t != nil {
			t.Disconnect()
			return t.Reconnect
		}
	case pathAway:
		return c.removePath(a.path)
	case setPolicy:
		if rt := c.session(); rt != nil {
			rt.SetPolicy(rtrs.Policy(a.draw % 4))
		}
	case detachDisk:
		c.detachNow()
	case replaceExport:
		return w.replace()
	}
	return nil
}

// administer carries out the orders.
func (w *world) administer() {
	for _, a := range w.plan.orders {
		sleep(a.after)
		w.happens("%s: client %d", kindNames[a.kind], a.client)
		w.mu.Lock()
		s := w.server
		w.mu.Unlock()
		switch {
		case s == nil: // it is down
		case a.kind == fencePeer:
			w.fence(s, w.clients[a.client])
		default:
			w.grow(s)
		}
	}
}

// fenceTime is how long storage may take to end what it has begun.
const fenceTime = 30 * time.Second

// fence fences a client.
func (w *world) fence(s *server, c *client) {
	ctx, cancel := context.WithTimeout(context.Background(), fenceTime)
	defer cancel()
	f := fence{client: c, call: w.now()}
	done, err := s.nb.Fence(ctx, exportName, func(t rnbd.Token) bool { return string(t.Peer) == c.name })
	if err == nil && !s.dead.Load() {
		f.answer = w.now()
	}
	w.happens("%s is fenced: %+v, %v", c.name, done, err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fences = append(w.fences, f)
}

// grow makes the disk one sector longer. It is durable before it is offered.
func (w *world) grow(s *server) {
	var size uint64
	w.disk.set(func(d *disk) {
		d.size += sectorSize
		size = d.size
	})
	if s.nb.Grown(exportName) != nil || s.dead.Load() {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.grown = append(w.grown, growth{w.now(), size})
}

func (d *disk) set(f func(*disk)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f(d)
}

// takeServer returns the server that is up, which is down from now on, or nil.
func (w *world) takeServer() *server {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.server
	w.server = nil
	return s
}

// replace has the server open the disk again.
func (w *world) replace() (undo func()) {
	w.mu.Lock()
	s := w.server
	w.mu.Unlock()
	if s == nil || s.nb.ReplaceExport(exportName, "it is opened again") != nil {
		return nil
	}
	return func() {
		if err := s.addExport(); err != nil && !s.dead.Load() && !errors.Is(err, rnbd.ErrExists) && !errors.Is(err, rnbd.ErrEnding) {
			w.wrong("an export cannot be added again: %v", err)
		}
	}
}

// session returns the session of the client's process, nil if it has none.
func (c *client) session() *rtrs.Client {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.proc == nil || c.proc.rc == nil {
		return nil
	}
	return c.proc.rc.Session()
}

// path returns a path of the session's, nil if there is none.
func (c *client) path(i int) *rtrs.Path {
	rt := c.session()
	if rt == nil {
		return nil
	}
	paths := rt.Paths()
	j := slices.IndexFunc(paths, func(t *rtrs.Path) bool { return t.Name() == pathName(i) })
	if j < 0 {
		return nil
	}
	return paths[j]
}

func pathName(i int) string { return fmt.Sprint("path", i) }

// removePath takes a path out of the session, until undo.
func (c *client) removePath(i int) (undo func()) {
	t := c.path(i)
	if t == nil {
		return nil
	}
	c.mu.Lock()
	p := c.proc
	c.mu.Unlock()
	t.Remove()
	return func() {
		if _, err := p.rc.Session().AddPath(p.path(i)); err != nil && !errors.Is(err, rtrs.ErrClosed) {
			c.w.wrong("a path cannot be added again: %v", err)
		}
	}
}
