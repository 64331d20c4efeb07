package iscsitest

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/iser"
	"github.com/ironwarp/ironwarp/scsi"
)

// PDU is an iSCSI PDU, without digests and padding.
type PDU struct {
	BHS  iscsi.BHS
	AHS  []byte
	Data []byte

	in, out []byte // over RDMA, of a SCSI Command: the memory that the target may reach
	claims  int    // what is to be said to be the length of the data, if not 0
	spoil   spoil  // over TCP: what is wrong with its digests

	invalidated uint32   // over RDMA, of what has come: the STag that it has invalidated, 0 for none
	advertised  []uint32 // and those that its command had advertised
	header      [iser.HeaderLen]byte
	bare        bool // of what is sent: its header advertises nothing, whatever there is
}

// spoil is which digests of a PDU are wrong.
type spoil uint8

const (
	spoilHeader spoil = 1 << iota
	spoilData
)

// Bytes returns the PDU as it is on a connection without digests.
func (p *PDU) Bytes() []byte {
	h := p.BHS
	n := len(p.Data)
	if p.claims != 0 {
		n = p.claims
	}
	h.SetLengths(len(p.AHS), n)
	b := append(append(h[:], p.AHS...), p.Data...)
	return append(b, make([]byte, iscsi.Pad(len(p.Data)))...)
}

