package attach

import (
	"context"
	"slices"
	"testing"
)

// remembers fails the test unless a disk is written down.
func remembers(t *testing.T, dir string, k Disk) {
	t.Helper()
	if have, err := Load(dir); err != nil || !slices.ContainsFunc(have, func(s Saved) bool { return s.Disk == k }) {
		t.Errorf("written down are %v, %v", have, err)
	}
}

// While its peer is being changed, which may take seconds, a disk is not attached. If the
// daemon is killed then, after another disk was written down, it comes back all the same.
func TestSuspendedDiskIsAmongThoseWrittenDown(t *testing.T) {
	a, dir := newAttacher(t)
	k := Disk{Peer: "beta", Export: "disk"}
	at, _, err := a.findOrAdd(t.Context(), a.cfg.Users.AsRoot(), k, frontEnd{}, place{}, "beta.example", func() {}, true)
	if err != nil {
		t.Fatal(err)
	}
	a.Suspend(at)
	a.SaveOrLog()
	remembers(t, dir, k)
	a.Resume()
	a.SaveOrLog()
	remembers(t, dir, k)
	if len(a.suspended) > 0 || len(a.List(nil)) != 1 {
		t.Errorf("set aside %v, attached %v", a.suspended, a.List(nil))
	}
}

// So it does if the daemon's end begins while its peer is being changed.
func TestSuspendedDiskIsForTheNextStart(t *testing.T) {
	a, dir := newAttacher(t)
	k := Disk{Peer: "beta", Export: "disk"}
	at, _, err := a.findOrAdd(t.Context(), a.cfg.Users.AsRoot(), k, frontEnd{}, place{}, "beta.example", func() {}, true)
	if err != nil {
		t.Fatal(err)
	}
	a.Suspend(at)
	ctx, end := context.WithCancel(t.Context())
	end()
	a.cfg.Context = ctx
	a.Resume()
	a.Close(true)
	remembers(t, dir, k)
}
