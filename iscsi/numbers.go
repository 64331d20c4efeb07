package iscsi

// Turn says when a command may be delivered.
type Turn uint8

// The turns of a command.
const (
	Never Turn = iota // it is ignored
	Now
	Later // once those before it have come
)

// Window numbers the commands of a session (RFC 7143 section 4.2.2.1).
type Window struct {
	exp, max uint32
	early    []bool // by CmdSN modulo its length: came out of turn
	waiting  int    // how many of them
}

// NewWindow returns a window of at most size commands that begins with cmdSN, and is open.
func NewWindow(cmdSN uint32, size int) *Window {
	size = min(max(size, 1), maxWindow)
	n := 1
	for n < size {
		n *= 2 // so that numbers may wrap around
	}
	return &Window{exp: cmdSN, max: cmdSN + uint32(size) - 1, early: make([]bool, n)}
}

// Numbers returns ExpCmdSN and MaxCmdSN.
func (w *Window) Numbers() (exp, max uint32) { return w.exp, w.max }

// Open lets the initiator have n commands ahead. What it was promised before stays.
func (w *Window) Open(n int) {
	n = min(max(n, 0), len(w.early))
	if m := w.exp + uint32(n) - 1; int32(m-w.max) > 0 {
		w.max = m
	}
}

func (w *Window) at(sn uint32) *bool { return &w.early[sn&uint32(len(w.early)-1)] }

// Admit takes the number of a command that is not immediate. After Now, call Next.
func (w *Window) Admit(sn uint32) Turn {
	switch {
	case int32(sn-w.exp) < 0, w.isBeyond(sn):
		return Never // "MUST silently ignore"
	case sn == w.exp:
		w.exp++
		return Now
	case *w.at(sn):
		return Never
	}
	*w.at(sn) = true
	w.waiting++
	return Later
}

// Waiting reports whether commands have come out of turn.
func (w *Window) Waiting() bool { return w.waiting > 0 }

// Forget takes back that a command came out of turn: it was discarded, and may come again.
func (w *Window) Forget(sn uint32) {
	if int32(sn-w.exp) > 0 && int32(sn-w.max) <= 0 && *w.at(sn) {
		*w.at(sn) = false
		w.waiting--
	}
}

// Next returns the number of a command that came early and whose turn it is now.
func (w *Window) Next() (sn uint32, ok bool) {
	if !*w.at(w.exp) {
		return 0, false
	}
	*w.at(w.exp) = false
	w.waiting--
	w.exp++
	return w.exp - 1, true
}

// Includes reports whether a command of this number may still come.
func (w *Window) Includes(sn uint32) bool {
	return int32(sn-w.exp) >= 0 && !w.isBeyond(sn) && !*w.at(sn)
}

// Pieces describes the Data-In PDUs in which the data of one command travel from Offset on, of which the
// first has the number SN: each has up to Segment bytes, and each sequence up to Burst (RFC 7143 section
// 11.7.1). Offset is below End.
type Pieces struct{ SN, Offset, Segment, Burst, End uint32 }

// Piece is a Data-In PDU: its number, where its data are, and whether it ends a sequence or is even the last.
type Piece struct {
	SN, Offset, Len uint32
	Final, Last     bool
}

// perBurst is how many PDUs a whole sequence has.
func (p *Pieces) perBurst() uint32 { return (p.Burst-1)/p.Segment + 1 }

// Next is the number after that of the last PDU.
func (p *Pieces) Next() uint32 {
	n := p.End - p.Offset
	return p.SN + n/p.Burst*p.perBurst() + (n%p.Burst+p.Segment-1)/p.Segment
}

// At returns the PDU of a number that is at least p.SN, and less than p.Next.
func (p *Pieces) At(sn uint32) Piece {
	i, each := sn-p.SN, p.perBurst()
	in := i % each * p.Segment // its place in its sequence
	off := p.Offset + i/each*p.Burst + in
	n := min(p.Segment, p.Burst-in, p.End-off)
	last := n == p.End-off
	return Piece{SN: sn, Offset: off, Len: n, Final: last || in+n == p.Burst, Last: last}
}

