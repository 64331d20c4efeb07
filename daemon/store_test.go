package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// changeRecord changes the record of a file that was exported.
func changeRecord(t *testing.T, path, from, to string) {
	t.Helper()
	const attr = "user.ironwarp.disk"
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(path, attr, buf)
	if err != nil {
		t.Skipf("the file system has no attributes: %v", err)
	}
	if err := unix.Setxattr(path, attr, []byte(strings.Replace(string(buf[:n]), from, to, 1)), 0); err != nil {
		t.Fatal(err)
	}
}

// losePower makes an exported file what it is to a daemon that starts after its host
// lost power: the record is of another boot. What the file has does not matter here.
func losePower(t *testing.T, path string) {
	t.Helper()
	changeRecord(t, path, `"open":false`, `"open":true,"cache":"another boot"`)
}

// An NBD client that comes back after a restart of the attaching daemon must not hear
// that its writes are durable when the exporting host has lost them meanwhile.
func TestDiskWithLostWritesStaysAwayAfterARestart(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	ok(t, alpha.attach("disk"), cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	alpha.stop()
	beta.stop()
	losePower(t, image)
	beta.start()
	alpha.start()
	eventually(t, "the disk says why it is away", func() bool {
		at := alpha.status().Attachments[0]
		return at.Problem != nil && strings.Contains(at.Problem.Message, "they may be lost")
	})
	if _, err := os.Stat(filepath.Join(alpha.dir, "run/nbd/beta-disk.sock")); err == nil {
		t.Error("NBD clients are served")
	}
	// Again: what is lost stays so.
	alpha.stop()
	alpha.start()
	eventually(t, "the disk says why it is away after another restart", func() bool {
		at := alpha.status().Attachments[0]
		return at.Problem != nil && strings.Contains(at.Problem.Message, "they may be lost") && strings.Contains(at.Problem.Fix, "ironwarp attach beta/disk")
	})
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	ok(t, alpha.attach("disk"), cmdFlush, 0, 0, nil)
}

func TestDiskWithNothingToFlushOutlivesAPowerCutAndARestart(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	ok(t, c, cmdFlush, 0, 0, nil)
	alpha.stop()
	beta.stop()
	losePower(t, image)
	beta.start()
	alpha.start()
	eventually(t, "the disk is ready", func() bool { return alpha.status().Attachments[0].State == api.AttachReady })
	ok(t, alpha.nbd("disk"), cmdFlush, 0, 0, nil)
}

// So does one that stays down meanwhile, since its peer is another one for a while.
func TestOrphanWithNothingToFlushOutlivesAPowerCut(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	ok(t, c, cmdFlush, 0, 0, nil)
	file := filepath.Join(alpha.dir, "peers.d/beta.yaml")
	declared, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	another := fmt.Sprintf("name: beta\naddress: 127.0.0.9\nport: %d\nprotection: loopback\n", beta.port)
	for _, now := range []string{another, string(declared)} {
		alpha.write("peers.d/beta.yaml", now)
		if _, err := alpha.api.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		if now == another {
			alpha.orphan("attached from the peer with the identity")
			eventually(t, "its end is known", func() bool { return strings.Contains(alpha.log.String(), "the NBD socket of a disk is closed") })
			beta.stop()
			losePower(t, image)
			beta.start()
		}
	}
	eventually(t, "the disk is ready", alpha.isReady("beta/disk"))
}

func TestPowerCutFailsTheDiskAndSaysWhy(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	beta.stop()
	losePower(t, image)
	beta.start()
	for range 2 {
		if e, _ := do(t, c, cmdFlush, 0, 0, nil); e != nbdEIO {
			t.Errorf("flush: error %d, want EIO", e)
		}
	}
	at := alpha.status().Attachments[0]
	if at.State != api.AttachFailed {
		t.Fatalf("%+v", at)
	}
	says(t, at.Problem, api.CodeUnavailable, "they may be lost", "ironwarp detach --force beta/disk", "check the file system")
	if !strings.Contains(alpha.log.String(), "they may be lost") {
		t.Error("the log does not say why")
	}
}

func TestOrderlyRestartOfTheServerKeepsWhatWasNotFlushed(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	for range 2 {
		ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
		beta.stop()
		beta.start()
		ok(t, c, cmdFlush, 0, 0, nil)
	}
}

func TestWriterOfAnotherHostIsNamed(t *testing.T) {
	alpha, beta, image := pair(t, 1<<20)
	gamma := newHost(t, "")
	if _, err := gamma.api.AddPeer(t.Context(), api.PeerSpec{Name: "beta", Address: "127.0.0.1", Port: beta.port, Protection: "loopback"}); err != nil {
		t.Fatal(err)
	}
	ok(t, alpha.attach("disk"), cmdWrite, 0, 512, make([]byte, 512))
	_, err := gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil)
	says(t, err, api.CodeInUse, "one writer at a time, or two during a migration, and there is ", "--writers shared")
	if err := beta.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	beta.offer(api.ExportSpec{Name: "disk", Path: image, Writers: "shared"})
	ok(t, gamma.attach("disk"), cmdWrite, 0, 512, make([]byte, 512))
}

