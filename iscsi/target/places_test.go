package target

import (
	"net/netip"
	"testing"

	"github.com/ironwarp/ironwarp/iscsi"
)

// TestPlaces: one principal has its part, and of the last quarter what it has nothing else of.
func TestPlaces(t *testing.T) {
	p := places{8, 4}
	for _, x := range []struct {
		all, mine int
		free      bool
	}{{0, 0, true}, {3, 3, true}, {4, 4, false}, {5, 3, true}, {6, 1, false}, {6, 0, true}, {7, 0, true}, {8, 0, false}} {
		if why := p.none(x.all, x.mine); (why == "") != x.free {
			t.Errorf("%+v: %q", x, why)
		}
	}
	a := Origin{Remote: netip.MustParseAddrPort("192.0.2.1:1000")}
	b := Origin{Remote: netip.MustParseAddrPort("192.0.2.1:2000")}
	if a.principal() != b.principal() || a.principal() == (Origin{Peer: "192.0.2.1"}).principal() {
		t.Error("principals are mixed up")
	}
}

// outbox is a mover that sends a PDU whenever its upper has to wait.
type outbox struct {
	iscsi.Datamover
	upper  *conn
	queued []*iscsi.Out
}

func (m *outbox) SendControl(o *iscsi.Out) { m.queued = append(m.queued, o) }

func (m *outbox) Flush() {
	o := m.queued[0]
	m.queued = m.queued[1:]
	m.upper.SentNotify(o)
}

// TestAnswersThatWaitHaveLittleMemory: while an initiator reads none of the echoes that it asks for, no more
// of it is received, and of those that it has read little memory stays.
func TestAnswersThatWaitHaveLittleMemory(t *testing.T) {
	x := &session{window: iscsi.NewWindow(1, window)}
	x.change.L = &x.mu
	m := &outbox{}
	c := &conn{x: x, mover: m}
	m.upper = c
	for range 100 {
		c.room(new(iscsi.BHS))
		c.answer(make([]byte, maxRecvSegment), true, func(*iscsi.BHS, iscsi.Numbers) {})
		if n := len(m.queued) * maxRecvSegment; n > maxControlData+maxRecvSegment {
			t.Fatalf("%d bytes wait", n)
		}
	}
	for len(m.queued) > 0 {
		m.Flush()
	}
	kept := 0
	for k := c.freeControl; k != nil; k = k.next {
		kept += cap(k.out.Data)
	}
	if kept > maxControls*maxControlBuffer || c.controlData != 0 || c.controls != 0 {
		t.Errorf("%d bytes are kept, %d wait", kept, c.controlData)
	}
}
