package attach

import (
	"context"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/rnbd"
)

// ofService is a disk that is attached by the name of a service, which is found elsewhere. While the peer that it is attached
// from is asked whether it has it, asked is called.
func ofService(t *testing.T, asked func(*Attacher, Disk)) (a *Attacher, dir string, k Disk) {
	a, dir = newAttacher(t)
	k = Disk{Peer: "beta", Export: "disk"}
	at, _, err := a.findOrAdd(t.Context(), a.cfg.Users.AsRoot(), k, frontEnd{}, place{}, "beta.example", func() {}, &suspended{})
	if err != nil {
		t.Fatal(err)
	}
	at.setService("disk")
	unknown := a.cfg.Peer
	a.cfg.Peer = func(name string) (Peer, error) {
		if name == k.Peer && asked != nil {
			do := asked
			asked = nil
			do(a, k)
		}
		return unknown(name)
	}
	return a, dir, k
}

// Its user detaches a disk while it is found out whether it is to be moved: then there is nothing to be moved.
func TestDiskThatIsDetachedMeanwhileIsNotMoved(t *testing.T) {
	a, _, _ := ofService(t, func(a *Attacher, k Disk) {
		if err := a.Detach(k, true); err != nil {
			t.Error(err)
		}
	})
	if moved := a.Move(t.Context(), "disk", "gamma", "disk"); len(moved) > 0 {
		t.Errorf("moved: %v", moved)
	}
	if all := a.List(nil); len(all) > 0 {
		t.Errorf("a disk that was detached is there again: %v", all[0].Key)
	}
}

// Its peer is changed meanwhile: the disk comes back from there, and from nowhere else.
func TestDiskThatIsSuspendedMeanwhileIsNotMoved(t *testing.T) {
	a, _, k := ofService(t, func(a *Attacher, k Disk) {
		a.Suspend(a.List(From(k.Peer))...)
		a.Resume()
	})
	if moved := a.Move(t.Context(), "disk", "gamma", "disk"); len(moved) > 0 {
		t.Errorf("moved: %v", moved)
	}
	if all := a.List(nil); len(all) != 1 || all[0].Key != k {
		t.Errorf("a disk is there %d times", len(all))
	}
}

// The daemon's end begins while a disk is being moved: the next one has it from where it was to be.
func TestDiskThatIsMovedAtTheEndIsForTheNextStart(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	a, dir, _ := ofService(t, func(*Attacher, Disk) { end() })
	a.cfg.Context = ctx
	a.Move(t.Context(), "disk", "gamma", "disk")
	a.Close(true)
	remembers(t, dir, Disk{Peer: "gamma", Export: "disk"})
}

// A reload leaves a disk alone that is being moved: who moves it knows when it may be there.
func TestDiskThatIsMovedIsResumedByWhoMovesIt(t *testing.T) {
	a, dir, k := ofService(t, nil)
	at := a.List(nil)[0]
	to := at.saved()
	to.Disk, to.Claim = Disk{Peer: "gamma", Export: "disk"}, rnbd.Claim{}
	if !a.beginMove(at, to) {
		t.Fatal("it cannot be moved")
	}
	a.Resume()
	a.SaveOrLog()
	remembers(t, dir, to.Disk)
	if all := a.List(nil); len(all) > 0 {
		t.Errorf("%v is there already", all[0].Key)
	}
	if err, ok := a.Detach(k, true).(*api.Error); !ok || err.Code != api.CodeNotFound {
		t.Errorf("what it was: %v", err)
	}
	a.endMove(to, true)
	a.Resume()
	if all := a.List(nil); len(all) != 1 || all[0].Key != to.Disk {
		t.Errorf("it is there %d times", len(all))
	}
}
