package mad

import (
	"bytes"
	"errors"
	"testing"
)

// response is the head of an answer to a GetTable of ServiceRecords.
func response() SA {
	request := SA{Header: Header{Class: ClassSubnAdm, ClassVersion: SAClassVersion, Method: MethodGetTable, TransactionID: 77, Attribute: AttrServiceRecord}, Key: 5}
	head := request.Answer(StatusOK)
	head.AttributeOffset = Offset(ServiceRecordLen)
	return head
}

func filled(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 31)
	}
	return b
}

// transfer passes segments and ACKs between the two, and returns how many segments were on their way at most.
func transfer(t *testing.T, s *Sender, r *Receiver) (most int) {
	t.Helper()
	for !s.Done() {
		var acks []MAD
		n := 0
		for m, ok := s.Next(); ok; m, ok = s.Next() {
			n++
			sa, err := ParseSA(&m)
			if err != nil {
				t.Fatal(err)
			}
			reply, send, err := r.Receive(&sa)
			if err != nil {
				t.Fatal(err)
			}
			if send {
				acks = append(acks, reply)
			}
		}
		if len(acks) != 1 {
			t.Fatalf("%d ACKs of %d segments, want 1", len(acks), n)
		}
		ack, err := ParseSA(&acks[0])
		if err != nil {
			t.Fatal(err)
		}
		if ack.Method != MethodGetTable {
			t.Fatalf("ACK with %v, want the request's method", ack.Method)
		}
		if err := s.Acknowledge(&ack); err != nil {
			t.Fatal(err)
		}
		most = max(most, n)
	}
	return most
}

func TestTransfer(t *testing.T) {
	for _, n := range []int{0, 1, 176, 199, 200, 201, 400, 17600, 1760000} {
		for _, window := range []int{0, 1, 7, MaxWindow, 10000} {
			s, err := NewSender(response(), filled(n))
			if err != nil {
				t.Fatal(err)
			}
			r := NewReceiver(77, n, window)
			most := transfer(t, s, r)
			if limit := min(max(window, 1), MaxWindow); most > limit {
				t.Errorf("%d bytes: %d segments on their way, the window is %d", n, most, limit)
			}
			head, table := r.Answer()
			if !r.Done() || !bytes.Equal(table, filled(n)) {
				t.Errorf("%d bytes, window %d: %d bytes arrived", n, window, len(table))
			}
			if head.Method != MethodGetTableResp || head.AttributeOffset != 22 || head.Key != 0 {
				t.Errorf("head %+v", head)
			}
		}
	}
}

// TestReceiverRefuses sends what breaks RMPP, each time as the second segment of a transfer of 1,000 bytes.
func TestReceiverRefuses(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*SA)
		limit  int
		answer RMPPType
		status RMPPStatus
	}{
		{"another version", func(s *SA) { s.RMPP.Version = 2 }, 1000, RMPPAbort, RMPPUnsupportedVersion},
		{"unknown type", func(s *SA) { s.RMPP.Type = 9 }, 1000, RMPPAbort, RMPPBadType},
		{"ACK to the receiver", func(s *SA) { s.RMPP.Type = RMPPAck }, 1000, RMPPAbort, RMPPBadType},
		{"gap", func(s *SA) { s.RMPP.Segment = 3 }, 1000, RMPPAbort, RMPPInconsistentFirst},
		{"repeated", func(s *SA) { s.RMPP.Segment = 1 }, 1000, RMPPAbort, RMPPInconsistentFirst},
		{"first again", func(s *SA) { s.RMPP.Flags |= RMPPFirst }, 1000, RMPPAbort, RMPPInconsistentFirst},
		{"last of too many bytes", func(s *SA) { s.RMPP.Flags |= RMPPLast; s.RMPP.Length = 221 }, 1000, RMPPAbort, RMPPInconsistentLast},
		{"last of too few", func(s *SA) { s.RMPP.Flags |= RMPPLast; s.RMPP.Length = 19 }, 1000, RMPPAbort, RMPPInconsistentLast},
		{"last of 4 GB", func(s *SA) { s.RMPP.Flags |= RMPPLast; s.RMPP.Length = 0xffffffff }, 1000, RMPPAbort, RMPPInconsistentLast},
		{"beyond the limit", func(s *SA) {}, 399, RMPPStop, RMPPResourcesExhausted},
		{"no RMPP amid a transfer", func(s *SA) { s.RMPP = RMPP{} }, 1000, RMPPAbort, RMPPUnspecified},
	} {
		s, _ := NewSender(response(), filled(1000))
		r := NewReceiver(77, test.limit, 8)
		first, _ := s.Next()
		sa, _ := ParseSA(&first)
		ack, _, err := r.Receive(&sa)
		if err != nil {
			t.Errorf("%s: first segment: %v", test.name, err)
			continue
		}
		a, _ := ParseSA(&ack)
		if err := s.Acknowledge(&a); err != nil {
			t.Errorf("%s: ACK: %v", test.name, err)
		}
		second, _ := s.Next()
		sa, _ = ParseSA(&second)
		test.change(&sa)
		reply, send, err := r.Receive(&sa)
		end, _ := ParseSA(&reply)
		if !errors.Is(err, ErrTransfer) || !send || end.RMPP.Type != test.answer || end.RMPP.Status != test.status {
			t.Errorf("%s: %v, reply %v: %+v, want type %d, status %d", test.name, err, send, end.RMPP, test.answer, test.status)
		}
		if _, table := r.Answer(); !r.Done() || table != nil {
			t.Errorf("%s: %d bytes are left", test.name, len(table))
		}
		if err := s.Acknowledge(&end); !errors.Is(err, ErrStopped) || !s.Done() {
			t.Errorf("%s: the sender gets %v, want ErrStopped", test.name, err)
		}
		if _, ok := s.Next(); ok {
			t.Errorf("%s: the sender goes on", test.name)
		}
	}
}

