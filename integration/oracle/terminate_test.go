package oracle

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// regions are what a misbehaving client finds at the server.
type regions struct {
	write, read, both, foreign uint32 // STags, of 8,192 bytes each
}

func untagged(op rdmap.Opcode, inv, qn, msn, mo uint32, payload ...byte) []byte {
	return append(ddp.AppendUntagged(nil, true, rdmap.Control(op), inv, qn, msn, mo), payload...)
}

func tagged(op rdmap.Opcode, stag uint32, to uint64, n int) []byte {
	return append(ddp.AppendTagged(nil, true, rdmap.Control(op), stag, to), make([]byte, n)...)
}

func readRequest(stag uint32, to uint64, n uint32) []byte {
	return rdmap.ReadRequest{SinkSTag: 1, Size: n, SourceSTag: stag, SourceTO: to}.Append(untagged(rdmap.OpReadRequest, 0, 1, 1, 0))
}

func atomicRequest(stag uint32, to uint64) []byte {
	return rdmap.AtomicRequest{ID: 1, STag: stag, TO: to}.Append(untagged(rdmap.OpAtomicRequest, 0, 1, 1, 0))
}

// faults are what a client may do to be sent a Terminate: layer, type and code of
// RFC 5040 section 4.8, RFC 5041 section 7.2 and RFC 5044 section 8.
var faults = []struct {
	name             string
	layer, typ, code int
	segment          func(r regions) []byte
	spoil            bool // the FPDU's CRC
}{
	{"Write, invalid STag", 1, 1, 0, func(regions) []byte { return tagged(rdmap.OpWrite, 0x01020304, 0, 9) }, false},
	{"Write past the end", 1, 1, 1, func(r regions) []byte { return tagged(rdmap.OpWrite, r.write, 8192, 1) }, false},
	{"Write to another protection domain", 1, 1, 2, func(r regions) []byte { return tagged(rdmap.OpWrite, r.foreign, 0, 9) }, false},
	{"Write, TO wraps", 1, 1, 3, func(r regions) []byte { return tagged(rdmap.OpWrite, r.write, ^uint64(0), 2) }, false},
	{"Write, DDP version", 1, 1, 4, func(r regions) []byte { return append([]byte{0xc0}, tagged(rdmap.OpWrite, r.write, 0, 9)[1:]...) }, false},
	{"Write without the right", 0, 1, 2, func(r regions) []byte { return tagged(rdmap.OpWrite, r.read, 0, 9) }, false},
	{"Send, queue number", 1, 2, 1, func(regions) []byte { return untagged(rdmap.OpSend, 0, 4, 1, 0, 1) }, false},
	{"Send, no buffer", 1, 2, 2, func(regions) []byte { return untagged(rdmap.OpSend, 0, 0, 1, 0, 1) }, false},
	{"Send, MSN", 1, 2, 3, func(regions) []byte { return untagged(rdmap.OpSend, 0, 0, 7, 0, 1) }, false},
	{"Send, MO", 1, 2, 4, func(regions) []byte { return untagged(rdmap.OpSend, 0, 0, 1, 3, 1) }, false},
	{"Read Request in two segments", 1, 2, 5, func(r regions) []byte {
		b := readRequest(r.read, 0, 4)
		b[0] &^= 0x40
		return b
	}, false},
	{"Send, DDP version", 1, 2, 6, func(regions) []byte { return append([]byte{0x42}, untagged(rdmap.OpSend, 0, 0, 1, 0, 1)[1:]...) }, false},
	{"Read, invalid STag", 0, 1, 0, func(regions) []byte { return readRequest(0x01020304, 0, 4) }, false},
	{"Read past the end", 0, 1, 1, func(r regions) []byte { return readRequest(r.read, 8190, 3) }, false},
	{"Read without the right", 0, 1, 2, func(r regions) []byte { return readRequest(r.write, 0, 4) }, false},
	{"Read of another protection domain", 0, 1, 3, func(r regions) []byte { return readRequest(r.foreign, 0, 4) }, false},
	{"Read, TO wraps", 0, 1, 4, func(r regions) []byte { return readRequest(r.read, ^uint64(0), 4) }, false},
	{"RDMAP version", 0, 2, 5, func(regions) []byte {
		b := untagged(rdmap.OpSend, 0, 0, 1, 0, 1)
		b[1] &= 0x0f
		return b
	}, false},
	{"unexpected opcode", 0, 2, 6, func(regions) []byte { return untagged(rdmap.OpWrite, 0, 0, 1, 0) }, false},
	{"Atomic, invalid STag", 0, 1, 0, func(regions) []byte { return atomicRequest(0x01020304, 0) }, false},
	{"Atomic without the right", 0, 1, 2, func(r regions) []byte { return atomicRequest(r.both, 0) }, false},
	{"wrong CRC", 2, 0, 2, func(r regions) []byte { return tagged(rdmap.OpWrite, r.write, 0, 9) }, true},
}

