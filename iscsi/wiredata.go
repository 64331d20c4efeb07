package iscsi

// DataOut is a SCSI Data-Out (RFC 7143 section 11.7).
type DataOut struct {
	Final                               bool
	LUN                                 [8]byte
	ITT, TTT, ExpStatSN, DataSN, Offset uint32
}

// ParseDataOut reads a SCSI Data-Out. It fails with ErrFormat.
func ParseDataOut(h *BHS) (d DataOut, err error) {
	d = DataOut{Final: h.Final(), LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20), ExpStatSN: h.ExpStatSN(), DataSN: h.u32(36), Offset: h.u32(40)}
	if h.AHSLen() != 0 {
		return d, formatError(OpDataOut, "it has additional headers")
	}
	return d, nil
}

// Put writes the header.
func (d *DataOut) Put(h *BHS) {
	h.begin(OpDataOut, false, flag(d.Final, 0x80), d.ITT)
	copy(h[8:], d.LUN[:])
	h.put32(20, d.TTT)
	h.put32(28, d.ExpStatSN)
	h.put32(36, d.DataSN)
	h.put32(40, d.Offset)
}

// DataIn is a SCSI Data-In (RFC 7143 section 11.7). Residual, Status and StatSN count only if
// HasStatus.
type DataIn struct {
	Final, Acknowledge, HasStatus bool
	Residual
	Status                   uint8
	LUN                      [8]byte
	ITT, TTT, DataSN, Offset uint32
	Numbers
}

// Put writes the header.
func (d *DataIn) Put(h *BHS) {
	h.begin(OpDataIn, false, flag(d.Final, 0x80)|flag(d.Acknowledge, 0x40)|flag(d.HasStatus, 1)|d.Residual.flags(), d.ITT)
	h[3] = d.Status
	copy(h[8:], d.LUN[:])
	h.put32(20, d.TTT)
	h.PutNumbers(d.Numbers)
	h.put32(36, d.DataSN)
	h.put32(40, d.Offset)
	h.put32(44, d.Residual.Count)
}

// ParseDataIn reads a SCSI Data-In. It fails with ErrFormat.
func ParseDataIn(h *BHS) (d DataIn, err error) {
	d = DataIn{
		Final: h.Final(), Acknowledge: h.bit(1, 0x40), HasStatus: h.bit(1, 1), Residual: residualAt(h), Status: h[3],
		LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20), DataSN: h.u32(36), Offset: h.u32(40), Numbers: h.Numbers(),
	}
	if d.HasStatus && !d.Final {
		return d, formatError(OpDataIn, "status before the final data")
	}
	return d, nil
}

// SetPiece makes the header that of one Data-In of several: its number, its offset in the data, and
// whether it ends a sequence or is even the last. Status, residual and StatSN stay in the last only.
func (h *BHS) SetPiece(dataSN, offset uint32, final, last bool) {
	h.put32(36, dataSN)
	h.put32(40, offset)
	if !last {
		h[1] = h[1]&^(0x80|0x40|7) | flag(final, 0x80)
		h[3] = 0
		h.put32(24, 0)
		h.put32(44, 0)
	}
}

// R2T is a Ready To Transfer (RFC 7143 section 11.8).
type R2T struct {
	LUN                             [8]byte
	ITT, TTT, R2TSN, Offset, Length uint32
	Numbers
}

// Put writes the header.
func (r *R2T) Put(h *BHS) {
	h.begin(OpR2T, false, 0x80, r.ITT)
	copy(h[8:], r.LUN[:])
	h.put32(20, r.TTT)
	h.PutNumbers(r.Numbers)
	h.put32(36, r.R2TSN)
	h.put32(40, r.Offset)
	h.put32(44, r.Length)
}

// ParseR2T reads a Ready To Transfer. It fails with ErrFormat.
func ParseR2T(h *BHS) (r R2T, err error) {
	r = R2T{LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20), R2TSN: h.u32(36), Offset: h.u32(40), Length: h.u32(44), Numbers: h.Numbers()}
	if r.TTT == NoTag || r.Length == 0 {
		return r, formatError(OpR2T, "the reserved tag, or no data asked for")
	}
	return r, nil
}

// Event is the reason of an Async (RFC 7143 section 11.9.1).
type Event uint8

// The events of Asynchronous Messages.
const (
	EventSCSI           Event = 0
	EventLogoutRequest  Event = 1
	EventConnectionDrop Event = 2
	EventSessionDrop    Event = 3
	EventNegotiation    Event = 4
	EventTasksEnded     Event = 5
)

// Async is an Asynchronous Message (RFC 7143 section 11.9).
type Async struct {
	Event      Event
	VCode      uint8
	LUN        [8]byte
	Parameters [3]uint16
	Numbers
}