// TestSenderRefuses sends what breaks RMPP to a sender whose first of five segments is on its way.
func TestSenderRefuses(t *testing.T) {
	for _, test := range []struct {
		name string
		rmpp RMPP
		want error
		done bool
	}{
		{"ACK of what was not sent", RMPP{Type: RMPPAck, Segment: 2, Length: 9}, ErrTransfer, true},
		{"window below the ACK", RMPP{Type: RMPPAck, Segment: 1, Length: 0}, ErrTransfer, true},
		{"data", RMPP{Type: RMPPData, Segment: 1, Length: 9}, ErrTransfer, true},
		{"unknown type", RMPP{Type: 9, Segment: 1, Length: 9}, ErrTransfer, true},
		{"STOP", RMPP{Type: RMPPStop, Status: RMPPResourcesExhausted}, ErrStopped, true},
		{"ABORT", RMPP{Type: RMPPAbort, Status: RMPPUnspecified}, ErrStopped, true},
		{"ACK of nothing", RMPP{Type: RMPPAck}, nil, false},
		{"window of 2^32-1", RMPP{Type: RMPPAck, Segment: 1, Length: 0xffffffff}, nil, false},
	} {
		s, _ := NewSender(response(), filled(1000))
		s.Next()
		a := SA{Header: Header{Class: ClassSubnAdm, Method: MethodGetTable, TransactionID: 77}, RMPP: test.rmpp}
		a.RMPP.Version, a.RMPP.Flags = RMPPVersion, RMPPActive
		if err := s.Acknowledge(&a); !errors.Is(err, test.want) || s.Done() != test.done {
			t.Errorf("%s: %v, done %v, want %v, %v", test.name, err, s.Done(), test.want, test.done)
		}
	}
	if _, err := NewSender(response(), make([]byte, MaxTable+1)); !errors.Is(err, ErrTransfer) {
		t.Errorf("table beyond the limit: %v", err)
	}
}

// TestPlainAnswer receives an answer without RMPP, as an error is.
func TestPlainAnswer(t *testing.T) {
	r := NewReceiver(77, 1000, 8)
	answer := response()
	answer.Status = StatusNoRecords
	if _, send, err := r.Receive(&answer); send || err != nil || !r.Done() {
		t.Fatalf("reply %v, %v, done %v", send, err, r.Done())
	}
	if head, table := r.Answer(); head.Status != StatusNoRecords || len(table) != SADataLen {
		t.Errorf("%v, %d bytes", head.Status, len(table))
	}
}

func TestRows(t *testing.T) {
	var table []byte
	for i := range 10 {
		table = AppendRow(table, MCMemberRecord{MLID: LID(i)})
	}
	for _, cut := range []int{0, 4} { // the last row's filling may be missing
		rows, err := Rows(table[:len(table)-cut], Offset(MCMemberRecordLen), MCMemberRecordLen)
		if err != nil || len(rows) != 10 {
			t.Fatalf("%d rows, %v", len(rows), err)
		}
		for i, row := range rows {
			if r, err := ParseMCMemberRecord(row); err != nil || r.MLID != LID(i) {
				t.Errorf("row %d: %v, %v", i, r.MLID, err)
			}
		}
	}
	for _, offset := range []uint16{0, 6} {
		if _, err := Rows(table, offset, MCMemberRecordLen); !errors.Is(err, ErrFormat) {
			t.Errorf("offset %d: %v", offset, err)
		}
	}
	if _, err := Rows(table[:len(table)-5], 7, MCMemberRecordLen); !errors.Is(err, ErrFormat) {
		t.Errorf("cut row: %v", err)
	}
	if rows, err := Rows(nil, 0, 176); len(rows) != 0 || err != nil {
		t.Errorf("empty table: %d, %v", len(rows), err)
	}
}

func FuzzReceiver(f *testing.F) {
	s, _ := NewSender(response(), filled(300))
	m, _ := s.Next()
	f.Add(m[24:])
	f.Fuzz(func(t *testing.T, b []byte) {
		const limit = 5000
		r := NewReceiver(77, limit, 8)
		for segment := uint32(1); len(b) > 0 && !r.Done(); segment++ {
			head := response()
			m := head.MAD()
			b = b[copy(m[24:], b):]
			sa, err := ParseSA(&m)
			if err != nil {
				t.Fatal(err)
			}
			if sa.RMPP.Segment%4 == 0 { // most are in order
				sa.RMPP.Segment = segment
			}
			_, send, err := r.Receive(&sa)
			if err != nil && !r.Done() {
				t.Fatalf("%v, and it goes on", err)
			}
			if err != nil && !errors.Is(err, ErrTransfer) && !errors.Is(err, ErrStopped) {
				t.Fatalf("%v (reply %v)", err, send)
			}
			if _, table := r.Answer(); len(table) > limit {
				t.Fatalf("%d bytes, the limit is %d", len(table), limit)
			}
		}
	})
}
