package history

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing/backingtest"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// swallowed makes writeback fail while writes are acknowledged, and lets a write with
// FUA get the error. No later flush may vouch for what was lost.
func swallowed(t *testing.T, off checks.Check) *scene {
	needStorage(t)
	const (
		size  = 60 << 20 // twice what there is room for
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
	s.emptyCache(d)
	s.auditFrom(d, d.path, b-large)
	s.auditFrom(d, d.path, b)
	end()
	return s
}

// emptyCache drops what beta's page cache has and the storage has not, as a reboot
// would.
func (s *scene) emptyCache(d *disk) {
	s.Helper()
	e := event{disk: d.number, call: s.rec.now()}
	s.beta.kill()
	f := must(os.Open(d.path))(s)
	if err := errors.Join(unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED), f.Close()); err != nil {
		s.Fatal(err)
	}
	e.ret = s.rec.now()
	s.rec.happened(e)
	s.beta.start()
}

// dying kills a daemon whose flush hangs and then fails: nobody gets that error. No
// flush that the next daemon carries out may vouch for what was lost.
func dying(t *testing.T, off checks.Check) *scene {
	needStorage(t)
	const (
		size  = 40 << 20 // twice what there is room for
		large = 64       // blocks of one write
	)
	var d *disk
	var freeze, thaw func()
	s := newScene(t, off, func(s *scene) {
		d = &disk{number: 1, name: "disk"}
		d.path, freeze, thaw = backingtest.HangingFile(t, size)
		t.Cleanup(func() { thaw(); s.beta.kill() }) // it has the file open, and does not end in a write that hangs
		s.disks = append(s.disks, d)
		s.export(d, d.path)
	})
	s.attach(d)
	c := s.dial(d)
	end := s.rec.excuse(d.number, "the storage is full")
	s.rec.fault("exporting daemon killed while it flushes", true)
	const blocks = size / blockSize
	for b := uint32(0); b < blocks; b += large {
		s.must(c.start(opWrite, b, large, false))
	}
	freeze()
	flush := c.start(opFlush, 0, 0, false)
	until(t, "the daemon flushes", func() bool { return s.beta.flushes() || flush.ended() })
	if flush.ended() {
		t.Skip("somebody had this machine's data written just now (sync), and nothing was left that a flush could wait for")
	}
	if err := s.beta.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	thaw()
	s.beta.kill()
	s.beta.start()
	s.wait(flush) // may fail
	s.wait(c.start(opFlush, 0, 0, false))
	s.emptyCache(d)
	for b := uint32(0); b+diskBlocks <= blocks; b += blocks / 8 {
		s.auditFrom(d, d.path, b)
	}
	end()
	return s
}

// flushes reports whether a thread of the daemon is in fdatasync.
func (p *proc) flushes() bool {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.cmd.Process.Pid))
	if err != nil {
		p.t.Fatal(err)
	}
	return slices.ContainsFunc(threads, func(file string) bool {
		call, err := os.ReadFile(file) // the thread may have ended
		return err == nil && strings.HasPrefix(string(call), fmt.Sprintf("%d ", unix.SYS_FDATASYNC))
	})
}

func TestDaemonDiesInAFlush(t *testing.T) {
	prove(t, scenario{"the daemon dies while an error is reported to it", checks.KilledInSync, dying})
}

func TestFullStorage(t *testing.T) {
	prove(t, scenario{"write with FUA swallows the error", checks.FlushLatch, swallowed})
}
