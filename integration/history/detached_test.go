package history

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// overtaken ends a client while its writes hang in frozen storage, and has the next
// client write to the same blocks. The earlier writes must not land on those.
func overtaken(t *testing.T, off checks.Check, end func(s *powered, c *client)) *scene {
	const blocks = 14
	s := newPowered(t, off)
	// Another disk keeps the session open.
	other := s.newDisk("other", filepath.Join(s.dir, "other.img"))
	s.beta.reload()
	s.attach(other)
	s.attach(s.d)
	for range 2 {
		c := s.dial(s.d)
		// After one frozen write the daemon leaves writes to workers.
		thaw := s.m.freeze()
		slow := c.start(opWrite, 0, 1, false)
		looks := 0
		until(t, "a write is under way for a while", func() bool { looks++; return looks > 10 && s.inFlight() > 0 })
		thaw()
		s.must(slow)
		thaw = s.m.freeze()
		s.rec.fault("storage stands still", false)
		c.writeAll(blocks)
		until(t, "the writes are under way", func() bool { return s.inFlight() >= blocks })
		next := make(chan []*op, 1)
		go func() {
			end(s, c)
			next <- s.dial(s.d).writeAll(blocks)
		}()
		// It does not matter whether the next client is let in before the storage thaws.
		var ops []*op
		wait, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_ = node.Until(wait, func() (bool, error) {
			select {
			case ops = <-next:
			default:
			}
			return ops != nil && s.inFlight() >= 2*blocks, nil
		})
		cancel()
		thaw()
		if ops == nil {
			ops = <-next
		}
		s.must(ops...)
		c = s.dial(s.d)
		s.must(c.start(opFlush, 0, 0, false))
		s.must(c.readAll(blocks)...)
	}
	s.audit(s.d, s.d.path)
	return s.scene
}

func detachByForce(s *powered, _ *client) {
	s.rec.fault("detached by force", false)
	if err := s.alpha.api.Detach(s.Context(), "beta", s.d.name, true); err != nil {
		s.Error(err)
	}
	s.attach(s.d)
}

func TestDetached(t *testing.T) {
	prove(t, scenario{"while its storage stands still", checks.CloseWaits, func(t *testing.T, off checks.Check) *scene {
		return overtaken(t, off, detachByForce)
	}})
}
