package attach

import (
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
)

// A disk whose I/O does not end has a state of its own, unless something else explains it.
func TestStalledDisk(t *testing.T) {
	k := Disk{Peer: "beta", Export: "disk"}
	session := func(s rtrs.State, paused bool) rnbd.DiskInfo {
		return rnbd.DiskInfo{Session: rtrs.ClientInfo{State: s, Paths: []rtrs.PathInfo{{State: rtrs.PathConnected, Conns: []rtrs.ConnInfo{{Paused: paused}}}}}}
	}
	failed := session(rtrs.Connected, false)
	failed.Err = rnbd.ErrNotFound
	for _, c := range []struct {
		name   string
		info   rnbd.DiskInfo
		oldest time.Duration
		want   string
	}{
		{"nothing under way", session(rtrs.Connected, false), 0, api.AttachReady},
		{"young I/O", session(rtrs.Connected, false), time.Second, api.AttachReady},
		{"old I/O", session(rtrs.Connected, false), 35 * time.Second, api.AttachStalled},
		{"old I/O, and the path is down", session(rtrs.Reconnecting, false), 35 * time.Second, api.AttachWaiting},
		{"old I/O, and the SA is away", session(rtrs.Connected, true), 35 * time.Second, api.AttachWaiting},
		{"old I/O, and the export is gone", failed, 35 * time.Second, api.AttachFailed},
	} {
		var v api.Attachment
		setState(&v, k, c.info, c.oldest)
		if v.State != c.want || v.OldestIOSeconds != c.oldest.Seconds() {
			t.Errorf("%s: %s with an I/O of %v s, want %s", c.name, v.State, v.OldestIOSeconds, c.want)
		}
		if stalled := v.State == api.AttachStalled; stalled && (v.Problem == nil || !strings.Contains(v.Problem.Message, "beta/disk is stalled: its oldest I/O has been waiting for 35s")) {
			t.Errorf("%s: %v", c.name, v.Problem)
		}
	}
}
