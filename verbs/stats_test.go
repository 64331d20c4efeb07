package verbs

import "testing"

// What the peer writes and reads counts as traffic of the stream, too.
func TestStatsCountWhatThePeerMoves(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		mine, theirs := a.mr(5000, LocalWrite), b.mr(5000, LocalWrite|RemoteRead|RemoteWrite)
		a.post(SendWR{Op: OpWrite, SGL: whole(mine, 5000), RemoteSTag: theirs.STag()})
		a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(mine, 3000), RemoteSTag: theirs.STag()})
		a.wantOK(WCRead)
		if s := b.qp.Stats(); s.RecvBytes != 5000 || s.SendBytes != 3000 {
			t.Errorf("the target counts %+v", s)
		}
		if s := a.qp.Stats(); s.SendBytes != 5000 || s.RecvBytes != 3000 {
			t.Errorf("the initiator counts %+v", s)
		}
	})
}
