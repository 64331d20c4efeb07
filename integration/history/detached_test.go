package history

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// detachedInFlight detaches a disk by force while its storage stands still under a
// client's writes, and attaches it again. What was asked for before must not land on
// what the next client writes.
func detachedInFlight(t *testing.T, off checks.Check) *scene {
	const blocks = 14
	s := newPowered(t, off)
	// Another disk keeps the session of both.
	other := s.newDisk("other", filepath.Join(s.dir, "other.img"))
	s.beta.reload()
	s.attach(other)
	s.attach(s.d)
	for range 2 {
		c := s.dial(s.d)
		// One that stands still teaches the daemon to leave writes to workers.
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
		s.rec.fault("detached by force", false)
		next := make(chan []*op, 1)
		go func() {
			if err := s.alpha.api.Detach(t.Context(), "beta", s.d.name, true); err != nil {
				t.Error(err)
			}
			s.attach(s.d)
			next <- s.dial(s.d).writeAll(blocks)
		}()
		// Whether the next client is let in before the storage goes on is not the question.
		var ops []*op
		select {
		case ops = <-next:
			until(t, "the next writes are under way", func() bool { return s.inFlight() >= blocks })
		case <-time.After(3 * time.Second):
		}
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

func TestDetached(t *testing.T) {
	prove(t, scenario{"while its storage stands still", checks.CloseWaits, detachedInFlight})
}
