package iscsitest

import (
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser"
)

// rule is a sentence that holds for every PDU, and so is watched in every case.
type rule int

// The rules.
const (
	ruleReadable rule = iota
	ruleReserved
	ruleOpcode
	ruleSegment
	ruleStatSN
	ruleExpCmdSN
	ruleMaxCmdSN
	ruleKnownTask
	ruleDataSN
	ruleOffset
	ruleFinal
	ruleBurst
	ruleStatusAtEnd
	ruleExpDataSN
	ruleResidual
	ruleAutosense
	ruleR2TSN
	ruleR2TLength
	ruleR2TOrder
	ruleR2TCount
	ruleTextTag
	ruleNOPTag
	ruleLoginTags
	ruleNoDataPDUs
	ruleInvalidation
	ruleHeader
	numRules
)

var rules = [numRules]Case{
	ruleReadable:     {ID: "always.readable", Source: "RFC 7143 11.1, 13.1", Says: "PDUs and their digests can be read, and no data segment is longer than was declared"},
	ruleReserved:     {ID: "always.reserved", Source: "RFC 7143 11", Says: "Any compliant sender MUST set all bits not defined and all reserved fields to 0"},
	ruleOpcode:       {ID: "always.opcode", Source: "RFC 7143 11.2.1.2", Says: "targets MUST NOT use initiator opcodes"},
	ruleSegment:      {ID: "always.segment", Source: "RFC 7143 11.7.2", Says: "DataSegmentLength MUST NOT exceed MaxRecvDataSegmentLength for the direction it is sent"},
	ruleStatSN:       {ID: "always.statsn", Source: "RFC 7143 4.2.2.2", Says: "StatSN is advanced by one for each status on a connection"},
	ruleExpCmdSN:     {ID: "always.expcmdsn", Source: "RFC 7143 4.2.2.1", Says: "ExpCmdSN is never ahead of what was sent, and never goes back"},
	ruleMaxCmdSN:     {ID: "always.maxcmdsn", Source: "RFC 7143 4.2.2.1", Says: "The target MUST NOT transmit a MaxCmdSN that is less than ExpCmdSN - 1"},
	ruleKnownTask:    {ID: "always.task-tag", Source: "RFC 7143 11.2.1.8", Says: "what a target sends for a task has the Initiator Task Tag of one that is there"},
	ruleDataSN:       {ID: "always.datasn", Source: "RFC 7143 4.2.2.4", Says: "DataSN starts with 0 for the first data PDU of an input command and advances by 1", Over: onTCP},
	ruleOffset:       {ID: "always.data-in-order", Source: "RFC 7143 13.18", Says: "with DataPDUInOrder, data in a sequence are at continuously increasing addresses", Over: onTCP},
	ruleFinal:        {ID: "always.final", Source: "RFC 7143 11.7.1", Says: "the F bit is set in the last PDU of a sequence, and after all data the status is sent", Over: onTCP},
	ruleBurst:        {ID: "always.burst", Source: "RFC 7143 11.7.2", Says: "The total length of all PDUs in a sequence MUST NOT exceed MaxBurstLength", Over: onTCP},
	ruleStatusAtEnd:  {ID: "always.status-in-data", Source: "RFC 7143 11.7.3", Says: "status in a Data-In PDU has the F bit set, and other status than GOOD is sent in a SCSI Response", Over: onTCP},
	ruleExpDataSN:    {ID: "always.expdatasn", Source: "RFC 7143 11.4.8", Says: "ExpDataSN is the number of Data-In and R2T PDUs that the target has sent for the command", Over: onTCP},
	ruleResidual:     {ID: "always.residual", Source: "RFC 7143 11.4.5", Says: "overflow and underflow are not both set, and never with a count of 0 or, for underflow, above what was expected"},
	ruleAutosense:    {ID: "always.autosense", Source: "RFC 7143 11.4.7", Says: "If Status is CHECK CONDITION, then the data segment MUST contain sense data for the failed command"},
	ruleR2TSN:        {ID: "always.r2tsn", Source: "RFC 7143 11.8.3", Says: "R2TSN is the number of the R2T of the command, from 0 on", Over: onTCP},
	ruleR2TLength:    {ID: "always.r2t-length", Source: "RFC 7143 11.8.4", Says: "Desired Data Transfer Length MUST NOT be 0 and MUST NOT exceed MaxBurstLength", Over: onTCP},
	ruleR2TOrder:     {ID: "always.r2t-order", Source: "RFC 7143 11.8, 13.19", Says: "with DataSequenceInOrder, consecutive R2Ts ask for continuously increasing ranges, within what was expected", Over: onTCP},
	ruleR2TCount:     {ID: "always.r2t-count", Source: "RFC 7143 13.17", Says: "no more than MaxOutstandingR2T R2Ts are outstanding for a task", Over: onTCP},
	ruleTextTag:      {ID: "always.text-tag", Source: "RFC 7143 11.11.1", Says: "A Text Response with the F bit set to 1 MUST have a Target Transfer Tag of 0xffffffff, one with 0 another"},
	ruleNOPTag:       {ID: "always.nop-tag", Source: "RFC 7143 11.19", Says: "an answering NOP-In has a Target Transfer Tag of 0xffffffff, any other an Initiator Task Tag of 0xffffffff and no data"},
	ruleLoginTags:    {ID: "always.login-fields", Source: "RFC 7143 11.13", Says: "Login Responses have the request's ISID and Initiator Task Tag, and no stage or bit that was not asked for"},
	ruleNoDataPDUs:   {ID: "always.iser-no-data-pdus", Source: "RFC 7145 7.3", Says: "over iSER data are moved by RDMA, and there are no Data-In, Data-Out and R2T PDUs", Over: onRDMA},
	ruleInvalidation: {ID: "always.iser-invalidation", Source: "RFC 7145 7.3.2", Says: "a SCSI Response invalidates no other STag than that of its command", Over: onRDMA},
	ruleHeader:       {ID: "always.iser-header", Source: "RFC 7145 9.2", Says: "Reserved fields MUST be set to zero on transmit, and so STags and Base Offsets whose flag is not set; a target advertises nothing", Over: onRDMA},
}

