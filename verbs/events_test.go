package verbs

import "testing"

// wantEvents takes the events of a stream so far, up to its end, and compares.
func wantEvents(t *testing.T, d *Device, qp uint64, kinds ...EventKind) {
	t.Helper()
	var got []EventKind
	for len(got) < len(kinds) {
		select {
		case ev := <-d.Events():
			if ev.QP == qp {
				got = append(got, ev.Kind)
			}
			continue
		default:
		}
		break
	}
	if len(got) != len(kinds) {
		t.Fatalf("events %v, want %v", got, kinds)
	}
	for i := range kinds {
		if got[i] != kinds[i] {
			t.Fatalf("events %v, want %v", got, kinds)
		}
	}
}