// String returns the PDU in words.
func (p *PDU) String() string {
	var w words
	o := p.BHS.Opcode()
	w.add("%v", o)
	h := p.BHS
	h.SetLengths(0, 0)
	switch o {
	case iscsi.OpLogin:
		q, _ := iscsi.ParseLoginRequest(&h)
		w.flag(q.Transit, "T")
		w.flag(q.Continue, "C")
		w.add("%v", q.CSG)
		if q.Transit {
			w.add("to %v", q.NSG)
		}
		w.add("ISID %x TSIH %d CID %d ITT %#x CmdSN %d ExpStatSN %d versions %d to %d", q.ISID, q.TSIH, q.CID, q.ITT, q.CmdSN, q.ExpStatSN, q.VersionMin, q.VersionMax)
		w.text(p.Data)
	case iscsi.OpLoginResp:
		r, _ := iscsi.ParseLoginResponse(&h)
		w.flag(r.Transit, "T")
		w.flag(r.Continue, "C")
		w.add("status %#04x %v", uint16(r.Status), r.CSG)
		if r.Transit {
			w.add("to %v", r.NSG)
		}
		w.add("TSIH %d ITT %#x", r.TSIH, r.ITT)
		w.numbers(r.Numbers)
		w.text(p.Data)
	case iscsi.OpCommand:
		k, _ := iscsi.ParseCommand(&h)
		w.flag(k.Immediate, "I")
		w.flag(k.Final, "F")
		w.flag(k.Read, "R")
		w.flag(k.Write, "W")
		w.add("LUN %x ITT %#x EDTL %d CmdSN %d ExpStatSN %d CDB %x", k.LUN, k.ITT, k.EDTL, k.CmdSN, k.ExpStatSN, k.CDB)
		w.data(p.Data)
	case iscsi.OpResponse:
		r, _ := iscsi.ParseResponse(&h)
		w.add("response %d status %#02x ITT %#x ExpDataSN %d", r.Response, r.Status, r.ITT, r.ExpDataSN)
		w.residual(r.Residual)
		w.numbers(r.Numbers)
		if sense, err := iscsi.ParseSense(p.Data); err == nil && len(sense) > 0 {
			if s, err := scsi.ParseSense(sense); err == nil {
				w.add("sense %x/%04x", byte(s.Key), uint16(s.Code))
			} else {
				w.data(p.Data)
			}
		}
	case iscsi.OpDataIn:
		d, _ := iscsi.ParseDataIn(&h)
		w.flag(d.Final, "F")
		w.flag(d.Acknowledge, "A")
		w.add("ITT %#x TTT %#x DataSN %d offset %d, %d bytes", d.ITT, d.TTT, d.DataSN, d.Offset, len(p.Data))
		if d.HasStatus {
			w.add("status %#02x", d.Status)
			w.residual(d.Residual)
		}
		w.numbers(d.Numbers)
	case iscsi.OpDataOut:
		d, _ := iscsi.ParseDataOut(&h)
		w.flag(d.Final, "F")
		w.add("ITT %#x TTT %#x DataSN %d offset %d, %d bytes", d.ITT, d.TTT, d.DataSN, d.Offset, len(p.Data))
	case iscsi.OpR2T:
		r, _ := iscsi.ParseR2T(&h)
		w.add("ITT %#x TTT %#x R2TSN %d offset %d length %d", r.ITT, r.TTT, r.R2TSN, r.Offset, r.Length)
		w.numbers(r.Numbers)
	case iscsi.OpTaskMgmt:
		q, _ := iscsi.ParseTaskMgmt(&h)
		w.flag(q.Immediate, "I")
		w.add("function %d LUN %x ITT %#x RefTag %#x CmdSN %d RefCmdSN %d", q.Function, q.LUN, q.ITT, q.RefTag, q.CmdSN, q.RefCmdSN)
	case iscsi.OpTaskResp:
		r := iscsi.ParseTaskReply(&h)
		w.add("response %d ITT %#x", r.Response, r.ITT)
		w.numbers(r.Numbers)
	case iscsi.OpText:
		q, _ := iscsi.ParseText(&h)
		w.flag(q.Immediate, "I")
		w.flag(q.Final, "F")
		w.flag(q.Continue, "C")
		w.add("ITT %#x TTT %#x CmdSN %d", q.ITT, q.TTT, q.CmdSN)
		w.text(p.Data)
	case iscsi.OpTextResp:
		r, _ := iscsi.ParseTextResponse(&h)
		w.flag(r.Final, "F")
		w.flag(r.Continue, "C")
		w.add("ITT %#x TTT %#x", r.ITT, r.TTT)
		w.numbers(r.Numbers)
		w.text(p.Data)
	case iscsi.OpLogout:
		q, _ := iscsi.ParseLogout(&h)
		w.flag(q.Immediate, "I")
		w.add("reason %d CID %d ITT %#x CmdSN %d", q.Reason, q.CID, q.ITT, q.CmdSN)
	case iscsi.OpLogoutResp:
		r := iscsi.ParseLogoutReply(&h)
		w.add("response %d ITT %#x Time2Wait %d Time2Retain %d", r.Response, r.ITT, r.Time2Wait, r.Time2Retain)
		w.numbers(r.Numbers)
	case iscsi.OpNOPOut:
		n, _ := iscsi.ParseNOPOut(&h)
		w.flag(n.Immediate, "I")
		w.add("ITT %#x TTT %#x CmdSN %d", n.ITT, n.TTT, n.CmdSN)
		w.data(p.Data)
	case iscsi.OpNOPIn:
		n, _ := iscsi.ParseNOPIn(&h)
		w.add("ITT %#x TTT %#x", n.ITT, n.TTT)
		w.numbers(n.Numbers)
		w.data(p.Data)
	case iscsi.OpReject:
		r := iscsi.ParseReject(&h)
		w.add("reason %d", r.Reason)
		w.numbers(r.Numbers)
		if len(p.Data) >= iscsi.BHSLen {
			w.add("of a %v", iscsi.Opcode(p.Data[0]&0x3f))
		}
	case iscsi.OpAsync:
		a := iscsi.ParseAsync(&h)
		w.add("event %d parameters %v", a.Event, a.Parameters)
		w.numbers(a.Numbers)
	default:
		w.add("header %x", h[:])
		w.data(p.Data)
	}
	if p.claims != 0 {
		w.add("(it says that it has %d bytes of data)", p.claims)
	}
	return w.String()
}

// words collects words with spaces between them.
type words struct{ strings.Builder }

func (w *words) add(format string, args ...any) {
	if w.Len() > 0 {
		w.WriteByte(' ')
	}
	fmt.Fprintf(w, format, args...)
}

func (w *words) flag(on bool, name string) {
	if on {
		w.add("%s", name)
	}
}

func (w *words) numbers(n iscsi.Numbers) {
	w.add("StatSN %d ExpCmdSN %d MaxCmdSN %d", n.StatSN, n.ExpCmdSN, n.MaxCmdSN)
}

func (w *words) residual(r iscsi.Residual) {
	if r.Overflow {
		w.add("overflow %d", r.Count)
	}
	if r.Underflow {
		w.add("underflow %d", r.Count)
	}
}

// shown is how many bytes of data or text words have.
const shown = 400

func (w *words) text(b []byte) {
	if len(b) > 0 {
		w.add("%d bytes of text: %.*q", len(b), shown, b)
	}
}

func (w *words) data(b []byte) {
	if len(b) > 0 {
		w.add("%d bytes: %s", len(b), hex.EncodeToString(b[:min(len(b), 16)]))
	}
}
