package daemon

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/directory"
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
	if s, err := beta.api.Fabric(t.Context()); err != nil || s.Master != "" {
		t.Errorf("beta has the master %q, %v", s.Master, err)
	}
}
