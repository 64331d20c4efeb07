package rnbd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/rtrs"
)

// Grown offers an export with the size that its storage has by now, if that is longer. What
// has it open learns of it within sizeInterval. It fails with ErrNotFound.
func (s *Server) Grown(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if e == nil {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	if now := e.cfg.Storage.Geometry().Size / SectorSize; now > e.sectors.Load() {
		e.sectors.Store(now)
		s.log.Info("an export has grown", "export", name, "bytes", now*SectorSize)
	}
	return nil
}

// Shrink offers an export with fewer bytes, before its storage is cut off there: nobody who
// opens it from then on is told of more. It fails with ErrNotFound, and with ErrInUse while
// somebody has it open. Grown undoes it.
func (s *Server) Shrink(name string, size uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if e == nil {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.devices) > 0 {
		return fmt.Errorf("shrink export %q: %w", name, ErrInUse)
	}
	e.sectors.Store(min(e.sectors.Load(), size/SectorSize))
	return nil
}

// listGrown lists the session's devices whose exports have grown since they were opened.
func (s *session) listGrown(first uint32, out []byte, size int) []byte {
	var all []grownDevice
	for d := range s.devices.all {
		if now := d.exp.sectors.Load(); !d.closed.Load() && now > d.sectors {
			all = append(all, grownDevice{d.id, now})
		}
	}
	slices.SortFunc(all, func(a, b grownDevice) int { return cmp.Compare(a.Device, b.Device) })
	from := min(int64(first), int64(len(all)))
	answer, n := (&grownRsp{Devices: all[from:]}).Append(out, size)
	if next := int(from) + n; n > 0 && next < len(all) {
		le.PutUint32(answer[8:], uint32(next))
	}
	return answer
}

// SetQuiet says whether a session without I/O asks nothing of its server, so that its security
// associations may be given up: then it learns with the next I/O that a disk has grown.
func (c *Client) SetQuiet(on bool) { c.quiet.Store(on) }

// watchSizes asks the server again and again which disks have grown.
func (c *Client) watchSizes() {
	t := time.NewTicker(sizeInterval)
	defer t.Stop()
	var asked rtrs.Stats
	for {
		select {
		case <-t.C:
		case <-c.ctx.Done():
			return
		}
		if c.asksAfter(asked) {
			c.askSizes(c.ctx)
			asked = c.rt.Stats()
		}
	}
}

// asksAfter reports whether the server is to be asked, for which a quiet session had these
// counts when it asked before.
func (c *Client) asksAfter(asked rtrs.Stats) bool {
	return c.Version() >= versionGrown && !c.silent.Load() && c.rt.HasPath() && !(c.quiet.Load() && c.rt.Stats() == asked)
}

// askSizes asks once. A server that fails to answer is not asked again until the session is
// introduced anew: then disks have their new sizes when they are opened.
func (c *Client) askSizes(ctx context.Context) {
	answer := make([]byte, listAnswer)
	for next, asked := uint32(0), 0; asked < maxDevices; asked++ {
		req := numMsg{N: next}
		err := c.rt.Control(ctx, req.Append(nil, msgGrown), answer)
		var rsp grownRsp
		if err == nil {
			err = rsp.Parse(answer)
		}
		if err != nil {
			if !errors.Is(err, rtrs.ErrPathLost) && ctx.Err() == nil {
				c.silent.Store(true)
				c.log.Warn("the server does not say which disks have grown", "error", err)
			}
			return
		}
		for _, g := range rsp.Devices {
			if d := c.disk(g.Device); d != nil {
				d.grow(g.Sectors * SectorSize)
			}
		}
		if rsp.Next <= next {
			return
		}
		next = rsp.Next
	}
}

// disk returns the open disk of a device's id, nil if there is none. One that is being
// opened has no size yet that could have grown.
func (c *Client) disk(id uint32) *Disk {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.disks, func(d *Disk) bool { return d.id == id && d.size.Load() > 0 && !d.isClosing() })
	if i < 0 {
		return nil
	}
	return c.disks[i]
}

// resizeHooks are what OnResize has registered.
type resizeHooks struct {
	mu    sync.Mutex // guards the fields below it; held while hooks run
	last  int
	hooks map[int]func(size uint64)
}

// OnResize implements block.Resizer.
func (d *Disk) OnResize(f func(size uint64)) (cancel func()) {
	h := &d.resized
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hooks == nil {
		h.hooks = map[int]func(uint64){}
	}
	h.last++
	id := h.last
	h.hooks[id] = f
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.hooks, id)
	}
}

// grow notes the disk's size at the server. A disk never shrinks: what clients have been
// told stays valid.
func (d *Disk) grow(size uint64) {
	h := &d.resized
	h.mu.Lock()
	defer h.mu.Unlock()
	was := d.size.Load()
	if size <= was {
		return
	}
	d.size.Store(size)
	if was == 0 {
		return // it has just been opened
	}
	d.c.log.Info("a remote disk has grown", "export", d.name, "from", was, "bytes", size)
	for _, id := range slices.Sorted(maps.Keys(h.hooks)) {
		h.hooks[id](size)
	}
}