// threeHosts are pair and gamma, which beta lets attach the same disk.
func threeHosts(t *testing.T) (alpha, beta, gamma *host) {
	t.Helper()
	alpha, beta, _ = pair(t, 1<<20)
	gamma = newHost(t, "")
	for _, x := range []struct {
		on   *host
		spec api.PeerSpec
	}{
		{gamma, api.PeerSpec{Name: "beta", Address: "127.0.0.1", LocalAddress: "127.0.0.2", Port: beta.port, Protection: "loopback"}},
		{beta, api.PeerSpec{Name: "gamma", Address: "127.0.0.2", Port: gamma.port, Protection: "loopback"}},
	} {
		if _, err := x.on.api.AddPeer(t.Context(), x.spec); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := beta.api.SetExport(t.Context(), "disk", api.ExportChange{Allow: []string{"gamma"}}); err != nil {
		t.Fatal(err)
	}
	return alpha, beta, gamma
}

// A host that was away comes back to a disk that another has written to meanwhile, or may
// have: what its file system remembers is of before.
func TestOvertakenDiskStaysAwayUntilItIsAttachedAnew(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(beta, gamma *host)
		words     string
	}{
		"another host wrote and left": {func(_, gamma *host) {
			ok(t, gamma.attach("disk"), cmdWrite, 0, 512, bytes.Repeat([]byte{2}, 512))
			if err := gamma.api.Detach(t.Context(), "beta", "disk", true); err != nil {
				t.Fatal(err)
			}
		}, "by whom: loopback:127.0.0.2)"},
		"writers.json was lost": {func(beta, _ *host) {
			beta.stop()
			if err := os.Remove(filepath.Join(beta.dir, "state/writers.json")); err != nil {
				t.Fatal(err)
			}
			beta.start()
		}, "by whom: no longer known there)"},
	} {
		t.Run(name, func(t *testing.T) {
			alpha, beta, gamma := threeHosts(t)
			ok(t, alpha.attach("disk"), cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
			alpha.stop()
			c.meanwhile(beta, gamma)
			for range 2 { // for good
				beta.stop()
				beta.start()
				alpha.start()
				eventually(t, "the disk says why it is away", func() bool {
					p := alpha.status().Attachments[0].Problem
					return p != nil && strings.Contains(p.Message, "opened for writing elsewhere") && strings.Contains(p.Message, c.words) && strings.Contains(p.Fix, "ironwarp attach beta/disk")
				})
				if _, err := os.Stat(filepath.Join(alpha.dir, "run/nbd/beta-disk.sock")); err == nil {
					t.Error("NBD clients are served")
				}
				alpha.stop()
			}
			alpha.start()
			if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
				t.Fatal(err)
			}
			ok(t, alpha.attach("disk"), cmdWrite, 0, 512, bytes.Repeat([]byte{3}, 512))
			alpha.stop()
			alpha.start()
			eventually(t, "the disk is ready after a restart with nobody between", alpha.isReady("beta/disk"))
		})
	}
}

// The exporting daemon restarts while a disk is attached: whoever writes to it keeps his
// place against other hosts, also if the daemon was killed or his own is away. A detach
// frees it for good.
func TestWriterKeepsItsPlaceOverARestartOfTheServer(t *testing.T) {
	alpha, beta, gamma := threeHosts(t)
	refused := func(when string) {
		t.Helper()
		_, err := gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil)
		says(t, err, api.CodeInUse, "one writer at a time", "127.0.0.1")
		if t.Failed() {
			t.Fatal(when)
		}
	}
	c := alpha.attach("disk")
	ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{1}, 512))
	refused("while it is attached")
	// What a daemon that was killed leaves is what stands in the file now.
	placed, err := os.ReadFile(filepath.Join(beta.dir, "state/writers.json"))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(beta.dir, "state/writers.json")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
	for range 2 {
		beta.stop()
		if now, err := os.ReadFile(filepath.Join(beta.dir, "state/writers.json")); err != nil || !bytes.Equal(now, placed) {
			t.Errorf("an orderly end leaves %s, %v; a killed daemon %s", now, err, placed)
		}
		beta.start()
		beta.opened("disk")
		refused("after a restart")
		ok(t, c, cmdWrite, 512, 512, bytes.Repeat([]byte{2}, 512))
		ok(t, c, cmdFlush, 0, 0, nil)
	}
	// The attaching daemon is away as well.
	beta.stop()
	alpha.stop()
	beta.start()
	beta.opened("disk")
	refused("while its daemon is away")
	alpha.start()
	eventually(t, "the disk is ready", func() bool { return alpha.status().Attachments[0].State == api.AttachReady })
	ok(t, alpha.nbd("disk"), cmdFlush, 0, 0, nil)
	if err := alpha.api.Detach(t.Context(), "beta", "disk", true); err != nil {
		t.Fatal(err)
	}
	beta.stop()
	beta.start()
	beta.opened("disk")
	if _, err := gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil); err != nil {
		t.Errorf("after a detach: %v", err)
	}
}

