package history

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

// lostFlush cuts the power of the exporting host while writes are acknowledged and not
// flushed. A later flush must not report them as safe.
func lostFlush(t *testing.T, off checks.Check) *scene {
	const blocks = 16
	s := newPowered(t, off)
	s.attach(s.d)
	c := s.dial(s.d)
	s.must(c.writeAll(blocks)...)
	s.must(c.start(opFlush, 0, 0, false))
	s.must(c.writeAll(blocks)...)
	s.powerCut()
	s.wait(c.start(opFlush, 0, 0, false)) // may fail
	s.wait(c.start(opFlush, 0, 0, false))
	s.wait(c.readAll(blocks)...)
	// Attached again it is a disk like any other.
	s.reattach(s.d)
	c = s.dial(s.d)
	s.must(c.writeAll(blocks)...)
	s.must(c.start(opFlush, 0, 0, false))
	s.powerCut()
	s.must(c.start(opFlush, 0, 0, false)) // there was nothing to lose
	s.must(c.readAll(blocks)...)
	s.audit(s.d, s.d.path)
	return s.scene
}

// fuaSurvives cuts the power after writes with FUA, which need no flush.
func fuaSurvives(t *testing.T, off checks.Check) *scene {
	const blocks = 8
	s := newPowered(t, off)
	s.attach(s.d)
	c := s.dial(s.d)
	var ops []*op
	for b := range uint32(blocks) {
		ops = append(ops, c.start(opWrite, b, 1, true))
	}
	s.must(ops...)
	s.powerCut()
	s.must(c.readAll(blocks)...)
	s.must(c.start(opFlush, 0, 0, false))
	s.audit(s.d, s.d.path)
	return s.scene
}

func TestPowerCut(t *testing.T) {
	prove(t,
		scenario{"flush vouches for what is lost", checks.StoreLife, lostFlush},
		scenario{"what was written with FUA is there", checks.None, fuaSurvives},
	)
}
