package history

import (
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// deadClient kills a client whose writes wait for the path, and has a successor write
// to the same blocks. The dead client's writes must not land on those.
func deadClient(t *testing.T, off checks.Check) *scene {
	const blocks = 32
	var d *disk
	s := newScene(t, off, func(s *scene) { d = s.newDisk("disk", filepath.Join(s.dir, "disk.img")) })
	s.attach(d)
	first := s.dial(d)
	s.must(first.writeAll(blocks)...)
	s.wire.setDown(true)
	s.rec.fault("path down", true)
	until(t, "alpha notices that the path is down", func() bool { return s.attachment(d).State == api.AttachWaiting })
	first.writeAll(blocks)
	until(t, "the writes wait for the path", func() bool { return s.inFlight() >= blocks })
	s.killClient(first)
	second := s.dial(d)
	ops := second.writeAll(blocks)
	s.wire.setDown(false)
	s.must(ops...)
	s.must(second.start(opFlush, 0, 0, false))
	s.must(second.readAll(blocks)...)
	s.audit(d, d.path)
	return s
}

func TestDeadClient(t *testing.T) {
	prove(t,
		scenario{"who waits for the path", checks.None, deadClient},
		scenario{"whose storage stands still", checks.Succession, func(t *testing.T, off checks.Check) *scene {
			return overtaken(t, off, func(s *powered, c *client) { s.killClient(c) })
		}},
	)
}