func alwaysCases() []Case { return rules[:] }

// watch has what was seen of the rules in all cases of one run.
type watch struct {
	at       *T // the case that is running
	breaches [numRules]int
	first    [numRules]Result
	where    [numRules][]string // the cases
}

// breach notes that a rule was broken.
func (w *watch) breach(r rule, format string, args ...any) {
	if w.at.amiss {
		return
	}
	w.breaches[r]++
	if n := len(w.where[r]); n == 0 || w.where[r][n-1] != w.at.c.ID {
		w.where[r] = append(w.where[r], w.at.c.ID)
	}
	if w.breaches[r] == 1 {
		w.first[r] = Result{Found: printable.Text(fmt.Sprintf(format, args...)), Trace: append([]Event(nil), w.at.events...)}
	}
}

// result is the verdict about one rule.
func (w *watch) result(r rule) Result {
	if w.breaches[r] == 0 {
		return Result{}
	}
	x := w.first[r]
	x.Verdict = Fail
	x.Found = fmt.Sprintf("in %s: %s", w.where[r][0], x.Found)
	if n := len(w.where[r]); n > 1 {
		x.Found += fmt.Sprintf(" (and in %d more cases)", n-1)
	}
	return x
}

// watch looks at what has come on a connection: at what does not depend on a session.
func (c *Conn) watch(p *PDU) {
	w, o := c.t.watch, p.BHS.Opcode()
	if o&0x20 == 0 {
		w.breach(ruleOpcode, "%v", p)
		return
	}
	if p.BHS.AHSLen() != 0 {
		w.breach(ruleReserved, "%v has additional headers", p)
	}
	if len(p.Data) > c.limit {
		w.breach(ruleSegment, "%v has %d bytes of data, and %d were declared", o, len(p.Data), c.limit)
	}
	if b := undefined(&p.BHS); b >= 0 {
		w.breach(ruleReserved, "byte %d of the header of %v is %#02x", b, p, p.BHS[b])
	}
	if p.invalidated != 0 && !slices.Contains(p.advertised, p.invalidated) {
		w.breach(ruleInvalidation, "%v invalidates %#x, and its command had advertised %#x", p, p.invalidated, p.advertised)
	}
	if p.header != [iser.HeaderLen]byte{} && p.header != [iser.HeaderLen]byte{byte(iser.OpControl) << 4} {
		w.breach(ruleHeader, "the header %x of %v", p.header, p)
	}
	c.watchStatSN(p)
}

