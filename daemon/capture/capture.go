package capture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp/tap"
)

// ErrTooMany is returned by Captures.Begin where Most captures run.
var ErrTooMany = errors.New("capture: too many captures run")

// Captures are those that run on a device. Their methods are safe for concurrent use.
type Captures struct {
	tap *tap.Tap

	mu   sync.Mutex // guards the fields below it
	last uint64
	all  []*Capture
}

// New returns the captures of what a tap shows, none at first.
func New(t *tap.Tap) *Captures { return &Captures{tap: t} }

// Capture is one that runs.
type Capture struct {
	ID uint64
	About
	PID int // of the process that reads it

	ring     *Ring
	detach   func()
	captures *Captures
	stopped  chan struct{}
	once     sync.Once
}

// Begin begins a capture of the streams with the peer of an identity, or with all. Nothing of it is left once Run has
// returned, or End. It fails with ErrTooMany.
func (c *Captures) Begin(a About, identity string, pid int) (*Capture, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.all) >= Most {
		return nil, fmt.Errorf("%w: %d", ErrTooMany, len(c.all))
	}
	c.last++
	x := &Capture{ID: c.last, About: a, PID: pid, ring: NewRing(identity, a.Payload), captures: c, stopped: make(chan struct{})}
	c.all = append(c.all, x)
	x.detach = c.tap.Attach(x.ring)
	return x, nil
}

// List returns the captures that run, the oldest first.
func (c *Captures) List() []*Capture {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

// Find returns a capture that runs, nil if there is none of that ID.
func (c *Captures) Find(id uint64) *Capture {
	for _, x := range c.List() {
		if x.ID == id {
			return x
		}
	}
	return nil
}

// Counts returns how many records were captured and dropped so far.
func (x *Capture) Counts() (taken, dropped uint64) { return x.ring.Counts() }

// End has streams not be captured any more; Run writes what was captured, and returns. It is idempotent.
func (x *Capture) End() {
	x.once.Do(func() {
		x.detach()
		x.captures.remove(x)
		close(x.stopped)
	})
}

func (c *Captures) remove(x *Capture) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(y *Capture) bool { return y == x })
}

// Run writes what is captured to w, each time there is something, and calls flush after it. It returns after End, once the
// file is whole, when ctx is done, and when w or flush fails, whose error it returns. The capture has ended then.
func (x *Capture) Run(ctx context.Context, w io.Writer, flush func() error) error {
	defer x.End()
	file, err := NewWriter(w, x.About)
	if err != nil {
		return err
	}
	if err := file.ng.Flush(); err != nil {
		return err
	}
	for ended := false; ; {
		for b := x.ring.next(); b != nil; b = x.ring.next() {
			err := file.write(b)
			x.ring.giveBack(b)
			if err != nil {
				return err
			}
		}
		if ended {
			taken, dropped := x.Counts()
			if err := file.finish(time.Now(), taken, dropped); err != nil {
				return err
			}
			return flush()
		}
		if err := flush(); err != nil {
			return err
		}
		select {
		case <-x.ring.some:
		case <-x.stopped:
			ended = true
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
