package iscsi

// DataOut is a SCSI Data-Out (RFC 7143 section 11.7).
type DataOut struct {
	Final                               bool
	LUN                                 [8]byte
	ITT, TTT, ExpStatSN, DataSN, Offset uint32
}

func (d *DataOut) fields(x coder) {
	x.final(&d.Final)
	x.address(&d.LUN, &d.ITT, &d.TTT)
	x.u32(28, &d.ExpStatSN)
	x.u32(36, &d.DataSN, &d.Offset)
}

// ParseDataOut reads a SCSI Data-Out. It fails with ErrFormat.
func ParseDataOut(h *BHS) (d DataOut, err error) {
	d.fields(h.read())
	if h.AHSLen() != 0 {
		return d, formatError(OpDataOut, "it has additional headers")
	}
	return d, nil
}

// Put writes the header.
func (d *DataOut) Put(h *BHS) { d.fields(h.begin(OpDataOut, 0)) }

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

func (d *DataIn) fields(x coder) {
	x.final(&d.Final)
	x.bit(1, 0x40, &d.Acknowledge)
	x.bit(1, 1, &d.HasStatus)
	d.Residual.fields(x, 4, 2, 44)
	octet(x, 3, &d.Status)
	x.address(&d.LUN, &d.ITT, &d.TTT)
	x.numbers(&d.Numbers)
	x.u32(36, &d.DataSN, &d.Offset)
}

// Put writes the header.
func (d *DataIn) Put(h *BHS) { d.fields(h.begin(OpDataIn, 0)) }

// ParseDataIn reads a SCSI Data-In. It fails with ErrFormat.
func ParseDataIn(h *BHS) (d DataIn, err error) {
	d.fields(h.read())
	if d.HasStatus && !d.Final {
		return d, formatError(OpDataIn, "status before the final data")
	}
	return d, nil
}

// SetPiece makes the header of the last Data-In of a command that of one of them. Status, residual and
// StatSN stay in the last only. ack asks for an acknowledgement, in those that end a sequence but the last;
// the transfer tag and the LUN, which the header has for it, stay only there (sections 11.7.2 and 11.7.4).
func (h *BHS) SetPiece(p Piece, ack bool) {
	h.put32(36, p.SN)
	h.put32(40, p.Offset)
	ack = ack && p.Final && !p.Last
	if !p.Last {
		h[1] = h[1]&^(0x80|0x40|7) | flag(p.Final, 0x80) | flag(ack, 0x40)
		h[3] = 0
		h.put32(24, 0)
		h.put32(44, 0)
	}
	if !ack {
		clear(h[8:16])
		h.put32(20, NoTag)
	}
}

// R2T is a Ready To Transfer (RFC 7143 section 11.8).
type R2T struct {
	LUN                             [8]byte
	ITT, TTT, R2TSN, Offset, Length uint32
	Numbers
}

func (r *R2T) fields(x coder) {
	x.address(&r.LUN, &r.ITT, &r.TTT)
	x.numbers(&r.Numbers)
	x.u32(36, &r.R2TSN, &r.Offset, &r.Length)
}

// Put writes the header.
func (r *R2T) Put(h *BHS) { r.fields(h.begin(OpR2T, 0x80)) }

