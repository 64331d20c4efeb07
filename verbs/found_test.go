package verbs

import "testing"

// What the model test and the fuzzers have found, each in its smallest form.

func TestAtomicsMoveNoPayload(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	llps[0].pair(t, a, b)
	word := b.mr(8, LocalWrite|RemoteAtomic)
	a.post(SendWR{Op: OpFetchAdd, Flags: Signaled, SGL: whole(a.mr(8, LocalWrite), 8), RemoteSTag: word.STag()})
	a.wantOK(WCAtomic)
	if s := a.qp.Stats(); s.SendOps != 1 || s.SendBytes != 0 || s.RecvBytes != 0 {
		t.Errorf("an Atomic counts as %+v", s)
	}
}