// Each fault is answered by a Terminate in which tshark finds layer, type, code and the
// headers of the segment at fault.
func TestTsharkReadsEveryTerminate(t *testing.T) {
	requireTshark(t)
	f := newFile(t)
	var want []string
	for i, tc := range faults {
		s := newEnd(t, server)
		foreign, err := s.ulp.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		mr, err := foreign.RegisterMR(make([]byte, 8192), verbs.LocalWrite|verbs.RemoteRead|verbs.RemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		seg := tc.segment(regions{
			write: s.region(verbs.LocalWrite | verbs.RemoteWrite).STag(), read: s.region(verbs.RemoteRead).STag(),
			both: s.region(verbs.LocalWrite | verbs.RemoteWrite | verbs.RemoteRead).STag(), foreign: mr.STag(),
		})
		tp, nc := connection(t)
		provoke(t, s, nc, seg, tc.spoil)
		f.add(tp, uint16(40000+i), cuts[0], i%2 == 1, [2]bool{})

		want = append(want, fmt.Sprintf("Terminate qn=2 msn=1 %d/%d/%#02x %s in 1", tc.layer, tc.typ, tc.code, quotation(tc.layer, tc.typ, seg, tc.spoil)))
	}
	found := ask(t, f.path, serverPort)
	for _, p := range found.problems {
		t.Error(p)
	}
	for i, tc := range faults {
		h := understand(found.frames, 40000+i)
		if s := firstDifference(want[i:i+1], h.lines[server]); s != "" {
			t.Errorf("%s: %s", tc.name, s)
		}
		bad := 0
		if tc.spoil {
			bad = 1
		}
		if h.badCRC != bad || h.goodCRC == 0 {
			t.Errorf("%s: %d FPDUs have a wrong CRC and %d a good one", tc.name, h.badCRC, h.goodCRC)
		}
	}
}

// quotation is what a Terminate has to quote (RFC 5040 section 4.8), in tshark's
// fields: of an MPA error nothing, otherwise the DDP header, and with it the RDMAP
// header of a Read Request that RDMAP rejects.
//
// In an RDMAP protection error tshark takes any quoted DDP header for a tagged one, of
// 14 bytes, and what follows for the RDMAP header. So there the bytes are right, and
// its names for them are not.
func quotation(layer, typ int, seg []byte, nothing bool) string {
	if nothing {
		return "M=0 D=0 R=0 length= ddp= rdmap="
	}
	n, r := ddp.HeaderLen(seg), 0
	quoted := seg[:n]
	if rdmap.Opcode(seg[1]&0x0f) == rdmap.OpReadRequest && layer == int(ddp.LayerRDMA) {
		quoted, r = seg, 1
	}
	if layer == int(ddp.LayerRDMA) && typ == int(rdmap.TypeRemoteProtection) {
		n = ddp.TaggedHeaderLen
		quoted = quoted[:n+r*rdmap.ReadRequestLen]
	}
	return fmt.Sprintf("M=1 D=1 R=%d length=%04x ddp=%x rdmap=%x", r, len(seg), quoted[:n], quoted[n:])
}

// provoke sends one segment from a raw client to a queue pair of s, and reads the queue
// pair's answers until it ends.
func provoke(t *testing.T, s *end, nc [2]net.Conn, seg []byte, spoil bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		r, err := mpa.Server(ctx, nc[server], nil)
		if err == nil {
			s.conn, err = r.Accept(ctx, mpa.AcceptOptions{IRD: 4, ORD: 4})
		}
		served <- err
	}()
	_, err := mpa.Client(ctx, nc[client], &mpa.Config{IRD: 4, ORD: 4})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	s.adopt(false)
	if _, err := nc[client].Write(frame(seg, spoil)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, nc[client]); err != nil {
		t.Fatal(err)
	}
	nc[client].Close()
	finish(t, s)
}

// frame makes an FPDU (RFC 5044 section 4.1) without package mpa.
func frame(seg []byte, spoil bool) []byte {
	b := append(binary.BigEndian.AppendUint16(nil, uint16(len(seg))), seg...)
	b = append(b, make([]byte, -len(b)&3)...)
	crc := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	if spoil {
		crc ^= 1
	}
	return binary.LittleEndian.AppendUint32(b, crc)
}
