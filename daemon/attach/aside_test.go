package attach

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rnbd"
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
	at, _, err := a.findOrAdd(t.Context(), a.cfg.Users.AsRoot(), k, frontEnd{}, place{}, "beta.example", func() {}, &suspended{})
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
	at, _, err := a.findOrAdd(t.Context(), a.cfg.Users.AsRoot(), k, frontEnd{}, place{}, "beta.example", func() {}, &suspended{})
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

// Whatever is written down while a disk comes back has under which life it writes, and by which service it was attached.
func TestDiskThatComesBackIsWrittenDownWhole(t *testing.T) {
	a, _ := newAttacher(t)
	k := Disk{Peer: "beta", Export: "disk"}
	want := Saved{Disk: k, Identity: "beta.example", Claim: rnbd.Claim{Attachment: block.ID{1}, Writer: true}, Service: "disk"}
	if _, _, err := a.findOrAdd(t.Context(), a.cfg.Users.AsRoot(), k, frontEnd{}, place{}, want.Identity, func() {}, &suspended{Saved: want}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var saving sync.WaitGroup
	saving.Go(func() {
		for {
			a.mu.Lock()
			is := want
			if at := a.disks[k]; at != nil {
				is = at.saved()
			}
			a.mu.Unlock()
			if is != want {
				t.Errorf("it is written down with the claim %+v, by service %q", is.Claim, is.Service)
				return
			}
			select {
			case <-done:
				return
			default:
			}
		}
	})
	for range 500 {
		a.Suspend(a.List(nil)...)
		a.Resume()
	}
	close(done)
	saving.Wait()
}