// Again returns the PDUs from number sn on, at most p.Next, in segments of another length: what was
// before is acknowledged (section 11.16.3).
func (p *Pieces) Again(sn, segment uint32) Pieces {
	q := *p
	q.SN, q.Segment, q.Offset = sn, segment, p.End
	if sn != p.Next() {
		q.Offset = p.At(sn).Offset
	}
	return q
}

// Sequence is a sequence of Data-Out PDUs that is being received: the unsolicited one of a command,
// or the answer to an R2T (RFC 7143 sections 11.7 and 4.2.2.4). DataPDUInOrder is Yes.
type Sequence struct {
	next, end uint32 // offsets in the data of the command
	dataSN    uint32
	broken    bool
}

// NewSequence returns a sequence of at most n bytes from off on.
func NewSequence(off, n uint32) Sequence { return Sequence{next: off, end: off + n} }

// Take takes the header of a PDU and the length of its data. place says that the data belong at
// d.Offset, and are what was expected; otherwise they are to be dropped. ended means that this was
// the last PDU.
func (s *Sequence) Take(d *DataOut, n int) (place, ended bool) {
	if !s.expects(d, n) {
		s.broken = true // one of them was lost, or is not where it should be (section 7.9)
	}
	if s.broken {
		return false, d.Final
	}
	s.dataSN++
	s.next += uint32(n)
	return true, d.Final
}

// Lose takes back the last PDU, of n bytes, which Take has placed: they did not come, or were damaged.
func (s *Sequence) Lose(n int) {
	s.next -= uint32(n)
	s.broken = true
}

// Begun reports that a PDU of the sequence has come.
func (s *Sequence) Begun() bool { return s.dataSN > 0 || s.broken }

// Received is how far the data have come, and whole that they are all that was expected, in order.
func (s *Sequence) Received() (off uint32, whole bool) { return s.next, !s.broken && s.next == s.end }

// Broken reports that a PDU was not the one that was expected.
func (s *Sequence) Broken() bool { return s.broken }

// Transfer asks for the data of one command that are not sent unsolicited (RFC 7143 section 11.8).
type Transfer struct {
	asked, need uint32
	outstanding uint32
	r2tSN       uint32
}

// NewTransfer returns the transfer of the bytes from off up to need.
func NewTransfer(off, need uint32) Transfer { return Transfer{asked: min(off, need), need: need} }

// Next returns what to ask for next, within MaxBurstLength and MaxOutstandingR2T.
func (t *Transfer) Next(v *Values) (r2tSN, off, n uint32, ok bool) {
	if t.asked == t.need || t.outstanding >= v[KeyMaxOutstandingR2T] {
		return 0, 0, 0, false
	}
	r2tSN, off, n = t.r2tSN, t.asked, min(t.need-t.asked, v[KeyMaxBurstLength])
	t.r2tSN++
	t.asked += n
	t.outstanding++
	return r2tSN, off, n, true
}

// Retry returns the number of an R2T that asks again for what an earlier one has asked for (a Recovery-R2T,
// section 11.8), in whose place it is.
func (t *Transfer) Retry() (r2tSN uint32) {
	t.r2tSN++
	return t.r2tSN - 1
}

// Rewind forgets what was asked for beyond off: none of it comes any more.
func (t *Transfer) Rewind(off uint32) { t.asked, t.outstanding = off, 0 }

// R2TSN is the number that the next R2T has.
func (t *Transfer) R2TSN() uint32 { return t.r2tSN }

// Asked is up to which byte data have been asked for.
func (t *Transfer) Asked() uint32 { return t.asked }

// Answered notes that what was asked for has come.
func (t *Transfer) Answered() { t.outstanding-- }

// Cancel gives up what was not asked for yet.
func (t *Transfer) Cancel() { t.need = t.asked }

// Done reports that all has come.
func (t *Transfer) Done() bool { return t.asked == t.need && t.outstanding == 0 }
