package daemon

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/block/backing/backingtest"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// Storage that could not write what it had acknowledged fails all flushes, also after it
// was given room and after a restart, until its administrator says that he has seen to it.
// Then the disk has a new life, whose flushes succeed again.
func TestRepairedExportFlushesAgain(t *testing.T) {
	const size = 60 << 20
	thin := backingtest.ThinFile(t, size)
	alpha, beta := newHost(t, ""), newHost(t, "")
	link(t, alpha, beta)
	// Its own file system may turn read-only at any time; what leads to it does not.
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.Symlink(thin.Path, path); err != nil {
		t.Fatal(err)
	}
	beta.export("disk", path, false)
	c := alpha.attach("disk")
	block := bytes.Repeat([]byte{0xa5}, 1<<20)
	for off := uint64(0); off < size; off += 1 << 20 {
		if e, _ := do(t, c, cmdWrite, off, 1<<20, block); e != 0 {
			break
		}
	}
	flushFails := func(when string) {
		t.Helper()
		if e, _ := do(t, c, cmdFlush, 0, 0, nil); e == 0 {
			t.Fatalf("%s: a flush succeeds although acknowledged writes are lost", when)
		}
	}
	flushFails("full")
	flushFails("told once")
	says(t, beta.status().Exports[0].Problem, api.CodeUnavailable, "has lost acknowledged writes", "ironwarp export repair disk")

	// A repair that cannot open the storage is none, and says so.
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is open, and it is not
		_, err := beta.api.RepairExport(t.Context(), "disk")
		says(t, err, api.CodeNotFound, "export disk", "no such file")
	}
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	beta.opened("disk")
	says(t, beta.status().Exports[0].Problem, api.CodeUnavailable, "has lost acknowledged writes", "ironwarp export repair disk")
	flushFails("a repair has failed")

	beta.stop()
	thin.Repair(t)
	beta.start()
	beta.opened("disk")
	says(t, beta.status().Exports[0].Problem, api.CodeUnavailable, "has lost acknowledged writes", "ironwarp export repair disk")
	flushFails("with room, and not repaired")
	before := beta.status().Exports[0].UUID

	e, err := beta.api.RepairExport(t.Context(), "disk")
	if err != nil || e.State != api.ExportReady || e.Problem != nil || e.UUID != before {
		t.Fatalf("%+v, %v", e, err)
	}
	flushFails("an attachment that has lost writes")
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	c = alpha.attach("disk")
	ok(t, c, cmdWrite, 4096, 4096, bytes.Repeat([]byte{0x5a}, 4096))
	ok(t, c, cmdFlush, 0, 0, nil)
	if b, err := os.ReadFile(thin.Path); err != nil || b[4096] != 0x5a {
		t.Errorf("the file has not what was flushed: %v", err)
	}
	beta.stop()
	beta.start()
	ok(t, c, cmdWrite, 0, 512, make([]byte, 512))
	ok(t, c, cmdFlush, 0, 0, nil)
	_, err = beta.api.RepairExport(t.Context(), "disk")
	says(t, err, api.CodeInvalid, "there is nothing to repair")
}

// A file on ext4 that goes on after errors is offered, with a warning.
func TestStorageThatGoesOnAfterErrorsIsWarnedOf(t *testing.T) {
	thin := backingtest.ThinFile(t, 1<<20)
	for options, warned := range map[string]bool{"errors=continue": true, "errors=remount-ro": false} {
		if err := syscall.Mount("", filepath.Dir(thin.Path), "", syscall.MS_REMOUNT, options); err != nil {
			t.Fatal(err)
		}
		h := newHost(t, "")
		e, err := h.api.AddExport(t.Context(), api.ExportSpec{Name: "disk", Path: thin.Path})
		if err != nil || e.State != api.ExportReady || (e.Warning != nil) != warned || strings.Contains(h.log.String(), "goes on after errors") != warned {
			t.Errorf("%s: %+v, %v", options, e, err)
		}
		if warned {
			says(t, e.Warning, api.CodeUnavailable, "errors=continue", "tune2fs -e remount-ro /dev/loop")
		}
		h.stop()
	}
}
