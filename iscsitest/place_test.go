package iscsitest

import (
	"testing"

	"github.com/ironwarp/ironwarp/iscsi"
)

// TestPingsAreNoPlace: a target that sends one to a connection that it then ends has come no further than without.
func TestPingsAreNoPlace(t *testing.T) {
	var x T
	for _, itt := range []uint32{7, iscsi.NoTag} {
		p := &PDU{}
		n := iscsi.NOP{ITT: itt, TTT: iscsi.NoTag}
		n.PutIn(&p.BHS)
		x.note(Event{PDU: p})
	}
	x.note(Event{Sent: true, PDU: &PDU{}})
	x.note(Event{Note: "ended"})
	if want := (place{sent: 1, received: 1}); x.at != want {
		t.Errorf("%+v, want %+v", x.at, want)
	}
	for _, c := range []struct {
		places []place
		same   bool
	}{
		{nil, true}, {[]place{{1, 2}, {1, 3}, {1, 2}}, true}, {[]place{{1, 2}, {3, 2}}, true}, {[]place{{1, 2}, {3, 4}, {1, 2}}, false},
		{[]place{{1, 2}, {1, 3}, {2, 3}}, false},
	} {
		if same(c.places) != c.same {
			t.Errorf("%v: %t", c.places, !c.same)
		}
	}
}
