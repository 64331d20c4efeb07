package daemon

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
)

func TestRemoteDiskReadsWhatWasWritten(t *testing.T) {
	alpha, _, image := pair(t, 4<<20)
	c := alpha.attach("disk")
	if c.Size != 4<<20 {
		t.Errorf("size %d", c.Size)
	}
	data := bytes.Repeat([]byte("ironwarp"), 128<<10)
	ok(t, c, cmdWrite, 4096, uint32(len(data)), data)
	ok(t, c, cmdFlush, 0, 0, nil)
	if got := ok(t, c, cmdRead, 4096, uint32(len(data)), nil); !bytes.Equal(got, data) {
		t.Error("read back differs")
	}
	onDisk, err := os.ReadFile(image)
	if err != nil || !bytes.Equal(onDisk[4096:4096+len(data)], data) {
		t.Errorf("the exported file differs: %v", err)
	}
	ok(t, c, cmdZeroes, 4096, 8192, nil)
	ok(t, c, cmdTrim, 16384, 4096, nil)
	if got := ok(t, c, cmdRead, 4096, 8192, nil); !bytes.Equal(got, make([]byte, 8192)) {
		t.Error("zeroes are none")
	}
	eventually(t, "the counters of both sides show the I/O", func() bool {
		at, ex := alpha.status().Attachments[0], alphaPeer(alpha)
		return at.IO.WriteBytes >= uint64(len(data)) && at.State == api.AttachReady && ex.Streams > 0
	})
}

func alphaPeer(h *host) api.Peer { return h.status().Peers[0] }

func TestReadOnlyExportRefusesWrites(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	beta.export("ro", beta.image("ro.img", 1<<20), true)
	c := alpha.attach("ro")
	if e, _ := do(t, c, cmdWrite, 0, 512, make([]byte, 512)); e != nbdEPERM {
		t.Errorf("error %d, want EPERM", e)
	}
	ok(t, c, cmdRead, 0, 512, nil)
}

func TestFullDiskIsENOSPCForOneRequest(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small tmpfs needs root")
	}
	alpha, beta, _ := pair(t, 1<<20)
	small := filepath.Join(beta.dir, "small")
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(small, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	beta.export("full", beta.image("small/full.img", 1<<20), false)
	c := alpha.attach("full")
	block := bytes.Repeat([]byte{1}, 128<<10)
	var last uint32
	for off := uint64(0); off < 1<<20 && last == 0; off += uint64(len(block)) {
		last, _ = do(t, c, cmdWrite, off, uint32(len(block)), block)
	}
	if last != nbdENOSPC {
		t.Errorf("error %d, want ENOSPC", last)
	}
	ok(t, c, cmdRead, 0, 4096, nil)
}

func TestShrunkFileIsEIOBeyondItsEndAndShowsInStatus(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	if err := os.Truncate(image, 512<<10); err != nil {
		t.Fatal(err)
	}
	if e, _ := do(t, c, cmdRead, 768<<10, 4096, nil); e != nbdEIO {
		t.Errorf("read beyond the end: error %d, want EIO", e)
	}
	ok(t, c, cmdRead, 0, 4096, nil)
	ex := beta.status().Exports[0]
	if ex.State != api.ExportProblem || ex.Problem == nil {
		t.Fatalf("status: %+v", ex)
	}
	says(t, ex.Problem, api.CodeUnavailable, "has shrunk from 1048576 to 524288 bytes", "truncate -s 1048576")
}

func TestRemovedExportFailsIOAndComesBack(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	beta.export("other", beta.image("other.img", 1<<20), false)
	c, other := alpha.attach("disk"), alpha.attach("other")
	says(t, beta.api.RemoveExport(t.Context(), "disk", false), api.CodeInUse, "peer alpha has it attached", "--force")
	ok(t, c, cmdRead, 0, 512, nil)
	if err := beta.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	if e, _ := do(t, c, cmdRead, 0, 512, nil); e != nbdEIO {
		t.Errorf("error %d, want EIO", e)
	}
	ok(t, other, cmdRead, 0, 512, nil)
	eventually(t, "the attachment shows that it has failed", func() bool { return alpha.status().Attachments[0].State == api.AttachFailed })
	beta.export("disk", image, false)
	eventually(t, "I/O works again", func() bool {
		e, _ := do(t, c, cmdRead, 0, 512, nil)
		return e == 0
	})
}

func TestPeerThatIsNoLongerAllowedLosesTheDisk(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	beta.write("exports.d/disk.yaml", "name: disk\npath: "+image+"\n")
	if _, err := beta.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "I/O fails", func() bool {
		e, _ := do(t, c, cmdRead, 0, 512, nil)
		return e == nbdEIO
	})
}

