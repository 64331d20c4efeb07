package nbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Handed is what a server knows of a client that it hands over, between two requests: all that was begun has been answered, and
// nothing is at the device.
type Handed struct {
	Export     string `json:"export"`
	Size       uint64 `json:"size"` // bytes, as the client may know them
	Flags      uint16 `json:"flags"`
	MinBlock   uint32 `json:"min_block"` // bytes
	Structured bool   `json:"structured,omitempty"`
	Extended   bool   `json:"extended,omitempty"`
	Allocation bool   `json:"allocation,omitempty"` // base:allocation is selected
	Received   []byte `json:"received,omitempty"`   // of requests that are not begun; at most 64 KiB
}

// Resumed is a client that another server has handed over. The connection is as net.Listener returns it.
type Resumed struct {
	net.Conn
	Handed
}

// Resume returns a listener for Serve that accepts clients of another server first, which go on where that one has
// stopped. One for which the export is not any more what it was told is disconnected.
func Resume(ln net.Listener, clients []Resumed) net.Listener {
	if len(clients) == 0 {
		return ln
	}
	return &resuming{ln, clients}
}

type resuming struct {
	net.Listener
	clients []Resumed // only Accept, of which there is one at a time, uses them
}

func (l *resuming) Accept() (net.Conn, error) {
	if len(l.clients) == 0 {
		return l.Listener.Accept()
	}
	c := l.clients[0]
	l.clients = l.clients[1:]
	return &c, nil
}

// hands reports whether clients are handed over when the server's context ends. Then requests that have begun to arrive are carried
// through, within the time that there is for draining.
func (c *conn) hands() bool { return c.srv.cfg.HandOver != nil }

// lifetime is how long a connection's requests may wait for the device.
func (c *conn) lifetime(ctx context.Context) (context.Context, context.CancelFunc) {
	if !c.hands() {
		return ctx, func() {}
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	c.mu.Lock()
	c.stop = stop
	c.mu.Unlock()
	return ctx, stop
}

// awaitRequest waits for the header of a request. It fails with errCut when the client is to be handed over.
func (c *conn) awaitRequest() error {
	if !c.hands() {
		return c.receiveAtLeast(c.requestLen())
	}
	if c.setIdle(true) {
		return errCut
	}
	err := c.receiveAtLeast(c.requestLen())
	if c.setIdle(false) && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		return errCut
	}
	return err
}

// setIdle notes whether the connection waits for a request, and reports whether no more are to be begun.
func (c *conn) setIdle(idle bool) (stopping bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.idle = idle
	return c.stopping
}

// lastReadLocked is until when what a client sends is read, once the server's context has ended.
func (c *conn) lastReadLocked() time.Time {
	if c.hands() && !c.idle {
		return time.Now().Add(c.srv.cfg.DrainTimeout)
	}
	return time.Unix(1, 0)
}

// handOver hands the client over, if all that it had begun is answered.
func (c *conn) handOver() {
	c.mu.Lock()
	whole := !c.cut && !c.dead
	c.mu.Unlock()
	if !whole || !c.hands() {
		return
	}
	c.srv.cfg.HandOver(c.nc, Handed{Export: c.exp.name, Size: c.size.Load(), Flags: c.geo.transmissionFlags(c.features), MinBlock: c.geo.MinBlock,
		Structured: c.structured, Extended: c.extended, Allocation: c.allocation, Received: c.buf[c.r:c.w]})
}

// resume begins transmission with a client of another server. It fails where the export is not what the client was told.
func (c *conn) resume(h *Handed) error {
	c.srv.mu.Lock()
	e := c.srv.exports[h.Export]
	c.srv.mu.Unlock()
	if e == nil {
		return fmt.Errorf("export %.80q: %w", h.Export, ErrNoExport)
	}
	c.features = features{structured: h.Structured, extended: h.Extended, allocation: h.Allocation}
	g := geometry(e.device.Geometry()).withDefaults()
	now := g.transmissionFlags(c.features)
	switch {
	case g.Size < h.Size:
		return fmt.Errorf("the disk has %d bytes, and had %d", g.Size, h.Size)
	case h.Flags&^now != 0 || (h.Flags^now)&flagReadOnly != 0:
		return fmt.Errorf("the disk can do %#x, and could %#x", now, h.Flags)
	case g.MinBlock > h.MinBlock:
		return fmt.Errorf("the disk has blocks of %d bytes, and had some of %d", g.MinBlock, h.MinBlock)
	case h.Allocation && !g.CanStatus:
		return errors.New("the disk does not tell any more what is allocated")
	case len(h.Received) > len(c.buf):
		return fmt.Errorf("%d bytes were received; at most %d are read at a time", len(h.Received), len(c.buf))
	case h.Extended && !h.Structured:
		return errors.New("extended headers without structured replies")
	}
	c.w = copy(c.buf, h.Received)
	if h.Allocation {
		c.allocationOf = e
	}
	c.chooseExport(e, g)
	return nil
}
