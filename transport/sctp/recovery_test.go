package sctp

import "testing"

// RFC 9260 section 7.2.4: what three later packets have overtaken is lost, also where
// numbers wrap.
func TestThreeLaterPacketsMakeALoss(t *testing.T) {
	for _, first := range []uint32{1, 1<<32 - 2} {
		r := recovery{top: first - 1}
		for behind := range uint32(5) {
			r.arrived(first + behind)
			if got := r.overtaken(first); got != (behind >= 3) {
				t.Errorf("%d packets behind %d: lost is %v", behind, first, got)
			}
		}
		if r.arrived(first); r.overtaken(first+3) || !r.overtaken(first+1) {
			t.Error("a packet that arrived late has changed what is lost")
		}
	}
}

// RFC 9260 section 7.2.4: Fast Recovery is entered once for all that is outstanding, and
// left when that is acknowledged.
func TestFastRecoveryIsEnteredOnce(t *testing.T) {
	var r recovery
	exit := uint32(5)
	if !r.enter(exit) || r.enter(exit+10) {
		t.Error("it was entered twice, or not at all")
	}
	if r.leave(exit - 1); !r.fast {
		t.Error("it was left too early")
	}
	if r.leave(exit); r.fast || !r.enter(exit+10) {
		t.Error("it was not left, or cannot be entered again")
	}
}