func TestAttachRefusals(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	if _, err := beta.api.AddExport(t.Context(), api.ExportSpec{Name: "private", Path: beta.image("p.img", 4096)}); err != nil {
		t.Fatal(err)
	}
	attach := func(peer, export string) error {
		_, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: peer, Export: export}, nil)
		return err
	}
	says(t, attach("gamma", "disk"), api.CodeNotFound, `unknown peer "gamma"`, "configured peers: beta", "ironwarp peer add")
	says(t, attach("beta", "none"), api.CodeNotFound, "has no export of that name", "ironwarp ls beta")
	says(t, attach("beta", "private"), api.CodeForbidden, "does not allow it to this host", "--allow")
	says(t, attach("beta", "../x"), api.CodeInvalid, "not a valid name")
	says(t, alpha.api.Detach(t.Context(), "beta", "none", false), api.CodeNotFound, "not attached", "ironwarp ls")
	if list := alpha.status().Attachments; len(list) != 0 {
		t.Errorf("left behind: %+v", list)
	}
	offers, err := alpha.api.Offers(t.Context(), "beta")
	if err != nil || len(offers) != 1 || offers[0].Name != "disk" {
		t.Errorf("offers %+v, %v", offers, err)
	}
	eventually(t, "the session that nobody uses is closed", func() bool { return len(alpha.status().Sessions) == 0 })
}

func TestAttachGivesUpWhenThePeerIsNotThere(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	beta.stop()
	_, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil)
	says(t, err, api.CodeUnavailable, "cannot attach beta/disk", "connection refused", "is the peer's daemon running")
	if list := alpha.status().Attachments; len(list) != 0 {
		t.Errorf("left behind: %+v", list)
	}
}

func TestAttachingTwiceGivesOneDisk(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			at, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil)
			if err != nil || at.State != api.AttachReady || at.Size != 1<<20 {
				t.Errorf("%+v, %v", at, err)
			}
		})
	}
	wg.Wait()
	if st := alpha.status(); len(st.Attachments) != 1 || len(st.Sessions) != 1 {
		t.Errorf("%d attachments, %d sessions", len(st.Attachments), len(st.Sessions))
	}
}

func TestDetachWithClientsNeedsForce(t *testing.T) {
	alpha, _, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	says(t, alpha.api.Detach(t.Context(), "beta", "disk", false), api.CodeInUse, "1 NBD clients are connected", "--force")
	ok(t, c, cmdRead, 0, 512, nil)
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(0, cmdRead, 0, 512, nil); err == nil {
		t.Error("the client is still served")
	}
	if st := alpha.status(); len(st.Attachments)+len(st.Sessions) != 0 {
		t.Errorf("left behind: %+v", st)
	}
}

func TestDisksComeBackWithTheDaemon(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	data := bytes.Repeat([]byte{7}, 512)
	ok(t, c, cmdWrite, 512, 512, data)
	alpha.stop()
	if _, err := os.Stat(filepath.Join(alpha.dir, "run/nbd/beta-disk.sock")); err == nil {
		t.Error("the NBD socket is still there")
	}
	beta.stop()
	alpha.start()
	eventually(t, "the disk waits and says for what", func() bool {
		at := alpha.status().Attachments
		return len(at) == 1 && at[0].State == api.AttachConnecting && at[0].Problem != nil
	})
	beta.start()
	eventually(t, "the disk is ready", func() bool { return alpha.status().Attachments[0].State == api.AttachReady })
	if got := ok(t, alpha.nbd("disk"), cmdRead, 512, 512, nil); !bytes.Equal(got, data) {
		t.Error("the data differs")
	}
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	alpha.stop()
	alpha.start()
	if at := alpha.status().Attachments; len(at) != 0 {
		t.Errorf("a detached disk came back: %+v", at)
	}
}

func TestIOWaitsWhileTheOtherDaemonRestarts(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	data := bytes.Repeat([]byte{9}, 4096)
	ok(t, c, cmdWrite, 0, 4096, data)
	beta.stop()
	done := make(chan []byte)
	go func() {
		r, err := c.Do(0, cmdRead, 0, 4096, nil)
		if err != nil || r.Error != 0 {
			t.Errorf("%+v, %v", r, err)
			r.Data = nil
		}
		done <- r.Data
	}()
	eventually(t, "the disk shows that it waits", func() bool { return alpha.status().Attachments[0].State == api.AttachWaiting })
	select {
	case <-done:
		t.Fatal("I/O ended without its server")
	default:
	}
	beta.start()
	if got := <-done; !bytes.Equal(got, data) {
		t.Error("the data differs")
	}
	if n := alpha.status().Sessions[0].Reconnects; n != 1 {
		t.Errorf("%d reconnects", n)
	}
}

func TestStateThatCannotBeWrittenIsToldAndTriedAgain(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	beta.export("other", beta.image("other.img", 1<<20), false)
	alpha.attach("other")
	// A directory in the file's place is as good as a full disk.
	file := filepath.Join(alpha.dir, "state", "attachments.json")
	if err := errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	err := alpha.api.Detach(t.Context(), "beta", "other", true)
	says(t, err, api.CodeUnavailable, "beta/other is detached, but would come back", "attachments.json", "make room in", "keeps trying")
	_, err = alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "other"}, nil)
	says(t, err, api.CodeUnavailable, "cannot attach beta/other: cannot write down which disks are attached", "make room in")
	if list := alpha.status().Attachments; len(list) != 1 || list[0].Export != "disk" {
		t.Errorf("attached: %+v", list)
	}
	ok(t, c, cmdRead, 0, 512, nil)
	if err := os.RemoveAll(file); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			b, err := os.ReadFile(file)
			t.Logf("%s: %s %v", file, b, err)
		}
	})
	eventually(t, "the state is written", func() bool {
		b, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(b), `"disk"`) && !strings.Contains(string(b), `"other"`)
	})
}
