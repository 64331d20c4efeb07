package local

import (
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
)

// A reload takes from a ULP that it may do everything, while one of its users makes a request. What the
// request may do is by one configuration, or ends with the ULP's rights by the old one.
func TestRequestDuringAReloadHasNoRightsThatWereTaken(t *testing.T) {
	const uid = 4711
	with := func(privileged bool) *config.Config {
		c := config.Default("")
		c.ULPs = []config.ULP{{Name: "alice", Users: []config.Account{{ID: uid, Name: "alice"}}, Privileged: privileged}}
		return c
	}
	before, after := with(true), with(false)
	now, reload := before, func() {}
	var all *Consumers
	all = NewConsumers(func() *config.Config {
		c := now
		if all.mu.TryLock() { // nothing keeps a reload from being made now, from its beginning to its end
			all.mu.Unlock()
			reload()
		}
		return c
	})
	all.Add(t.Context(), before.ULPs[0], nil)
	alice := all.Find("alice")
	reload = func() {
		reload = func() {}
		now = after
		alice.EndRequests()
		all.Remove(alice)
		all.Add(t.Context(), after.ULPs[0], nil)
	}
	who, ok := all.Admit(User{UID: uid})
	if !ok {
		t.Fatal("a user of the ULP is refused")
	}
	who.Requests.Done()
	reload() // it was kept waiting
	if who.Privileged && !who.RightsChanged() {
		t.Error("a request may do everything after that was taken from its ULP")
	}
}
