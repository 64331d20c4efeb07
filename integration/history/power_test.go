package history

import (
	"testing"

	"github.com/ironwarp/ironwarp/internal/checks"
)

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
		scenario{"what was written with FUA is there", checks.None, fuaSurvives},
	)
}