// Put writes the header.
func (a *Async) Put(h *BHS) {
	h.begin(OpAsync, false, 0x80, NoTag)
	copy(h[8:], a.LUN[:])
	h.PutNumbers(a.Numbers)
	h[36], h[37] = byte(a.Event), a.VCode
	for i, p := range a.Parameters {
		h.put16(38+2*i, p)
	}
}

// ParseAsync reads an Asynchronous Message.
func ParseAsync(h *BHS) Async {
	return Async{Event(h[36]), h[37], h.LUN(), [3]uint16{h.u16(38), h.u16(40), h.u16(42)}, h.Numbers()}
}

// Text is a Text Request or Text Response (RFC 7143 sections 11.10 and 11.11). CmdSN and ExpStatSN
// are the request's, Numbers the response's.
type Text struct {
	Immediate, Final, Continue bool
	LUN                        [8]byte
	ITT, TTT, CmdSN, ExpStatSN uint32
	Numbers
}

// ParseText reads a Text Request. It fails with ErrFormat.
func ParseText(h *BHS) (t Text, err error) {
	t = Text{
		Immediate: h.Immediate(), Final: h.Final(), Continue: h.bit(1, 0x40), LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20),
		CmdSN: h.CmdSN(), ExpStatSN: h.ExpStatSN(),
	}
	if t.Continue && t.Final {
		return t, formatError(OpText, "C and F at once")
	}
	if t.ITT == NoTag {
		return t, formatError(OpText, "the reserved task tag")
	}
	return t, nil
}

// PutRequest writes the header of a Text Request.
func (t *Text) PutRequest(h *BHS) {
	t.put(h, OpText)
	h.put32(24, t.CmdSN)
	h.put32(28, t.ExpStatSN)
}

// PutResponse writes the header of a Text Response.
func (t *Text) PutResponse(h *BHS) {
	t.put(h, OpTextResp)
	h.PutNumbers(t.Numbers)
}

func (t *Text) put(h *BHS, o Opcode) {
	h.begin(o, t.Immediate, flag(t.Final, 0x80)|flag(t.Continue, 0x40), t.ITT)
	copy(h[8:], t.LUN[:])
	h.put32(20, t.TTT)
}

// ParseTextResponse reads a Text Response. It fails with ErrFormat.
func ParseTextResponse(h *BHS) (t Text, err error) {
	t = Text{Final: h.Final(), Continue: h.bit(1, 0x40), LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20), Numbers: h.Numbers()}
	if t.Final != (t.TTT == NoTag) || t.Continue && t.Final {
		return t, formatError(OpTextResp, "F, C and the transfer tag disagree")
	}
	return t, nil
}

// The reasons of a Logout (RFC 7143 section 11.14.1).
const (
	CloseSession       = 0
	CloseConnection    = 1
	RemoveForRecovery  = 2
	logoutReasonsEnd   = 3
	LogoutClosed       = 0 // the responses of a LogoutReply (section 11.15.1)
	LogoutNoCID        = 1
	LogoutNotSupported = 2
	LogoutFailed       = 3
)

// Logout is a Logout Request (RFC 7143 section 11.14).
type Logout struct {
	Immediate             bool
	Reason                uint8
	ITT, CmdSN, ExpStatSN uint32
	CID                   uint16
}

// ParseLogout reads a Logout Request. It fails with ErrFormat.
func ParseLogout(h *BHS) (l Logout, err error) {
	l = Logout{Immediate: h.Immediate(), Reason: h[1] & 0x7f, ITT: h.ITT(), CmdSN: h.CmdSN(), ExpStatSN: h.ExpStatSN(), CID: h.u16(20)}
	if l.Reason >= logoutReasonsEnd || h.DataLen() != 0 || l.ITT == NoTag {
		return l, formatError(OpLogout, "reserved reason or tag, or it has data")
	}
	return l, nil
}

// Put writes the header.
func (l *Logout) Put(h *BHS) {
	h.begin(OpLogout, l.Immediate, 0x80|l.Reason, l.ITT)
	h.put16(20, l.CID)
	h.put32(24, l.CmdSN)
	h.put32(28, l.ExpStatSN)
}

// LogoutReply is a Logout Response (RFC 7143 section 11.15).
type LogoutReply struct {
	Response               uint8
	ITT                    uint32
	Time2Wait, Time2Retain uint16
	Numbers
}

// Put writes the header.
func (l *LogoutReply) Put(h *BHS) {
	h.begin(OpLogoutResp, false, 0x80, l.ITT)
	h[2] = l.Response
	h.PutNumbers(l.Numbers)
	h.put16(40, l.Time2Wait)
	h.put16(42, l.Time2Retain)
}

