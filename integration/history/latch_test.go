package history

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing/backingtest"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// swallowed lets writeback fail while writes are acknowledged, and has a write with FUA
// be told of it. No flush may vouch for what was lost then.
func swallowed(t *testing.T, off checks.Check) *scene {
	needStorage(t)
	const (
		size  = 60 << 20 // twice of what there is room for
		large = 64       // blocks of one write
	)
	var d *disk
	s := newScene(t, off, func(s *scene) {
		thin := backingtest.ThinFile(t, size)
		t.Cleanup(s.beta.kill) // it has the file open
		d = &disk{number: 1, name: "disk", path: thin.Path}
		s.disks = append(s.disks, d)
		s.export(d, d.path)
	})
	s.attach(d)
	c := s.dial(d)
	end := s.rec.excuse(d.number, "the storage is full")
	s.rec.fault("storage full", false)
	// The kernel writes back what a write has put into its cache in one piece.
	b := uint32(large)
	for s.wait(c.start(opWrite, b, large, false)) && s.wait(c.start(opWrite, b, 1, true)) {
		if b += large; b+2*large > size/blockSize {
			t.Fatal("no write with FUA was told that the storage is full")
		}
	}
	s.wait(c.start(opFlush, 0, 0, false))
	// What the page cache still has, and the storage has not, is gone with the next boot.
	e := event{disk: d.number, call: s.rec.now()}
	s.beta.kill()
	f := must(os.Open(d.path))(t)
	if err := errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()); err != nil {
		t.Fatal(err)
	}
	e.ret = s.rec.now()
	s.rec.happened(e)
	s.beta.start()
	s.auditFrom(d, d.path, b-large)
	s.auditFrom(d, d.path, b)
	end()
	return s
}

func TestFullStorage(t *testing.T) {
	prove(t, scenario{"write with FUA swallows the error", checks.FlushLatch, swallowed})
}
