package iser

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/ironwarp/ironwarp/iscsi"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What Linux' ib_iser sent, captured: an INQUIRY, a WRITE of 64 KiB and a Text Request.
const (
	inquiry = "14000000" + "00000000" + "0000000000000000" + "b8d43001" + "ff2f6697c3b94700" +
		"01c100000000000000000000000000000100000000000024000000000000000112000000240000000000000000000000"
	write64k = "18000000" + "b8d4303e" + "ff2f6697c725d000" + "00000000" + "0000000000000000" +
		"01a10000000000000001000000000000410000000001000000000040000000412a000000000000008000000000000000"
	sendTargets = "10000000" + "00000000" + "0000000000000000" + "00000000" + "0000000000000000" +
		"0480000000000010000000000000000000000000ffffffff000000010000000100000000000000000000000000000000" + "53656e64546172676574733d416c6c00"
)

func TestMessagesOfLinux(t *testing.T) {
	for said, want := range map[string]Message{
		inquiry:     {Header: Header{Op: OpControl, Read: true, ReadTag: 0xb8d43001, ReadBase: 0xff2f6697c3b94700}},
		write64k:    {Header: Header{Op: OpControl, Write: true, WriteTag: 0xb8d4303e, WriteBase: 0xff2f6697c725d000}},
		sendTargets: {Header: Header{Op: OpControl}, Data: []byte("SendTargets=All\x00")},
	} {
		b := unhex(t, said)
		m, err := ParseMessage(b)
		if err != nil || m.Header != want.Header || !bytes.Equal(m.Data, want.Data) {
			t.Errorf("%+v, %v", m, err)
		}
		if again := AppendMessage(nil, &m.Header, &m.BHS, m.Data); !bytes.Equal(again, b) {
			t.Errorf("%x\nbecame\n%x", b, again)
		}
	}
	m, _ := ParseMessage(unhex(t, write64k))
	if k, err := iscsi.ParseCommand(&m.BHS); err != nil || !k.Write || !k.Final || k.EDTL != 65536 {
		t.Errorf("%+v %v", k, err)
	}
}

// TestHellos: figures 4 and 5 of RFC 7145.
func TestHellos(t *testing.T) {
	for said, want := range map[string]Header{
		"20aa0080": {Op: OpHello, MaxVersion: 10, Version: 10, Depth: 128},
		"30aa0004": {Op: OpHelloReply, MaxVersion: 10, Version: 10, Depth: 4},
		"31aa0000": {Op: OpHelloReply, MaxVersion: 10, Version: 10, Reject: true},
	} {
		b := append(unhex(t, said), make([]byte, 24)...)
		h, err := ParseHeader(b)
		if err != nil || h != want {
			t.Errorf("%s: %+v %v", said, h, err)
		}
		again := make([]byte, HeaderLen)
		if h.Put(again); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
		if _, err := ParseHeader(append(b, 0)); err == nil {
			t.Errorf("%s: a Hello with more than its header", said)
		}
	}
}

func TestMalformedMessages(t *testing.T) {
	good := unhex(t, sendTargets)
	for name, b := range map[string][]byte{
		"empty":               {},
		"a piece of a header": good[:HeaderLen-1],
		"no PDU":              good[:HeaderLen],
		"a piece of a PDU":    good[:HeaderLen+iscsi.BHSLen-1],
		"a piece of the data": good[:len(good)-1],
		"more than padding":   append(append([]byte(nil), good...), 0),
		"an unassigned type":  append([]byte{0x40}, good[1:]...),
	} {
		if m, err := ParseMessage(b); err == nil {
			t.Errorf("%s: %+v", name, m)
		}
	}
	odd := append([]byte(nil), good...)
	odd[HeaderLen+7]-- // DataSegmentLength
	if m, err := ParseMessage(odd); err != nil || len(m.Data) != 15 {
		t.Errorf("padded data: %v", err)
	}
	if m, err := ParseMessage(odd[:len(odd)-1]); err != nil || len(m.Data) != 15 {
		t.Errorf("data without their padding: %v", err)
	}
}

// TestPrivateData: what ib_iser and libiscsi send.
func TestPrivateData(t *testing.T) {
	for said, want := range map[string]PrivateData{
		"80000000": {NoZeroBase: true},
		"c0000000": {NoZeroBase: true, NoInvalidate: true},
		"00000000": {},
	} {
		p := ParsePrivateData(unhex(t, said))
		if p != want || hex.EncodeToString(p.Append(nil)) != said {
			t.Errorf("%s: %+v", said, p)
		}
	}
	if p := ParsePrivateData(nil); !p.NoInvalidate {
		t.Error("who says nothing takes Sends with Invalidate")
	}
}

// FuzzMessage proves that no message has more in it than it has, and that what was parsed is what is
// appended.
func FuzzMessage(f *testing.F) {
	for _, s := range []string{inquiry, write64k, sendTargets, "20aa0080" + "000000000000000000000000000000000000000000000000"} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseMessage(b)
		if err != nil {
			return
		}
		if m.Op != OpControl {
			if again := make([]byte, HeaderLen); len(b) != HeaderLen {
				t.Fatalf("a Hello of %d bytes", len(b))
			} else if m.Put(again); again[0]>>4 != b[0]>>4 || !bytes.Equal(again[1:4], b[1:4]) {
				t.Fatalf("%x became %x", b, again)
			}
			return
		}
		if len(m.AHS)+len(m.Data)+HeaderLen+iscsi.BHSLen > len(b) {
			t.Fatal("more than there is")
		}
		if len(m.AHS) > 0 {
			return
		}
		h := m.BHS
		again, err := ParseMessage(AppendMessage(nil, &m.Header, &h, m.Data))
		if err != nil || again.Header != m.Header || h != m.BHS || !bytes.Equal(again.Data, m.Data) {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
