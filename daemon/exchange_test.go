package daemon

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// After the documented recipe, restore and reload, the restored file is what is
// offered, and no disk goes on over it that was attached before.
func TestReloadOffersTheRestoredFile(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	ok(t, c, cmdFlush, 0, 0, nil)
	if err := os.Rename(beta.image("restored.img", 1<<20), image); err != nil {
		t.Fatal(err)
	}
	if ex := beta.status().Exports[0]; ex.Problem == nil || !strings.Contains(ex.Problem.Message, "another file stands at") {
		t.Errorf("status: %+v", ex.Problem)
	}
	r, err := beta.api.Reload(t.Context())
	if err != nil || len(r.Changed) != 1 || !strings.Contains(r.Changed[0], "another file stands at "+image) {
		t.Fatalf("%+v, %v", r, err)
	}
	eventually(t, "the disk fails", func() bool {
		e, _ := do(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{2}, 512))
		return e == nbdEIO && alpha.status().Attachments[0].State == api.AttachFailed
	})
	eventually(t, "it says why", func() bool {
		do(t, c, cmdRead, 0, 512, nil)
		p := alpha.status().Attachments[0].Problem
		return p != nil && strings.Contains(p.Message, "another disk stands there")
	})
	if !strings.Contains(alpha.log.String(), "another disk stands there") {
		t.Error("the log does not say why I/O fails")
	}
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	c = alpha.attach("disk")
	if got := ok(t, c, cmdRead, 0, 512, nil); !bytes.Equal(got, make([]byte, 512)) {
		t.Error("it is not the restored file that was read")
	}
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{3}, 512))
	if b, err := os.ReadFile(image); err != nil || b[0] != 3 {
		t.Errorf("the restored file was not written to: %v", err)
	}
}

// An export that is opened again by another name of the same file is the same disk, of
// which nothing was lost: no I/O fails, neither what was under way nor what comes meanwhile.
func TestExportThatIsOpenedAgainFailsNoIO(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	names := []string{image + ".link", image}
	if err := os.Symlink(image, names[0]); err != nil {
		t.Fatal(err)
	}
	block := bytes.Repeat([]byte{1}, 4096)
	const depth = 8
	done := make(chan error, 1)
	stop := make(chan struct{})
	for i := range uint64(depth) {
		if err := c.Send(0, cmdWrite, i, i*8192, 4096, block); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		for flying := depth; flying > 0; {
			a, err := c.Receive(func(uint64) int { return 0 })
			if err == nil && a.Error != 0 {
				err = fmt.Errorf("a write: error %d", a.Error)
			}
			if err != nil {
				done <- err
				return
			}
			select {
			case <-stop:
				flying--
				continue
			default:
			}
			if err := c.Send(0, cmdWrite, a.Cookie, a.Cookie*8192, 4096, block); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for i := range 10 {
		e, err := beta.api.SetExport(t.Context(), "disk", api.ExportChange{Path: &names[i%2]})
		if err != nil || e.State != api.ExportReady {
			t.Fatalf("%+v, %v", e, err)
		}
		before := alpha.status().Attachments[0].IO.Writes
		eventually(t, "I/O goes on", func() bool { return alpha.status().Attachments[0].IO.Writes > before })
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ok(t, c, cmdFlush, 0, 0, nil)
	if at := alpha.status().Attachments[0]; at.IO.Errors != 0 || at.State != api.AttachReady {
		t.Errorf("%+v", at)
	}
	readOnly := true
	if e, err := beta.api.SetExport(t.Context(), "disk", api.ExportChange{ReadOnly: &readOnly}); err != nil || e.State != api.ExportReady || !e.ReadOnly {
		t.Errorf("%+v, %v", e, err)
	}
	if e, _ := do(t, c, cmdWrite, 0, 512, block[:512]); e != nbdEIO {
		t.Errorf("a write to an export that is read-only by now: error %d", e)
	}
}

// An attached disk grows with its file, whoever made that longer, and keeps its size over
// restarts.
func TestAttachedDiskGrowsWithItsFile(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	grows := func(to uint64) {
		t.Helper()
		eventually(t, "the attached disk has grown", func() bool { return alpha.status().Attachments[0].Size == to })
		ok(t, c, cmdWrite, to-512, 512, bytes.Repeat([]byte{7}, 512))
		ok(t, c, cmdFlush, 0, 0, nil)
		if b, err := os.ReadFile(image); err != nil || len(b) != int(to) || b[to-1] != 7 {
			t.Errorf("the file has %d bytes: %v", len(b), err)
		}
	}
	if e, err := beta.api.ResizeExport(t.Context(), "disk", api.ResizeRequest{Size: 2 << 20}); err != nil || e.Size != 2<<20 || e.Problem != nil {
		t.Fatalf("%+v, %v", e, err)
	}
	grows(2 << 20)
	if err := os.Truncate(image, 3<<20); err != nil {
		t.Fatal(err)
	}
	grows(3 << 20)
	beta.stop()
	beta.start()
	ok(t, c, cmdRead, 3<<20-512, 512, nil)
	if at := alpha.status().Attachments[0]; at.Size != 3<<20 {
		t.Errorf("%+v", at)
	}
	resize := func(size int64, shrink bool) error {
		_, err := beta.api.ResizeExport(t.Context(), "disk", api.ResizeRequest{Size: size, Shrink: shrink})
		return err
	}
	says(t, resize(1<<20, false), api.CodeInvalid, "would be lost", "--shrink")
	says(t, resize(1<<20, true), api.CodeInUse, "while peers have it attached")
	says(t, resize(3<<20+1, false), api.CodeInvalid, "multiple of 512")
	says(t, resize(0, true), api.CodeInvalid, "multiple of 512")
	says(t, resize(1<<62, false), api.CodeInvalid)
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nobody has it", func() bool { return beta.status().Exports[0].Opens == 0 })
	if err := resize(1<<20, true); err != nil {
		t.Fatal(err)
	}
	c = alpha.attach("disk")
	if at := alpha.status().Attachments[0]; at.Size != 1<<20 {
		t.Errorf("%+v", at)
	}
	if e, _ := do(t, c, cmdWrite, 1<<20, 512, make([]byte, 512)); e != nbdENOSPC {
		t.Errorf("a write behind the end: error %d", e)
	}
}

// The exporting host comes up before the storage of its export does: disks that have it
// attached wait, and say so.
func TestDiskWaitsForStorageThatComesLate(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	beta.stop()
	if err := os.Rename(image, image+".away"); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(0, cmdWrite, 7, 0, 512, bytes.Repeat([]byte{2}, 512)); err != nil {
		t.Fatal(err)
	}
	beta.start()
	eventually(t, "the disk says that it waits, and for what", func() bool {
		at := alpha.status().Attachments[0]
		return at.State == api.AttachWaiting && at.Problem != nil && strings.Contains(at.Problem.Message, "no such file") &&
			strings.Contains(at.Problem.Fix, "see to the export on beta")
	})
	if err := os.Rename(image+".away", image); err != nil {
		t.Fatal(err)
	}
	if a, err := c.Receive(func(uint64) int { return 0 }); err != nil || a.Error != 0 {
		t.Fatalf("the write that waited: %+v, %v", a, err)
	}
	if got := ok(t, c, cmdRead, 0, 512, nil); got[0] != 2 {
		t.Errorf("the block has %d", got[0])
	}
	if at := alpha.status().Attachments[0]; at.State != api.AttachReady || at.Problem != nil {
		t.Errorf("%+v", at)
	}
}
