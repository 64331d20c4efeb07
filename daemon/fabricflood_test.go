package daemon

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/directory"
	"github.com/ironwarp/ironwarp/internal/otheruser"
)

// A directory that says without end that hosts have come does not have the host look for its disks without end, nor fill its log.
func TestDirectoryThatNeverEndsToTell(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta", "gamma")
	beta, gamma := hosts["beta"], hosts["gamma"]
	beta.exportTo(api.ExportSpec{Name: "disk", Path: beta.image("disk.img", 1<<20), Allow: []string{"gamma"}})
	eventually(t, "the directory has the disk", func() bool { return strings.Join(gamma.services("disk"), " ") == "beta:disk" })
	if _, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "disk"}, nil); err != nil {
		t.Fatal(err)
	}
	before, lines := runtime.NumGoroutine(), strings.Count(gamma.log.String(), "\n")
	most := 0
	for range 10_000 {
		gamma.d.onFabricEvent(directory.Event{Kind: directory.HostUp, From: directory.GUIDOf("127.0.1.1"), Host: directory.GUIDOf("127.0.1.2")})
		most = max(most, runtime.NumGoroutine())
	}
	if most > before+50 {
		t.Errorf("%d goroutines, %d before", most, before)
	}
	if n := strings.Count(gamma.log.String(), "msg=fabric event=\"host up\""); n > linesBurst+50 {
		t.Errorf("%d lines of the log, %d before", n, lines)
	}
	if at, err := gamma.api.Attachments(t.Context()); err != nil || len(at) != 1 || at[0].Name() != "beta/disk" {
		t.Errorf("attached: %+v, %v", at, err)
	}
}

// Who is not authenticated is in no directory, whoever it says that it is.
func TestPlaintextPeerIsInNoDirectory(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta")
	alpha, beta := hosts["alpha"], hosts["beta"]
	eventually(t, "beta is a member", func() bool {
		s, err := beta.api.Fabric(t.Context())
		return err == nil && s.Master == "127.0.1.1"
	})
	alpha.write("peers.d/beta.yaml", fmt.Sprintf("name: beta\naddress: 127.0.1.2\nlocal_address: 127.0.1.1\nport: %d\ninsecure_plaintext: true\n", beta.port))
	if _, err := alpha.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "alpha refuses beta's stream", func() bool {
		return strings.Contains(alpha.log.String(), "beta wants to be in the directory, and nothing proves that it is")
	})
	eventually(t, "beta has no master", func() bool {
		s, err := beta.api.Fabric(t.Context())
		return err == nil && s.Master == ""
	})
}

// A user learns of no service that it may not attach, asks the fabric nothing else, and has nothing set.
func TestULPInAFabric(t *testing.T) {
	otheruser.Need(t)
	hosts := newFabric(t, "alpha", "beta", "gamma", "delta")
	beta, gamma, delta := hosts["beta"], hosts["gamma"], hosts["delta"]
	for _, name := range []string{"open", "secret"} {
		beta.exportTo(api.ExportSpec{Name: name, Path: beta.image(name+".img", 1<<20), Allow: []string{"gamma"}})
	}
	delta.exportTo(api.ExportSpec{Name: "far", Path: delta.image("far.img", 1<<20), Allow: []string{"gamma"}})
	main, err := os.ReadFile(gamma.conf)
	if err != nil {
		t.Fatal(err)
	}
	gamma.write("ironwarp.yaml", string(main)+fmt.Sprintf("ulps:\n  - {name: alice, users: [%d], exports: [beta/open]}\n", alice))
	if err := os.Chmod(gamma.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := gamma.api.RemovePeer(t.Context(), "delta", true); err != nil {
		t.Fatal(err)
	}
	if _, err := gamma.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the directory has all", func() bool {
		return strings.Join(gamma.services("open"), " ") == "beta:open" && strings.Join(gamma.services("secret"), " ") == "beta:secret" && len(gamma.services("far")) == 1
	})
	c := gamma.as(alice)
	eventually(t, "the directory knows the user", func() bool {
		_, err := c.Attach(t.Context(), api.AttachRequest{Service: "none"}, nil)
		return err != nil && strings.Contains(err.Error(), "no export none")
	})
	for _, name := range []string{"secret", "far", "none"} {
		_, err := c.Attach(t.Context(), api.AttachRequest{Service: name}, nil)
		says(t, err, api.CodeNotFound, "the directory has no export "+name)
	}
	for what, err := range map[string]error{
		"status": errOf(c.Fabric(t.Context())), "services": errOf(c.FabricServices(t.Context(), "")), "paths": errOf(c.FabricPaths(t.Context())),
		"subscriptions": errOf(c.FabricSubscriptions(t.Context())), "guids": errOf(c.FabricGUIDs(t.Context())), "drops": errOf(c.FabricDrops(t.Context())),
	} {
		if err == nil {
			t.Errorf("a user is told %s", what)
			continue
		}
		says(t, err, api.CodeForbidden, "ULP alice may not ask for")
	}
	if at, err := c.Attach(t.Context(), api.AttachRequest{Service: "open"}, nil); err != nil || at.Name() != "beta/open" {
		t.Errorf("%+v, %v", at, err)
	}
}

// A directory that says that a disk is elsewhere has nobody read or write another disk than he had: it stays while it is to be had where it was, and
// while it is used.
func TestLiesAboutWhereADiskIs(t *testing.T) {
	hosts := newFabric(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := hosts["alpha"], hosts["beta"], hosts["gamma"]
	beta.exportTo(api.ExportSpec{Name: "disk", Path: beta.image("disk.img", 1<<20), Allow: []string{"gamma"}})
	eventually(t, "the directory has the disk", func() bool { return strings.Join(gamma.services("disk"), " ") == "beta:disk" })
	if _, err := gamma.api.Attach(t.Context(), api.AttachRequest{Service: "disk"}, nil); err != nil {
		t.Fatal(err)
	}
	alpha.exportTo(api.ExportSpec{Name: "disk", Path: alpha.image("disk.img", 1<<20), Allow: []string{"gamma"}})
	stays := func(when string) {
		t.Helper()
		if moved := gamma.d.disks.Move(t.Context(), "disk", "alpha", "disk"); len(moved) > 0 {
			t.Errorf("%s it moves to %v", when, moved)
		}
		if at, err := gamma.api.Attachments(t.Context()); err != nil || len(at) != 1 || at[0].Name() != "beta/disk" {
			t.Errorf("%s there is %+v, %v", when, at, err)
		}
	}
	stays("while it is offered where it was")
	used := gamma.nbd("disk")
	defer used.Conn.Close()
	written := bytes.Repeat([]byte{7}, 512)
	ok(t, used, cmdWrite, 0, 512, written)
	if err := beta.api.RemoveExport(t.Context(), "disk", true); err != nil {
		t.Fatal(err)
	}
	stays("while it is used")
	if image, err := os.ReadFile(filepath.Join(alpha.dir, "disk.img")); err != nil || bytes.Contains(image, written) {
		t.Errorf("what was written to one disk is on another: %v", err)
	}
}
