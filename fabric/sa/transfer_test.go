package sa

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// many registers services at alpha.
func (l *lab) many(n int) {
	for i := range n {
		l.ok(by(alpha).setService(serviceAt(uint64(i), alpha, "docs")))
	}
}

// begin asks for the table of services, and returns the first packets of the answer.
func (l *lab) begin(a ask) (out []Outgoing, id uint64) {
	l.tid++
	return l.Handle(l.now, a.from, a.table(mad.AttrServiceRecord, 0, nil).packet(l.tid)), l.tid
}

// control sends an ACK, STOP or ABORT of a transfer.
func (l *lab) control(from mad.GUID, id uint64, t mad.RMPPType, segment, last uint32) []Outgoing {
	m := mad.SA{
		Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodGetTable, Attribute: mad.AttrServiceRecord, TransactionID: id},
		RMPP:   mad.RMPP{Version: mad.RMPPVersion, Type: t, Flags: mad.RMPPActive, Segment: segment, Length: last},
	}
	return l.Handle(l.now, Requester{GUID: from}, mad.Packet{MAD: m.MAD()})
}

// A table leaves as it is acknowledged, and is as it was when it was asked for.
func TestTableLeavesByWindows(t *testing.T) {
	l := newLab(t)
	l.many(100) // 88 segments
	out, id := l.begin(by(beta))
	if len(out) != 1 {
		t.Fatalf("%d segments before the first ACK", len(out))
	}
	if n := len(l.control(beta, id, mad.RMPPAck, 1, 11)); n != 10 {
		t.Errorf("%d segments in a window of 10", n)
	}
	l.ok(by(alpha).deleteService(serviceAt(99, alpha, "")))
	if n := len(l.control(alpha, id, mad.RMPPAck, 11, 50)); n != 0 {
		t.Errorf("another's ACK is worth %d segments", n)
	}
	if n := len(l.control(beta, id, mad.RMPPAck, 11, 1000)); n != 77 {
		t.Errorf("%d segments are left", n)
	}
	l.control(beta, id, mad.RMPPAck, 88, 1000)
	if l.transferBytes != 0 || len(l.ports[beta].transfers) != 0 {
		t.Errorf("%d bytes after the end", l.transferBytes)
	}
	if n := len(l.records(l.do(by(beta).table(mad.AttrServiceRecord, 0, nil)))); n != 99 {
		t.Errorf("%d services", n)
	}
	if r := l.do(by(beta).table(mad.AttrServiceRecord, mad.ServiceMaskID, serviceAt(1000, alpha, ""))); len(l.rows(r, mad.ServiceRecordLen)) != 0 || r.sa.Method != mad.MethodGetTableResp {
		t.Errorf("an empty table: %+v", r)
	}
}

func TestTransferEnds(t *testing.T) {
	for what, f := range map[string]func(l *lab, id uint64){
		"by STOP":                func(l *lab, id uint64) { l.control(beta, id, mad.RMPPStop, 0, 0) },
		"by ABORT":               func(l *lab, id uint64) { l.control(beta, id, mad.RMPPAbort, 0, 0) },
		"by a wrong ACK":         func(l *lab, id uint64) { l.control(beta, id, mad.RMPPAck, 50, 60) },
		"by silence":             func(l *lab, _ uint64) { l.wait(transferTimeout) },
		"with its port":          func(l *lab, _ uint64) { l.down(beta) },
		"by two further answers": func(l *lab, _ uint64) { l.begin(by(beta)); l.begin(by(beta)) },
	} {
		l := newLab(t)
		l.many(100)
		_, id := l.begin(by(beta))
		if l.transferBytes == 0 {
			t.Fatal("no bytes")
		}
		f(l, id)
		if n := len(l.control(beta, id, mad.RMPPAck, 1, 50)); n != 0 {
			t.Errorf("%s: it goes on with %d segments", what, n)
		}
		l.wait(transferTimeout)
		if l.transferBytes != 0 {
			t.Errorf("%s: %d bytes are left", what, l.transferBytes)
		}
	}
}

// Who opens a window without end is sent a window of the directory's own at a time: each of its ACKs is not worth a whole table, of which
// nothing would fit into what waits for it.
func TestWindowWithoutEnd(t *testing.T) {
	l := newLab(t)
	l.many(2000) // 1760 segments
	_, id := l.begin(by(beta))
	segments := uint32(1)
	for n := 0; ; n++ {
		got := len(l.control(beta, id, mad.RMPPAck, segments, 1<<32-1))
		if got > mad.MaxSend {
			t.Fatalf("%d segments at once", got)
		}
		if again := len(l.control(beta, id, mad.RMPPAck, 1, 1<<32-1)); again != 0 {
			t.Fatalf("an ACK of before is worth %d segments", again)
		}
		if segments += uint32(got); segments == 1760 {
			break
		}
		if got == 0 || n > 100 {
			t.Fatalf("the table stops after %d segments", segments)
		}
	}
}

// Hosts that ask for the same table share it; different ones are bounded together.
func TestMemoryOfTables(t *testing.T) {
	l := newLab(t)
	l.many(1000)
	for i := range 100 {
		l.up(Port{GUID: mad.GUID(0x2000 + i)})
	}
	for i := range 100 {
		l.begin(by(mad.GUID(0x2000 + i)))
	}
	if l.transferBytes != 1000*mad.ServiceRecordLen {
		t.Errorf("100 hosts with one table of 176,000 bytes take %d", l.transferBytes)
	}
	l.wait(transferTimeout)
	busy := 0
	for i := range 100 {
		for range maxTransfers {
			l.now = l.now.Add(time.Millisecond)
			l.ok(by(alpha).setService(serviceAt(0, alpha, "changed")))
			l.transferBytes += maxTransferBytes / 100 // as if tables were longer
			out, _ := l.begin(by(mad.GUID(0x2000 + i)))
			if h := out[0].Packet.MAD.Header(); h.Status == mad.StatusBusy {
				busy++
			}
		}
	}
	if busy == 0 || l.transferBytes > 3*maxTransferBytes {
		t.Errorf("%d are told to come again, %d bytes", busy, l.transferBytes)
	}
}
