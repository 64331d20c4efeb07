package export

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/gate"
)

// cached is a storage that carries I/O out when it is let, and has a cache, which Flush empties when it is let.
type cached struct {
	block.Storage
	begun   []block.Completion
	events  []string
	flushes chan error
}

type cachedQueue struct {
	block.Queue
	c *cached
}

func (c *cached) NewQueue(func()) block.Queue { return &cachedQueue{c: c} }
func (*cached) Path() string                  { return "/dev/cached" }

func (q *cachedQueue) Do(op block.Op, _ []byte, _, _ int64, _ block.Flags, done block.Completion) bool {
	q.c.begun = append(q.c.begun, done)
	return false
}

func (c *cached) Flush() error {
	c.events = append(c.events, "flush")
	return <-c.flushes
}

// finish ends the oldest I/O that was begun.
func (c *cached) finish() {
	done := c.begun[0]
	c.begun = c.begun[1:]
	c.events = append(c.events, "write ends")
	done.Complete(0)
}

type written struct{ ended bool }

func (w *written) Complete(syscall.Errno) { w.ended = true }

// TestFreezeFlushesWhatWasAcknowledged: whoever copies a frozen volume's storage finds all that programs had had acknowledged, which may have been
// in a cache: the writes that were under way end, what they wrote is flushed, and only then is the volume frozen. What comes meanwhile waits.
func TestFreezeFlushesWhatWasAcknowledged(t *testing.T) {
	for _, fails := range []error{nil, syscall.EIO} {
		synctest.Test(t, func(t *testing.T) {
			c := &cached{flushes: make(chan error)}
			g := gate.New(c, true)
			q := g.NewQueue(func() {})
			var first, second written
			q.Do(block.OpWrite, make([]byte, 512), 0, 512, 0, &first)
			var thaw func()
			var err error
			frozen := false
			go func() {
				thaw, err = freeze(t.Context(), c, g)
				frozen = true
			}()
			synctest.Wait()
			q.Do(block.OpWrite, make([]byte, 512), 0, 512, 0, &second)
			if frozen || len(c.begun) != 1 || len(c.events) != 0 {
				t.Fatalf("a write is under way: frozen %v, %d begun, %v", frozen, len(c.begun), c.events)
			}
			c.finish()
			synctest.Wait()
			if frozen || !first.ended || !slices.Equal(c.events, []string{"write ends", "flush"}) {
				t.Fatalf("the flush is under way: frozen %v, %v", frozen, c.events)
			}
			c.flushes <- fails
			synctest.Wait()
			if !frozen || !errors.Is(err, fails) {
				t.Fatalf("the flush is over with %v: frozen %v, %v", fails, frozen, err)
			}
			if held := len(c.begun) == 0; held != (fails == nil) {
				t.Errorf("after a flush with %v the next write is held: %v", fails, held)
			}
			if fails == nil {
				thaw()
			}
			synctest.Wait()
			if len(c.begun) != 1 {
				t.Errorf("%d writes are begun after the thaw, want 1", len(c.begun))
			}
		})
	}
}

// A flush that does not end does not keep a volume frozen.
func TestFreezeGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cached{flushes: make(chan error, 1)}
		g := gate.New(c, true)
		ctx, cancel := context.WithCancel(t.Context())
		var err error
		go func() { _, err = freeze(ctx, c, g) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		g.NewQueue(func() {}).Do(block.OpWrite, make([]byte, 512), 0, 512, 0, new(written))
		if len(c.begun) != 1 {
			t.Error("a write is still held")
		}
		c.flushes <- nil
	})
}
