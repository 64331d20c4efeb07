package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// wire is what a connection carries. This process computes each CRC itself, outside of
// the virtual machine and without either end's code.
type wire struct {
	Startup
	up, down direction
}

// direction is what one end sent after its start-up frame.
type direction struct {
	fpdus      int
	wrong      []wrongFPDU
	garbage    string // why the rest can't be read
	terminates [][]byte
}

// wrongFPDU is an FPDU whose CRC is wrong.
type wrongFPDU struct {
	index      int // in its direction
	length     int // of the ULPDU
	header     []byte
	sent, want uint32
}

func (w wrongFPDU) String() string {
	return fmt.Sprintf("FPDU %d, ULPDU of %d bytes that begins %x: its CRC is %08x, it should be %08x", w.index, w.length, w.header, w.sent, w.want)
}

// Lengths in bytes (RFC 5044 sections 4.1 and 7.1.1).
const (
	startupFixed = 20
	lengthField  = 2
	crcField     = 4
	minULPDU     = 14 // a tagged DDP header
	ddpVersion   = 1
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// read parses what has come since: start-up frames first, then FPDUs.
func (c *connection) read() {
	w := &c.wire
	if w.Request == nil {
		w.Request = takeFrame(&c.up, &w.up, false)
	}
	if w.Reply == nil && w.Request != nil {
		w.Reply = takeFrame(&c.down, &w.down, true)
	}
	if w.Request == nil || w.Reply == nil {
		return
	}
	for {
		u := takeULPDU(&c.up, &w.up, w.CRC())
		if u == nil {
			break
		}
		if w.First == nil {
			w.First = append([]byte(nil), u...)
		}
	}
	for takeULPDU(&c.down, &w.down, w.CRC()) != nil {
	}
}

// takeFrame takes a start-up frame if it is complete.
func takeFrame(h *half, d *direction, reply bool) *mpa.Frame {
	if d.garbage != "" || len(h.bytes) < startupFixed {
		return nil
	}
	n := startupFixed + int(binary.BigEndian.Uint16(h.bytes[startupFixed-2:]))
	if len(h.bytes) < n {
		return nil
	}
	fr, err := mpa.ParseFrame(append([]byte(nil), h.bytes[:n]...), reply)
	if err != nil {
		d.garbage = err.Error()
		return nil
	}
	h.bytes = h.bytes[n:]
	return &fr
}

// takeULPDU takes an FPDU if it is complete, and judges it. No end in these tests has
// markers.
func takeULPDU(h *half, d *direction, crc bool) []byte {
	if d.garbage != "" || len(h.bytes) < lengthField {
		return nil
	}
	n := int(binary.BigEndian.Uint16(h.bytes))
	if n < minULPDU {
		d.garbage = fmt.Sprintf("behind FPDU %d comes one of %d bytes", d.fpdus, n)
		return nil
	}
	covered := (lengthField + n + 3) &^ 3
	if len(h.bytes) < covered+crcField {
		return nil
	}
	fpdu := h.bytes[:covered+crcField]
	h.bytes = h.bytes[len(fpdu):]
	u := fpdu[lengthField : lengthField+n]
	if ddp.HeaderLen(u) == 0 || u[0]&3 != ddpVersion {
		d.garbage = fmt.Sprintf("FPDU %d is no DDP segment: %x", d.fpdus, u[:minULPDU])
		return nil
	}
	// The CRC is sent with its least significant byte first (RFC 5044 section 4.4).
	if sent, want := binary.LittleEndian.Uint32(fpdu[covered:]), crc32.Checksum(fpdu[:covered], castagnoli); crc && sent != want {
		d.wrong = append(d.wrong, wrongFPDU{index: d.fpdus, length: n, header: append([]byte(nil), u[:minULPDU]...), sent: sent, want: want})
	}
	d.fpdus++
	if t := terminate(u); t != nil {
		d.terminates = append(d.terminates, append([]byte(nil), t...))
	}
	return u
}

// terminate is the payload of a segment that is a Terminate.
func terminate(u []byte) []byte {
	if ddp.IsTagged(u) || len(u) < ddp.HeaderLen(u) {
		return nil
	}
	seg := ddp.Untagged(u)
	if _, op := rdmap.ParseControl(seg.ULP()); op != rdmap.OpTerminate {
		return nil
	}
	return seg.Payload()
}
