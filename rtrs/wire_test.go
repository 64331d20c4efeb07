package rtrs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// The layouts are those of Linux' rtrs-pri.h; these bytes were put together by
// hand from it.
func TestConReqGolden(t *testing.T) {
	m := ConReq{Version: Version, CID: 1, CIDNum: 2, Incarnation: 0x12345, First: true}
	for i := range 16 {
		m.Path[i], m.Session[i] = byte(i), byte(0xf0+i)
	}
	want := "0000" + "bd1b" + "014a" + "0100" + "0200" + "4523" +
		"000102030405060708090a0b0c0d0e0f" + "f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff" + "01" + "000000" + "4523010000000000"
	b := m.Append(nil)
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	var back ConReq
	if err := back.Parse(b); err != nil || back != m {
		t.Fatalf("%+v, %v", back, err)
	}
	if !IsRequest(b) || IsRequest([]byte("IWpg")) || IsRequest(nil) {
		t.Error("IsRequest does not tell requests from others")
	}
}

func TestConRspGolden(t *testing.T) {
	m := ConRsp{Version: Version, Errno: syscall.EBUSY, QueueDepth: 129, MaxIO: 256 << 10, MaxHeader: 4096, Flags: flagNewRKey}
	want := "bd1b" + "014a" + "1000" + "8100" + "00000400" + "00100000" + "02000000" + strings.Repeat("00", 36)
	b := m.Append(nil)
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	var back ConRsp
	if err := back.Parse(b); err != nil || back != m {
		t.Fatalf("%+v, %v", back, err)
	}
}

func TestInfoRoundTrip(t *testing.T) {
	req := infoReq{Name: "alpha"}
	b := req.Append(nil)
	if len(b) != 272 || !bytes.HasPrefix(b, []byte("\x00\x00alpha\x00")) {
		t.Fatalf("%d bytes: %x", len(b), b[:10])
	}
	var back infoReq
	if err := back.Parse(b); err != nil || back != req {
		t.Fatal(back, err)
	}
	rsp := infoRsp{Errno: 3, Epoch: uuid{7}, Desc: []sgDesc{{1, 2, 3}, {4, 5, 6}}}
	b = rsp.Append(nil)
	want := "0100" + "0200" + "0300" + "0000" + "07" + strings.Repeat("00", 15) + "0100000000000000" + "02000000" + "03000000" + "0400000000000000" + "05000000" + "06000000"
	if got := hex.EncodeToString(b); got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	var rspBack infoRsp
	if err := rspBack.Parse(b); err != nil || !reflect.DeepEqual(rspBack, rsp) {
		t.Fatal(rspBack, err)
	}
}

