package history

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// restored replaces an attached disk's file by a backup, as docs/operations.md
// describes. What is acknowledged from then on is in the new file.
func restored(t *testing.T, off checks.Check) *scene {
	const blocks = 8
	var d *disk
	s := newScene(t, off, func(s *scene) { d = s.newDisk("disk", filepath.Join(s.dir, "disk.img")) })
	s.attach(d)
	c := s.dial(d)
	s.must(c.writeAll(blocks)...)
	s.must(c.start(opFlush, 0, 0, false))
	backup := filepath.Join(s.dir, "backup.img")
	command(t, "cp", "--preserve=all", d.path, backup)
	s.must(c.writeAll(blocks)...)
	s.must(c.start(opFlush, 0, 0, false))
	end := s.rec.excuse(d.number, "the disk is restored")
	s.rec.fault("file restored", true)
	e := event{disk: d.number, call: s.rec.now(), set: s.values(backup)}
	command(t, "mv", backup, d.path)
	s.beta.reload()
	e.ret = s.rec.now()
	s.rec.happened(e)
	until(t, "the disk goes on, or is refused", func() bool {
		return s.wait(c.start(opWrite, 0, 1, false)) || s.attachment(d).State == api.AttachFailed
	})
	if s.attachment(d).State == api.AttachFailed {
		s.reattach(d)
		c = s.dial(d)
	}
	end()
	s.must(c.start(opWrite, 1, 1, false))
	s.must(c.start(opFlush, 0, 0, false))
	s.must(c.readAll(blocks)...)
	s.audit(d, d.path)
	return s
}

func TestRestored(t *testing.T) {
	prove(t, scenario{"writes go to the file that is gone", checks.RestoredFile, restored})
}

// values are the writes that a file holds, by sector.
func (s *scene) values(path string) (all []uint32) {
	s.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		s.Fatal(err)
	}
	for i := range len(b) / sector {
		all = append(all, sectorTags(b[i*sector : (i+1)*sector])[0].write())
	}
	return all
}