// ParseR2T reads a Ready To Transfer. It fails with ErrFormat.
func ParseR2T(h *BHS) (r R2T, err error) {
	r.fields(h.read())
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

func (a *Async) fields(x coder) {
	x.bytes(8, a.LUN[:])
	x.numbers(&a.Numbers)
	octet(x, 36, &a.Event)
	octet(x, 37, &a.VCode)
	x.u16(38, &a.Parameters[0], &a.Parameters[1], &a.Parameters[2])
}

// Put writes the header.
func (a *Async) Put(h *BHS) {
	a.fields(h.begin(OpAsync, 0x80))
	h.put32(16, NoTag)
}

// ParseAsync reads an Asynchronous Message.
func ParseAsync(h *BHS) (a Async) { a.fields(h.read()); return a }

// Text is a Text Request or Text Response (RFC 7143 sections 11.10 and 11.11). CmdSN and ExpStatSN
// are the request's, Numbers the response's.
type Text struct {
	Immediate, Final, Continue bool
	LUN                        [8]byte
	ITT, TTT, CmdSN, ExpStatSN uint32
	Numbers
}

func (t *Text) fields(x coder) {
	x.final(&t.Final)
	x.bit(1, 0x40, &t.Continue)
	x.address(&t.LUN, &t.ITT, &t.TTT)
}

func (t *Text) request(x coder) {
	t.fields(x)
	x.immediate(&t.Immediate)
	x.request(&t.CmdSN, &t.ExpStatSN)
}

func (t *Text) response(x coder) {
	t.fields(x)
	x.numbers(&t.Numbers)
}

// ParseText reads a Text Request. It fails with ErrFormat.
func ParseText(h *BHS) (t Text, err error) {
	t.request(h.read())
	if t.Continue && t.Final {
		return t, formatError(OpText, "C and F at once")
	}
	if t.ITT == NoTag {
		return t, formatError(OpText, "the reserved task tag")
	}
	return t, nil
}

// PutRequest writes the header of a Text Request.
func (t *Text) PutRequest(h *BHS) { t.request(h.begin(OpText, 0)) }

// PutResponse writes the header of a Text Response.
func (t *Text) PutResponse(h *BHS) { t.response(h.begin(OpTextResp, 0)) }

// ParseTextResponse reads a Text Response. It fails with ErrFormat.
func ParseTextResponse(h *BHS) (t Text, err error) {
	t.response(h.read())
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

func (l *Logout) fields(x coder) {
	x.immediate(&l.Immediate)
	bits(x, 1, 0x7f, 0, &l.Reason)
	x.u32(16, &l.ITT)
	x.u16(20, &l.CID)
	x.request(&l.CmdSN, &l.ExpStatSN)
}

// ParseLogout reads a Logout Request. It fails with ErrFormat.
func ParseLogout(h *BHS) (l Logout, err error) {
	l.fields(h.read())
	if l.Reason >= logoutReasonsEnd || h.DataLen() != 0 || l.ITT == NoTag {
		return l, formatError(OpLogout, "reserved reason or tag, or it has data")
	}
	return l, nil
}

// Put writes the header.
func (l *Logout) Put(h *BHS) { l.fields(h.begin(OpLogout, 0x80)) }

// LogoutReply is a Logout Response (RFC 7143 section 11.15).
type LogoutReply struct {
	Response               uint8
	ITT                    uint32
	Time2Wait, Time2Retain uint16
	Numbers
}

func (l *LogoutReply) fields(x coder) {
	octet(x, 2, &l.Response)
	x.u32(16, &l.ITT)
	x.numbers(&l.Numbers)
	x.u16(40, &l.Time2Wait, &l.Time2Retain)
}

// Put writes the header.
func (l *LogoutReply) Put(h *BHS) { l.fields(h.begin(OpLogoutResp, 0x80)) }

// ParseLogoutReply reads a Logout Response.
func ParseLogoutReply(h *BHS) (l LogoutReply) { l.fields(h.read()); return l }

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

func (s *SNACK) fields(x coder) {
	bits(x, 1, 0xf, 0, &s.Type)
	x.address(&s.LUN, &s.ITT, &s.TTT)
	x.u32(28, &s.ExpStatSN)
	x.u32(40, &s.BegRun, &s.RunLength)
}

// ParseSNACK reads a SNACK Request. It fails with ErrFormat.
func ParseSNACK(h *BHS) (s SNACK, err error) {
	s.fields(h.read())
	if s.Type > SNACKRData {
		return s, formatError(OpSNACK, "reserved type")
	}
	return s, nil
}

// Put writes the header.
func (s *SNACK) Put(h *BHS) { s.fields(h.begin(OpSNACK, 0x80)) }

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

func (r *Reject) fields(x coder) {
	octet(x, 2, &r.Reason)
	x.numbers(&r.Numbers)
	x.u32(36, &r.DataSN)
}

// Put writes the header.
func (r *Reject) Put(h *BHS) {
	r.fields(h.begin(OpReject, 0x80))
	h.put32(16, NoTag)
}

// ParseReject reads a Reject.
func ParseReject(h *BHS) (r Reject) { r.fields(h.read()); return r }

// NOP is a NOP-Out or NOP-In (RFC 7143 sections 11.18 and 11.19). CmdSN and ExpStatSN are the
// former's, Numbers the latter's.
type NOP struct {
	Immediate                  bool
	LUN                        [8]byte
	ITT, TTT, CmdSN, ExpStatSN uint32
	Numbers
}

func (n *NOP) out(x coder) {
	x.immediate(&n.Immediate)
	x.address(&n.LUN, &n.ITT, &n.TTT)
	x.request(&n.CmdSN, &n.ExpStatSN)
}

func (n *NOP) in(x coder) {
	x.address(&n.LUN, &n.ITT, &n.TTT)
	x.numbers(&n.Numbers)
}

// ParseNOPOut reads a NOP-Out. It fails with ErrFormat.
func ParseNOPOut(h *BHS) (n NOP, err error) {
	n.out(h.read())
	if n.ITT == NoTag && !n.Immediate {
		return n, formatError(OpNOPOut, "not immediate, and without a task tag")
	}
	return n, nil
}

// PutOut writes the header of a NOP-Out.
func (n *NOP) PutOut(h *BHS) { n.out(h.begin(OpNOPOut, 0x80)) }

// PutIn writes the header of a NOP-In.
func (n *NOP) PutIn(h *BHS) { n.in(h.begin(OpNOPIn, 0x80)) }

// ParseNOPIn reads a NOP-In. It fails with ErrFormat.
func ParseNOPIn(h *BHS) (n NOP, err error) {
	n.in(h.read())
	if n.ITT != NoTag && n.TTT != NoTag {
		return n, formatError(OpNOPIn, "an answer and a ping at once") // section 7.7
	}
	return n, nil
}

// BufferOffset is where the data of a Data-In belong.
func (h *BHS) BufferOffset() uint32 { return h.u32(40) }
