package iscsi

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"testing"
)

var (
	lun     = [8]byte{0, 7}
	numbers = Numbers{0x11223344, 0x55667788, 0x99aabbcc}
)

// check puts a PDU, compares it with golden bytes if there are any, and parses it.
func check[P any](t *testing.T, want P, put func(*P, *BHS), parse func(*BHS) (P, error), op Opcode, golden string) {
	t.Helper()
	var h BHS
	for i := range h {
		h[i] = 0xff // what was there before
	}
	put(&want, &h)
	if h.Opcode() != op || h.DataLen() != 0 || h.AHSLen() != 0 {
		t.Errorf("%v: %x", op, h)
	}
	if g := hex.EncodeToString(h[:]); golden != "" && g != golden {
		t.Errorf("%v:\n%s, want\n%s", op, g, golden)
	}
	if got, err := parse(&h); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %v: %+v, want %+v", op, err, got, want)
	}
}

func noError[P any](parse func(*BHS) P) func(*BHS) (P, error) {
	return func(h *BHS) (P, error) { return parse(h), nil }
}

// TestPDUs compares with the figures of RFC 7143 section 11.
func TestPDUs(t *testing.T) {
	check(t, Command{Immediate: true, Final: true, Write: true, Attr: Ordered, LUN: lun, ITT: 0x01020304, EDTL: 512, CmdSN: 5, ExpStatSN: 6, CDB: [16]byte{0x2a, 15: 9}},
		(*Command).Put, ParseCommand, OpCommand,
		"41a20000"+"00000000"+"0007000000000000"+"01020304"+"00000200"+"00000005"+"00000006"+"2a000000000000000000000000000009")
	check(t, Response{Residual: Residual{Underflow: true, Count: 3}, Status: 2, ITT: 9, ExpDataSN: 4, Numbers: numbers}, (*Response).Put, ParseResponse, OpResponse,
		"21820002"+"00000000"+"0000000000000000"+"00000009"+"00000000"+"1122334455667788"+"99aabbcc"+"00000004"+"00000000"+"00000003")
	check(t, Response{BidiResidual: Residual{Overflow: true, Count: 8}, Response: TargetFailure, SNACKTag: 7, Numbers: numbers}, (*Response).Put, ParseResponse, OpResponse, "")
	check(t, TaskMgmt{Immediate: true, Function: LogicalUnitReset, LUN: lun, ITT: 1, RefTag: NoTag, CmdSN: 2, ExpStatSN: 3, RefCmdSN: 4, ExpDataSN: 5}, (*TaskMgmt).Put, ParseTaskMgmt, OpTaskMgmt,
		"42850000"+"00000000"+"0007000000000000"+"00000001"+"ffffffff"+"0000000200000003"+"0000000400000005"+"0000000000000000")
	check(t, TaskReply{Response: FunctionRejected, ITT: 1, Numbers: numbers}, (*TaskReply).Put, noError(ParseTaskReply), OpTaskResp, "")
	check(t, DataOut{Final: true, LUN: lun, ITT: 1, TTT: 2, ExpStatSN: 3, DataSN: 4, Offset: 5}, (*DataOut).Put, ParseDataOut, OpDataOut,
		"05800000"+"00000000"+"0007000000000000"+"0000000100000002"+"0000000000000003"+"0000000000000004"+"0000000500000000")
	check(t, DataIn{Final: true, HasStatus: true, Residual: Residual{Overflow: true, Count: 1}, Status: 4, LUN: lun, ITT: 1, TTT: 2, DataSN: 3, Offset: 4, Numbers: numbers}, (*DataIn).Put, ParseDataIn, OpDataIn,
		"25850004"+"00000000"+"0007000000000000"+"0000000100000002"+"1122334455667788"+"99aabbcc00000003"+"0000000400000001")
	check(t, R2T{LUN: lun, ITT: 1, TTT: 2, R2TSN: 3, Offset: 4, Length: 5, Numbers: numbers}, (*R2T).Put, ParseR2T, OpR2T, "")
	check(t, Async{Event: EventLogoutRequest, VCode: 3, LUN: lun, Parameters: [3]uint16{1, 2, 3}, Numbers: numbers}, (*Async).Put, noError(ParseAsync), OpAsync,
		"32800000"+"00000000"+"0007000000000000"+"ffffffff"+"00000000"+"1122334455667788"+"99aabbcc"+"01030001"+"00020003"+"00000000")
	check(t, Text{Immediate: true, Final: true, LUN: lun, ITT: 1, TTT: NoTag, CmdSN: 3, ExpStatSN: 4}, (*Text).PutRequest, ParseText, OpText, "")
	check(t, Text{Continue: true, LUN: lun, ITT: 1, TTT: 2, Numbers: numbers}, (*Text).PutResponse, ParseTextResponse, OpTextResp, "")
	check(t, LoginRequest{Transit: true, CSG: Security, NSG: Operational, ISID: [6]byte{1, 2, 3, 4, 5, 6}, TSIH: 7, CID: 8, ITT: 9, CmdSN: 10, ExpStatSN: 11}, (*LoginRequest).Put, ParseLoginRequest, OpLogin,
		"43810000"+"00000000"+"0102030405060007"+"00000009"+"00080000"+"0000000a0000000b"+"00000000000000000000000000000000")
	check(t, LoginResponse{Transit: true, CSG: Operational, NSG: FullFeature, ISID: [6]byte{1}, TSIH: 7, ITT: 9, Status: LoginNoSession, Numbers: numbers}, (*LoginResponse).Put, ParseLoginResponse, OpLoginResp,
		"23870000"+"00000000"+"0100000000000007"+"00000009"+"00000000"+"1122334455667788"+"99aabbcc"+"020a0000"+"0000000000000000")
	check(t, Logout{Immediate: true, Reason: CloseConnection, ITT: 1, CmdSN: 2, ExpStatSN: 3, CID: 4}, (*Logout).Put, ParseLogout, OpLogout, "")
	check(t, LogoutReply{Response: LogoutNotSupported, ITT: 1, Time2Wait: 2, Time2Retain: 3, Numbers: numbers}, (*LogoutReply).Put, noError(ParseLogoutReply), OpLogoutResp, "")
	check(t, SNACK{Type: SNACKStatus, LUN: lun, ITT: 1, TTT: 2, ExpStatSN: 3, BegRun: 4, RunLength: 5}, (*SNACK).Put, ParseSNACK, OpSNACK, "")
	check(t, Reject{Reason: RejectInvalidField, DataSN: 1, Numbers: numbers}, (*Reject).Put, noError(ParseReject), OpReject, "")
	check(t, NOP{Immediate: true, LUN: lun, ITT: NoTag, TTT: 1, CmdSN: 2, ExpStatSN: 3}, (*NOP).PutOut, ParseNOPOut, OpNOPOut, "")
	check(t, NOP{LUN: lun, ITT: 1, TTT: NoTag, Numbers: numbers}, (*NOP).PutIn, ParseNOPIn, OpNOPIn, "")
}