func TestExportOfPartOfASectorIsRefused(t *testing.T) {
	h := newHost(t, "")
	for _, n := range []int{300, 1_000_001} {
		_, err := h.api.AddExport(t.Context(), api.ExportSpec{Name: "odd", Path: h.image("odd.img", n)})
		says(t, err, api.CodeInvalid, "no multiple of 512 bytes", "truncate")
	}
	_, err := h.api.RepairExport(t.Context(), "odd")
	says(t, err, api.CodeNotFound)
}

// Two files of one UUID, as a file system and its clone have them: one of them only is
// offered, and whoever is not is told of the other.
func TestDiskUnderTwoNamesIsOfferedOnce(t *testing.T) {
	h := newHost(t, "")
	uuids := map[string]string{}
	for _, name := range []string{"one", "two"} {
		e, err := h.api.AddExport(t.Context(), api.ExportSpec{Name: name, Path: h.image(name+".img", 1<<20)})
		if err != nil || e.UUID == "" {
			t.Fatalf("%+v, %v", e, err)
		}
		uuids[name] = e.UUID
	}
	h.stop()
	two := filepath.Join(h.dir, "two.img")
	changeRecord(t, two, uuids["two"], uuids["one"])
	h.start()
	problems := func() (n int, ready, other api.Export) {
		for _, e := range h.status().Exports {
			if e.State == api.ExportReady {
				ready = e
			} else {
				n, other = n+1, e
			}
		}
		return n, ready, other
	}
	eventually(t, "the storage of both has answered", func() bool {
		return !slices.ContainsFunc(h.status().Exports, func(e api.Export) bool {
			return e.State == api.ExportOpening || e.Problem != nil && strings.Contains(e.Problem.Message, "may hang")
		})
	})
	n, ready, other := problems()
	if n != 1 {
		t.Fatalf("%d of two exports with one UUID are not offered", n)
	}
	says(t, other.Problem, api.CodeUnavailable, "export "+other.Name+":", other.Path, ready.Path+" of export "+ready.Name, uuids["one"], "they are one disk")
	if !strings.Contains(other.Problem.Fix, "cp FILE") {
		t.Error(other.Problem.Fix)
	}
	// What the fix says: a copy is a disk of its own, which the log tells.
	data, err := os.ReadFile(other.Path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(other.Path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other.Path+".new", other.Path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "both are offered", func() bool { n, _, _ := problems(); return n == 0 })
}

// A copy that took the record along is a disk of its own, and the log says so.
func TestCopyOfADiskIsNamedInTheLog(t *testing.T) {
	h := newHost(t, "")
	e, err := h.api.AddExport(t.Context(), api.ExportSpec{Name: "one", Path: h.image("one.img", 1<<20)})
	if err != nil {
		t.Fatal(err)
	}
	copied := h.image("copy.img", 1<<20)
	buf := make([]byte, 4096)
	n, err := unix.Getxattr(e.Path, "user.ironwarp.disk", buf)
	if err != nil {
		t.Skipf("the file system has no attributes: %v", err)
	}
	if err := unix.Setxattr(copied, "user.ironwarp.disk", buf[:n], 0); err != nil {
		t.Fatal(err)
	}
	h.write("exports.d/copy.yaml", "name: copy\npath: "+copied+"\n")
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.opened("copy")
	if c := h.status().Exports[0]; c.Name != "copy" || c.State != api.ExportReady || c.UUID == e.UUID {
		t.Errorf("%+v", c)
	}
	if log := h.log.String(); !strings.Contains(log, "is a copy of another disk") || !strings.Contains(log, "copy_of="+e.UUID) {
		t.Error("the log does not say that it is a copy")
	}
}

// Whoever has an export attached goes on when others may write to it, too.
func TestWritersAreChangedWithoutCuttingOff(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	gamma := newHost(t, "")
	if _, err := gamma.api.AddPeer(t.Context(), api.PeerSpec{Name: "beta", Address: "127.0.0.1", Port: beta.port, Protection: "loopback"}); err != nil {
		t.Fatal(err)
	}
	c := alpha.attach("disk")
	for _, writers := range []string{"shared", "one"} {
		e, err := beta.api.SetExport(t.Context(), "disk", api.ExportChange{Writers: &writers})
		if err != nil || e.State != api.ExportReady {
			t.Fatalf("%+v, %v", e, err)
		}
		ok(t, c, cmdWrite, 0, 512, make([]byte, 512))
		_, err = gamma.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: "disk"}, nil)
		if writers == "shared" {
			if err != nil {
				t.Fatal(err)
			}
			if err := gamma.api.Detach(t.Context(), "beta", "disk", true); err != nil {
				t.Fatal(err)
			}
			continue
		}
		says(t, err, api.CodeInUse, "one writer at a time")
	}
	if n := alpha.status().Attachments[0].IO.Errors; n != 0 {
		t.Errorf("%d errors of the disk that was attached", n)
	}
	some := "some"
	_, err := beta.api.SetExport(t.Context(), "disk", api.ExportChange{Writers: &some})
	says(t, err, api.CodeInvalid, "writers", "some")
}
