package verbs

import (
	"testing"

	"github.com/ironwarp/ironwarp/rdmap"
)

// What a peer reads is copied when it is sent, if peers may change it: through
// the same STag, another one of the region, or a receive.
func TestVolatileMemory(t *testing.T) {
	for _, tc := range []struct {
		access Access
		want   bool
	}{
		{RemoteRead, false},
		{RemoteRead | LocalWrite, true},
		{RemoteRead | LocalWrite | RemoteWrite, true},
		{RemoteRead | LocalWrite | RemoteAtomic, true},
	} {
		e := newEnd(t, Config{})
		mr := e.mr(8, tc.access)
		for _, again := range []bool{false, true} {
			if again {
				if _, err := mr.Reregister(0, 8, RemoteRead); err != nil {
					t.Fatal(err)
				}
			}
			_, p, fault := e.dev.acquire(e.pd, nil, mr.STag(), 0, 8, rdmap.RemoteRead)
			if fault != rdmap.FaultNone {
				t.Fatal(fault)
			}
			if got := p.(rdmap.VolatilePin).Volatile(); got != tc.want {
				t.Errorf("access %#x, registered again %v: volatile %v", tc.access, again, got)
			}
			p.Unpin()
		}
	}
}

// A window for reading stands on a region that may have one for writing, too.
func TestVolatileMemoryOfAWindow(t *testing.T) {
	e := newEnd(t, Config{})
	qp, _ := e.rawStream()
	for _, local := range []Access{0, LocalWrite} {
		mr := e.mr(8, WindowBind|local)
		stag := e.bind(e.mw(), mr, 0, 8, RemoteRead)
		_, p, fault := e.dev.acquire(e.pd, qp, stag, 0, 8, rdmap.RemoteRead)
		if fault != rdmap.FaultNone {
			t.Fatal(fault)
		}
		if got := p.(rdmap.VolatilePin).Volatile(); got != (local != 0) {
			t.Errorf("region with access %#x: volatile %v", local, got)
		}
		p.Unpin()
	}
}