func TestFormatErrorsAreFound(t *testing.T) {
	with := func(o Opcode, at ...byte) *BHS {
		h := &BHS{byte(o), 0x80}
		for i := 0; i < len(at); i += 2 {
			h[at[i]] = at[i+1]
		}
		return h
	}
	none := []byte{16, 0xff, 17, 0xff, 18, 0xff, 19, 0xff}
	for name, err := range map[string]error{
		"attribute 5":                  second(ParseCommand(with(OpCommand, 1, 0x85))),
		"neither W nor F":              second(ParseCommand(with(OpCommand, 1, 0))),
		"length without a direction":   second(ParseCommand(with(OpCommand, 23, 1))),
		"command without a tag":        second(ParseCommand(with(OpCommand, none...))),
		"task management with data":    second(ParseTaskMgmt(with(OpTaskMgmt, 7, 1))),
		"C and F of a text":            second(ParseText(with(OpText, 1, 0xc0))),
		"C and T of a login":           second(ParseLoginRequest(with(OpLogin, 1, 0xc1))),
		"login in stage 2":             second(ParseLoginRequest(with(OpLogin, 1, 0x8b))),
		"login to stage 2":             second(ParseLoginRequest(with(OpLogin, 1, 0x86))),
		"login back to security":       second(ParseLoginRequest(with(OpLogin, 1, 0x84))),
		"login in full feature phase":  second(ParseLoginRequest(with(OpLogin, 1, 0x0c))),
		"logout for reason 3":          second(ParseLogout(with(OpLogout, 1, 0x83))),
		"SNACK of type 4":              second(ParseSNACK(with(OpSNACK, 1, 0x84))),
		"NOP-Out without a tag":        second(ParseNOPOut(with(OpNOPOut, none...))),
		"NOP-In that answers and asks": second(ParseNOPIn(with(OpNOPIn))),
		"R2T for nothing":              second(ParseR2T(with(OpR2T))),
		"overflow and underflow":       second(ParseResponse(with(OpResponse, 1, 0x86))),
		"status before the end":        second(ParseDataIn(with(OpDataIn, 1, 1))),
		"AHS of type 3":                second(ParseAHS([]byte{0, 1, 3, 0})),
		"AHS that is too long":         second(ParseAHS([]byte{0, 6, 1, 0, 0, 0, 0, 0})),
		"AHS of two bytes":             second(ParseAHS([]byte{0, 1})),
		"sense that is too long":       second(ParseSense([]byte{0, 2, 1})),
	} {
		if !errors.Is(err, ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestAHSAndSense(t *testing.T) {
	a := AHS{ExtendedCDB: []byte{1, 2, 3, 4, 5}, HasBidiRead: true, BidiRead: 0x01020304}
	b := a.AppendAHS(nil)
	if want := "0006010001020304" + "05000000" + "0005020001020304"; hex.EncodeToString(b) != want {
		t.Errorf("%x, want %s", b, want)
	}
	if got, err := ParseAHS(b); err != nil || !reflect.DeepEqual(got, a) {
		t.Errorf("%v: %+v", err, got)
	}
	if s, err := ParseSense(AppendSense(nil, []byte("sense"))); err != nil || string(s) != "sense" {
		t.Errorf("%v: %q", err, s)
	}
}

func TestSetPieceKeepsStatusForTheLast(t *testing.T) {
	var last BHS
	d := DataIn{Final: true, HasStatus: true, Residual: Residual{Underflow: true, Count: 5}, Status: 4, LUN: [8]byte{1: 3}, ITT: 1, TTT: 77, Numbers: numbers}
	d.Put(&last)
	for _, p := range []Piece{{}, {Final: true}} {
		for _, ack := range []bool{false, true} {
			h := last
			h.SetPiece(p, ack)
			got, err := ParseDataIn(&h)
			asks := ack && p.Final
			if err != nil || got.Final != p.Final || got.HasStatus || got.Status != 0 || got.Count != 0 || got.ExpCmdSN != numbers.ExpCmdSN || got.StatSN != 0 {
				t.Errorf("%v: %+v", err, got)
			}
			if got.Acknowledge != asks || asks != (got.TTT == 77 && got.LUN == d.LUN) || !asks && (got.TTT != NoTag || got.LUN != [8]byte{}) {
				t.Errorf("%+v %v: %+v", p, ack, got)
			}
		}
	}
	h := last
	h.SetPiece(Piece{SN: 3, Offset: 4096, Final: true, Last: true}, true)
	d.DataSN, d.Offset, d.TTT, d.LUN = 3, 4096, NoTag, [8]byte{}
	if got, err := ParseDataIn(&h); err != nil || got != d {
		t.Errorf("%v: %+v", err, got)
	}
}

// FuzzPDU proves that whatever parses is put again as it was, as far as its fields go.
func FuzzPDU(f *testing.F) {
	for _, o := range []Opcode{OpCommand, OpTaskMgmt, OpLogin, OpText, OpDataOut, OpLogout, OpSNACK, OpNOPOut, OpDataIn, OpR2T, OpResponse, OpNOPIn} {
		h := BHS{byte(o), 0x80}
		f.Add(h[:], []byte{0, 6, 1, 0, 1, 2, 3, 4, 5, 0, 0, 0})
	}
	f.Fuzz(func(t *testing.T, b, ahs []byte) {
		if len(b) < BHSLen {
			return
		}
		h := BHS(b)
		var again BHS
		same := func(parse func(h *BHS) (any, func(*BHS), error)) {
			v, put, err := parse(&h)
			if err != nil {
				return
			}
			put(&again)
			again.SetLengths(h.AHSLen(), h.DataLen())
			if w, _, err := parse(&again); err != nil || w != v {
				t.Fatalf("%v: %+v became %+v", err, v, w)
			}
		}
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseCommand(h); return v, v.Put, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseTaskMgmt(h); return v, v.Put, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseLogout(h); return v, v.Put, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseDataOut(h); return v, v.Put, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseDataIn(h); return v, v.Put, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseR2T(h); return v, v.Put, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseSNACK(h); return v, v.Put, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseText(h); return v, v.PutRequest, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseNOPOut(h); return v, v.PutOut, err })
		same(func(h *BHS) (any, func(*BHS), error) { v, err := ParseResponse(h); return v, v.Put, err })
		if a, err := ParseAHS(ahs); err == nil {
			again := a.AppendAHS(nil)
			if b, err := ParseAHS(again); err != nil || !bytes.Equal(a.ExtendedCDB, b.ExtendedCDB) || a.BidiRead != b.BidiRead {
				t.Fatalf("%v: %+v became %+v", err, a, b)
			}
		}
	})
}