// layout is where a target's PDU has bits: the figures of RFC 7143 section 11 once more, apart from the codec, so
// that a fault of that is seen where it is the target's, too.
type layout struct {
	one      byte   // bits of byte 1 that are always 1
	flags    byte   // others that there are
	bytes2   int    // how many bytes from byte 2 on
	lun, tag bool   // bytes 8 to 15, and 20 to 23
	none     bool   // the Initiator Task Tag is 0xffffffff
	fields   [2]int // behind the numbers: where they begin, and how many bytes they have
}

var layouts = map[iscsi.Opcode]layout{
	iscsi.OpResponse:   {one: 0x80, flags: 0x1e, bytes2: 2, tag: true, fields: [2]int{36, 12}},
	iscsi.OpDataIn:     {flags: 0xc7, bytes2: -1, lun: true, tag: true, fields: [2]int{36, 12}}, // byte 3, without byte 2
	iscsi.OpR2T:        {one: 0x80, lun: true, tag: true, fields: [2]int{36, 12}},
	iscsi.OpTaskResp:   {one: 0x80, bytes2: 1},
	iscsi.OpTextResp:   {flags: 0xc0, lun: true, tag: true},
	iscsi.OpLoginResp:  {flags: 0xcf, bytes2: 2, lun: true, fields: [2]int{36, 2}}, // NSG without T is left alone
	iscsi.OpLogoutResp: {one: 0x80, bytes2: 1, fields: [2]int{40, 4}},
	iscsi.OpNOPIn:      {one: 0x80, lun: true, tag: true},
	iscsi.OpReject:     {one: 0x80, bytes2: 1, none: true, fields: [2]int{36, 4}},
	iscsi.OpAsync:      {one: 0x80, lun: true, none: true, fields: [2]int{36, 8}},
}

// undefined returns the first byte of a target's header with a bit that is not defined, or not as it always is; -1
// if there is none.
func undefined(h *iscsi.BHS) int {
	l, known := layouts[h.Opcode()]
	if !known {
		return -1
	}
	var may [iscsi.BHSLen]byte
	all := func(from, n int) {
		for i := range n {
			may[from+i] = 0xff
		}
	}
	may[0], may[1] = 0x3f, l.one|l.flags
	if l.bytes2 < 0 {
		may[3] = 0xff
	} else {
		all(2, l.bytes2)
	}
	all(4, 4)
	if l.lun {
		all(8, 8)
	}
	all(16, 4)
	if l.tag {
		all(20, 4)
	}
	all(24, 12)
	all(l.fields[0], l.fields[1])
	for i := range h {
		if h[i]&^may[i] != 0 || i == 1 && h[i]&l.one != l.one || l.none && i >= 16 && i < 20 && h[i] != 0xff {
			return i
		}
	}
	return -1
}

// watchStatSN looks at the number of a PDU that has a status, and notes it.
func (c *Conn) watchStatSN(p *PDU) {
	counts := true
	switch p.BHS.Opcode() {
	case iscsi.OpR2T:
		return
	case iscsi.OpDataIn:
		if d, _ := iscsi.ParseDataIn(&p.BHS); !d.HasStatus {
			return
		}
	case iscsi.OpNOPIn: // a ping has the next number, and does not use it up (section 11.19.2)
		n, _ := iscsi.ParseNOPIn(&p.BHS)
		counts = n.ITT != iscsi.NoTag
	case iscsi.OpLoginResp: // one that refuses has no numbers (section 11.13.5)
		if r, _ := iscsi.ParseLoginResponse(&p.BHS); r.Status>>8 != 0 {
			return
		}
	}
	n := p.BHS.StatSN()
	if c.counting && n != c.expStatSN {
		c.t.watch.breach(ruleStatSN, "StatSN of %v, where %d comes next", p, c.expStatSN)
	}
	c.counting, c.expStatSN = true, n
	if counts {
		c.expStatSN++
	}
}