func TestIOMsgGolden(t *testing.T) {
	for _, c := range []struct {
		m    ioMsg
		want string
	}{
		{ioMsg{Type: msgWrite, UsrLen: 32, Seq: 5}, "0200" + "2000" + "05000000"},
		{ioMsg{Type: msgRead, UsrLen: 8, Seq: 6, Desc: sgDesc{1, 0xdeadbeef, 4096}}, "0300" + "0800" + "0000" + "0100" + "0100000000000000" + "efbeadde" + "00100000" + "06000000"},
	} {
		b := c.m.Append(nil)
		if got := hex.EncodeToString(b); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
		var back ioMsg
		if err := back.Parse(b); err != nil || back != c.m {
			t.Errorf("%+v, %v", back, err)
		}
		for i := range b {
			if err := new(ioMsg).Parse(b[:i]); !errors.Is(err, ErrWire) {
				t.Errorf("%d of %d bytes were accepted", i, len(b))
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	good := (&infoReq{Name: "x"}).Append(nil)
	unterminated := bytes.Clone(good)
	for i := 2; i < 2+nameMax; i++ {
		unterminated[i] = 'a'
	}
	req := (&ConReq{Version: Version, Incarnation: 7}).Append(nil)
	recon := bytes.Clone(req)
	recon[10]++
	for name, err := range map[string]error{
		"short INFO_REQ":               new(infoReq).Parse(good[:271]),
		"INFO_REQ of another type":     new(infoReq).Parse(append([]byte{1}, good[1:]...)),
		"empty name":                   new(infoReq).Parse((&infoReq{}).Append(nil)),
		"unterminated name":            new(infoReq).Parse(unterminated),
		"control character in name":    new(infoReq).Parse((&infoReq{Name: "a\nb"}).Append(nil)),
		"C1 control in name":           new(infoReq).Parse((&infoReq{Name: "a\u009b31mb"}).Append(nil)),
		"bidi override in name":        new(infoReq).Parse((&infoReq{Name: "a\u202eb"}).Append(nil)),
		"name that is not UTF-8":       new(infoReq).Parse((&infoReq{Name: "a\x9bb"}).Append(nil)),
		"INFO_RSP with too many":       new(infoRsp).Parse((&infoRsp{Desc: make([]sgDesc, 2)}).Append(nil)[:infoRspLen(1)]),
		"short INFO_RSP":               new(infoRsp).Parse(nil),
		"short CON_REQ":                new(ConReq).Parse(req[:55]),
		"CON_REQ of another magic":     new(ConReq).Parse(make([]byte, 56)),
		"CON_REQ with two counters":    new(ConReq).Parse(recon),
		"short CON_RSP":                new(ConRsp).Parse(make([]byte, 55)),
		"CON_RSP of another magic":     new(ConRsp).Parse(make([]byte, 56)),
		"message of an unknown type":   new(ioMsg).Parse(make([]byte, 24)),
		"READ with two targets":        new(ioMsg).Parse([]byte{3, 0, 0, 0, 0, 0, 2, 0, 23: 0}),
		"READ that wants invalidation": new(ioMsg).Parse([]byte{3, 0, 0, 0, 1, 0, 1, 0, 23: 0}),
	} {
		if !errors.Is(err, ErrWire) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestImmediates(t *testing.T) {
	for _, depth := range []int{2, 129, 256, 512} {
		ob := offsetBits(depth)
		for _, id := range []uint32{0, 1, uint32(depth - 1)} {
			for _, off := range []uint32{0, 4096, 1<<ob - 1} {
				imm := reqImm(id, off, ob)
				if gotID, gotOff := splitReq(imm, ob); gotID != id || gotOff != off || immType(imm) != immIOReq || imm>>32 != 0 {
					t.Errorf("depth %d: request %d at %d became %d at %d (%#x)", depth, id, off, gotID, gotOff, imm)
				}
			}
		}
	}
	imm := rspImm(0x7ffff, syscall.ENOSPC, 0xcafebabe)
	if imm != 0xcafebabe_10000000|28<<19|0x7ffff {
		t.Errorf("response %#x", imm)
	}
	if id, errno, stag := splitRsp(imm); id != 0x7ffff || errno != syscall.ENOSPC || stag != 0xcafebabe || immType(imm) != immIORsp {
		t.Errorf("response came back as %d, %v, %#x", id, errno, stag)
	}
	if _, errno, _ := splitRsp(rspImm(1, 512, 0)); errno != syscall.EIO {
		t.Errorf("an errno that does not fit became %d, want EIO", errno)
	}
}

func FuzzConReq(f *testing.F) {
	f.Add((&ConReq{Version: Version, CID: 1, CIDNum: 2, Incarnation: 9}).Append(nil))
	f.Add(make([]byte, 56))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back ConReq
		if m.Parse(b) != nil || m.Version != Version {
			return
		}
		if err := back.Parse(m.Append(nil)); err != nil || back != m {
			t.Fatalf("%+v became %+v: %v", m, back, err)
		}
	})
}

func FuzzConRsp(f *testing.F) {
	f.Add((&ConRsp{Version: Version, QueueDepth: 3}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, back ConRsp
		if m.Parse(b) != nil {
			return
		}
		if err := back.Parse(m.Append(nil)); err != nil || back != m {
			t.Fatalf("%+v became %+v: %v", m, back, err)
		}
	})
}

func FuzzInfo(f *testing.F) {
	f.Add((&infoReq{Name: "alpha"}).Append(nil))
	f.Add((&infoRsp{Desc: []sgDesc{{1, 2, 3}}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var req, reqBack infoReq
		if req.Parse(b) == nil {
			if err := reqBack.Parse(req.Append(nil)); err != nil || reqBack != req {
				t.Fatalf("%q became %q: %v", req.Name, reqBack.Name, err)
			}
		}
		var rsp, rspBack infoRsp
		if rsp.Parse(b) == nil {
			if err := rspBack.Parse(rsp.Append(nil)); err != nil || !reflect.DeepEqual(rspBack, rsp) {
				t.Fatalf("%+v became %+v: %v", rsp, rspBack, err)
			}
		}
	})
}

// FuzzRequest proves that no message makes a request reach outside its chunk.
func FuzzRequest(f *testing.F) {
	f.Add((&ioMsg{Type: msgWrite, UsrLen: 8}).Append(make([]byte, 108)), uint32(108))
	f.Add((&ioMsg{Type: msgRead, UsrLen: 8, Desc: sgDesc{0, 1, 100}}).Append(make([]byte, 108)), uint32(108))
	f.Fuzz(func(t *testing.T, b []byte, off uint32) {
		chunk := make([]byte, 4096+chunkHeader)
		copy(chunk, b)
		r := Request{mem: chunk}
		if r.parse(off, 4096) != nil {
			return
		}
		if len(r.Data) > 4096 || len(r.Header) > MaxHeader || len(r.Data)+len(r.Header) != int(off) || cap(r.Header) != len(r.Header) || cap(r.Data) != len(r.Data) {
			t.Fatalf("%d bytes of data, %d of header in front of %d", len(r.Data), len(r.Header), off)
		}
		if r.Dir == Read && int(r.target.Len) != len(r.Data) {
			t.Fatalf("a read of %d bytes goes into a window of %d", len(r.Data), r.target.Len)
		}
	})
}
