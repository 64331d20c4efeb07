package mad

import "testing"

// TestNothingIsAllocated parses a packet with a record and makes another one in memory that is there.
func TestNothingIsAllocated(t *testing.T) {
	request := SA{Header: saHeader(MethodSet, AttrServiceRecord, 1), ComponentMask: ServiceMaskID}
	ServiceRecord{ID: 7, Lease: 9}.Append(request.Data[:0])
	p := Packet{GRH: GRH{SGID: goldenGID(goldenClient)}, MAD: request.MAD()}
	b := p.Append(nil)
	out := make([]byte, 0, PacketLen)
	if n := testing.AllocsPerRun(100, func() {
		p, err := ParsePacket(b)
		if err != nil {
			t.Fatal(err)
		}
		sa, err := ParseSA(&p.MAD)
		if err != nil {
			t.Fatal(err)
		}
		r, err := ParseServiceRecord(sa.Data[:ServiceRecordLen])
		if err != nil || r.ID != 7 {
			t.Fatal(r.ID, err)
		}
		answer := sa.Answer(StatusOK)
		r.Append(answer.Data[:0])
		p.MAD = answer.MAD()
		out = p.Append(out[:0])
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
