package rnbd

import (
	"errors"
	"sync/atomic"
	"testing"
)

// lookedAt is a disk that calls something when a client that opens it has been looked at, and before it is let in.
type lookedAt struct {
	*ram
	then atomic.Pointer[func()]
}

func (s *lookedAt) Fault() string {
	if f := s.then.Swap(nil); f != nil {
		(*f)()
	}
	return s.ram.Fault()
}

// Whoever opens an export that is taken out meanwhile is let in to what is there by then, and takes no token from who has
// opened that.
func TestTakenOutWhileItIsOpened(t *testing.T) {
	st := &lookedAt{ram: newRAM(1 << 20)}
	e := Export{Name: "r", Storage: st, AllowAll: true}
	srv := startServer(t, e)
	a, b := connectAs(t, "a", loopback(), srv.addr), connectAs(t, "b", loopback(), srv.addr)
	var first *Disk
	var problem error
	again := func() {
		if problem = errors.Join(srv.RemoveExport("r"), srv.AddExport(e)); problem == nil {
			first, problem = b.Open(testContext(t), "r", OpenOptions{})
		}
	}
	st.then.Store(&again)
	_, err := a.Open(testContext(t), "r", OpenOptions{})
	if problem != nil {
		t.Fatal(problem)
	}
	if !errors.Is(err, ErrInUse) {
		t.Errorf("%v: the export has a writer", err)
	}
	srv.Server.mu.Lock()
	p := srv.Server.reservations[st.Identity().Disk]
	srv.Server.mu.Unlock()
	if indexOf(p.Writers, first.Claim().Attachment) < 0 {
		t.Errorf("the writer has lost its token: %+v", p)
	}
	gone := func() { problem = srv.RemoveExport("r") }
	st.then.Store(&gone)
	if _, err := a.Open(testContext(t), "r", OpenOptions{ReadOnly: true}); problem != nil || !errors.Is(err, ErrNotFound) {
		t.Errorf("%v, %v: the export is gone", err, problem)
	}
}
