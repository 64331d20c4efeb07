package history

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// otherFile puts another file of the same size under an export while it is attached.
// Nobody may read or write that file through this disk.
func otherFile(exchange func(s *scene, d *disk, other string)) func(t *testing.T, off checks.Check) *scene {
	return func(t *testing.T, off checks.Check) *scene {
		const blocks = 8
		var d *disk
		s := newScene(t, off, func(s *scene) { d = s.newDisk("disk", filepath.Join(s.dir, "disk.img")) })
		other := filepath.Join(s.dir, "other.img")
		const otherDisk = 77
		s.newFile(other, otherDisk)
		s.attach(d)
		c := s.dial(d)
		s.must(c.writeAll(blocks)...)
		s.must(c.start(opFlush, 0, 0, false))
		end := s.rec.excuse(d.number, "another file is under the export")
		s.rec.fault("file exchanged", true)
		exchange(s, d, other)
		until(t, "the disk is refused, or goes on", func() bool {
			o := c.start(opRead, 0, 1, false)
			s.wait(o)
			a := s.attachment(d)
			return o.out != failed || a.State == api.AttachFailed && a.Problem != nil && strings.Contains(a.Problem.Message, "another")
		})
		s.wait(c.writeAll(blocks)...)
		s.wait(c.readAll(blocks)...)
		end()
		if _, err := readTags(must(os.ReadFile(other))(t)[:blockSize], otherDisk, 0); err != nil {
			s.rec.wrong = append(s.rec.wrong, "the file of another disk: "+err.Error())
		}
		return s
	}
}

func byPath(s *scene, d *disk, other string) {
	s.export(d, other)
	s.beta.reload()
}

func byName(s *scene, d *disk, other string) {
	s.beta.stop()
	if err := errors.Join(os.Rename(d.path, d.path+".old"), os.Rename(other, d.path), os.Link(d.path, other)); err != nil {
		s.Fatal(err)
	}
	s.beta.start()
}

func TestOtherFile(t *testing.T) {
	prove(t,
		scenario{"path of the export changed", checks.DiskIdentity, otherFile(byPath)},
		scenario{"file exchanged while the daemon was away", checks.DiskIdentity, otherFile(byName)},
	)
}