// ParseLogoutReply reads a Logout Response.
func ParseLogoutReply(h *BHS) LogoutReply {
	return LogoutReply{h[2], h.ITT(), h.u16(40), h.u16(42), h.Numbers()}
}

// The types of a SNACK (RFC 7143 section 11.16.1).
const (
	SNACKData    = 0
	SNACKStatus  = 1
	SNACKDataACK = 2
	SNACKRData   = 3
)

// SNACK is a SNACK Request (RFC 7143 section 11.16).
type SNACK struct {
	Type                                   uint8
	LUN                                    [8]byte
	ITT, TTT, ExpStatSN, BegRun, RunLength uint32
}

// ParseSNACK reads a SNACK Request. It fails with ErrFormat.
func ParseSNACK(h *BHS) (s SNACK, err error) {
	s = SNACK{Type: h[1] & 0xf, LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20), ExpStatSN: h.ExpStatSN(), BegRun: h.u32(40), RunLength: h.u32(44)}
	if s.Type > SNACKRData {
		return s, formatError(OpSNACK, "reserved type")
	}
	return s, nil
}

// Put writes the header.
func (s *SNACK) Put(h *BHS) {
	h.begin(OpSNACK, false, 0x80|s.Type, s.ITT)
	copy(h[8:], s.LUN[:])
	h.put32(20, s.TTT)
	h.put32(28, s.ExpStatSN)
	h.put32(40, s.BegRun)
	h.put32(44, s.RunLength)
}

// Reason is why a PDU is rejected (RFC 7143 section 11.17.1).
type Reason uint8

// The reasons of a Reject.
const (
	RejectDataDigest       Reason = 2
	RejectSNACK            Reason = 3
	RejectProtocolError    Reason = 4
	RejectNotSupported     Reason = 5
	RejectTooManyImmediate Reason = 6
	RejectTaskInProgress   Reason = 7
	RejectInvalidDataACK   Reason = 8
	RejectInvalidField     Reason = 9
	RejectLongOperation    Reason = 10
	RejectWaitingForLogout Reason = 12
)

// Reject is a Reject; its data segment is the rejected PDU's header (RFC 7143 section 11.17).
type Reject struct {
	Reason Reason
	DataSN uint32
	Numbers
}

// Put writes the header.
func (r *Reject) Put(h *BHS) {
	h.begin(OpReject, false, 0x80, NoTag)
	h[2] = byte(r.Reason)
	h.PutNumbers(r.Numbers)
	h.put32(36, r.DataSN)
}

// ParseReject reads a Reject.
func ParseReject(h *BHS) Reject { return Reject{Reason(h[2]), h.u32(36), h.Numbers()} }

// NOP is a NOP-Out or NOP-In (RFC 7143 sections 11.18 and 11.19). CmdSN and ExpStatSN are the
// former's, Numbers the latter's.
type NOP struct {
	Immediate                  bool
	LUN                        [8]byte
	ITT, TTT, CmdSN, ExpStatSN uint32
	Numbers
}

// ParseNOPOut reads a NOP-Out. It fails with ErrFormat.
func ParseNOPOut(h *BHS) (n NOP, err error) {
	n = NOP{Immediate: h.Immediate(), LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20), CmdSN: h.CmdSN(), ExpStatSN: h.ExpStatSN()}
	if n.ITT == NoTag && !n.Immediate {
		return n, formatError(OpNOPOut, "not immediate, and without a task tag")
	}
	return n, nil
}

// PutOut writes the header of a NOP-Out.
func (n *NOP) PutOut(h *BHS) {
	n.put(h, OpNOPOut)
	h.put32(24, n.CmdSN)
	h.put32(28, n.ExpStatSN)
}

// PutIn writes the header of a NOP-In.
func (n *NOP) PutIn(h *BHS) {
	n.put(h, OpNOPIn)
	h.PutNumbers(n.Numbers)
}

func (n *NOP) put(h *BHS, o Opcode) {
	h.begin(o, n.Immediate, 0x80, n.ITT)
	copy(h[8:], n.LUN[:])
	h.put32(20, n.TTT)
}

// ParseNOPIn reads a NOP-In. It fails with ErrFormat.
func ParseNOPIn(h *BHS) (n NOP, err error) {
	n = NOP{LUN: h.LUN(), ITT: h.ITT(), TTT: h.u32(20), Numbers: h.Numbers()}
	if n.ITT != NoTag && n.TTT != NoTag {
		return n, formatError(OpNOPIn, "an answer and a ping at once") // section 7.7
	}
	return n, nil
}

// DataSN is the number of a Data-In.
func (h *BHS) DataSN() uint32 { return h.u32(36) }

// BufferOffset is where the data of a Data-In belong.
func (h *BHS) BufferOffset() uint32 { return h.u32(40) }
