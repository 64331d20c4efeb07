package oracle

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

// decoded is what tshark understood of one connection.
type decoded struct {
	startup [2]fpdu
	lines   [2][]string // messages, in the words of end.meant
	payload [2][][]byte // of each message, as far as tshark shows it
	odd     []string    // what none of our messages looks like
	fpdus   int
	goodCRC int
	badCRC  int
	markers [2]int
}

// unknownOpcode has the operations that tshark 4.0 has no name for: it decodes the DDP
// header of Immediate Data (RFC 7306 section 6) and not the data. It knows Atomics.
var unknownOpcode = map[rdmap.Opcode]string{rdmap.OpImmediate: "Unknown", rdmap.OpImmediateSE: "Unknown"}

// number parses one of tshark's numbers, decimal or hexadecimal.
func (f *fpdu) number(name string) uint64 {
	v, err := strconv.ParseUint(f.fields[name], 0, 64)
	if err != nil {
		return 0xdead0000dead // no field of a test has this value
	}
	return v
}

// payloadLen is the length of the ULPDU without the DDP header.
func (f *fpdu) payloadLen() int {
	header := ddp.UntaggedHeaderLen
	if f.number("iwarp_ddp.tagged_flag") == 1 {
		header = ddp.TaggedHeaderLen
	}
	return int(f.number("iwarp_mpa.ulpdulength")) - header
}

func (f *fpdu) stag(name string) string { return fmt.Sprintf("%#08x", uint32(f.number(name))) }

// understand assembles tshark's FPDUs of the connection with that client's port into
// messages.
func understand(frames []fpdu, port int) *decoded {
	h := &decoded{}
	var asked [2]map[uint64]int // identifiers that an end chose, in order
	for i := range asked {
		asked[i] = map[uint64]int{}
	}
	var open [2]*message
	for i := range frames {
		f := &frames[i]
		if f.port != port {
			continue
		}
		if _, ok := f.fields["iwarp_mpa.rev"]; ok {
			h.startup[f.from] = *f
			continue
		}
		h.fpdus++
		for _, m := range f.markers {
			if start := f.markers[0].at == 0; m.pointer != m.at && !(start && m.pointer == max(0, m.at-4)) {
				h.odd = append(h.odd, fmt.Sprintf("%s: a marker at %d of an FPDU points %d back", endNames[f.from], m.at, m.pointer))
			}
		}
		h.markers[f.from] += len(f.markers)
		switch {
		case strings.HasPrefix(f.crc, "Good"):
			h.goodCRC++
		case f.crc != "":
			h.badCRC++
		}
		op := rdmap.Opcode(f.number("iwarp_rdma.opcode"))
		m := open[f.from]
		if m == nil {
			m = &message{op: op, first: f}
		}
		m.segments++
		if name := f.fields["opcode name"]; name != op.String() && name != unknownOpcode[op] {
			h.odd = append(h.odd, fmt.Sprintf("%s: tshark calls opcode %d %q", endNames[f.from], op, name))
		}
		if f.number("iwarp_ddp.dv") != 1 || f.number("iwarp_rdma.version") != 1 || op != m.op || m.skips(f) {
			h.odd = append(h.odd, fmt.Sprintf("%s: segment %d of %v: %v", endNames[f.from], m.segments, m.op, f.fields))
		}
		m.n += f.payloadLen()
		m.payload = append(m.payload, f.payload...)
		if open[f.from] = m; f.number("iwarp_ddp.last_flag") == 1 {
			open[f.from] = nil
			h.lines[f.from] = append(h.lines[f.from], m.line(asked[f.from], asked[1-f.from]))
			h.payload[f.from] = append(h.payload[f.from], m.payload)
		}
	}
	for from, m := range open {
		if m != nil {
			h.odd = append(h.odd, fmt.Sprintf("%s: a %v without an end", endNames[from], m.op))
		}
	}
	return h
}

// message is made of one or more DDP segments.
type message struct {
	op       rdmap.Opcode
	first    *fpdu
	segments int
	n        int // bytes of payload so far
	payload  []byte
}

// skips reports whether a segment does not follow the ones before (RFC 5041 sections
// 4.2 and 4.3).
func (m *message) skips(f *fpdu) bool {
	if f.number("iwarp_ddp.tagged_flag") == 1 {
		return f.stag("iwarp_ddp.stag") != m.first.stag("iwarp_ddp.stag") ||
			f.number("iwarp_ddp.tagged_offset") != m.first.number("iwarp_ddp.tagged_offset")+uint64(m.n)
	}
	return f.number("iwarp_ddp.msn") != m.first.number("iwarp_ddp.msn") || f.number("iwarp_ddp.mo") != uint64(m.n)
}

// line describes the message. mine numbers its sender's requests, theirs those that it
// answers.
func (m *message) line(mine, theirs map[uint64]int) string {
	f := m.first
	ask := func(field string) string {
		mine[f.number(field)] = len(mine) + 1
		return fmt.Sprintf("#%d", mine[f.number(field)])
	}
	answer := func(field string) string { return fmt.Sprintf("#%d", theirs[f.number(field)]) }
	line := m.op.String()
	if f.number("iwarp_ddp.tagged_flag") == 1 {
		stag := f.stag("iwarp_ddp.stag")
		if m.op == rdmap.OpReadResponse {
			stag = answer("iwarp_ddp.stag")
		}
		return fmt.Sprintf("%s stag=%s to=%d len=%d in %d", line, stag, f.number("iwarp_ddp.tagged_offset"), m.n, m.segments)
	}
	if m.op == rdmap.OpSendInvalidate || m.op == rdmap.OpSendSEInvalidate {
		line += " inv=" + f.stag("iwarp_rdma.inval_stag")
	}
	line += fmt.Sprintf(" qn=%d msn=%d", f.number("iwarp_ddp.qn"), f.number("iwarp_ddp.msn"))
	const a = "iwarp_rdma.atomic."
	switch m.op {
	case rdmap.OpReadRequest:
		line += fmt.Sprintf(" sink=%s sinkto=%d size=%d src=%s srcto=%d", ask("iwarp_rdma.sinkstag"), f.number("iwarp_rdma.sinkto"),
			f.number("iwarp_rdma.rdmardsz"), f.stag("iwarp_rdma.srcstag"), f.number("iwarp_rdma.srcto"))
	case rdmap.OpAtomicRequest:
		line += fmt.Sprintf(" id=%s", ask(a+"request_identifier"))
		target := fmt.Sprintf("stag=%s to=%d", f.stag(a+"remote_stag"), f.number(a+"remote_tagged_offset"))
		if rdmap.AtomicOp(f.number(a+"opcode")) == rdmap.AtomicCmpSwap {
			line += fmt.Sprintf(" CmpSwap %s swap=%#x mask=%#x compare=%#x mask=%#x", target, f.number(a+"swap_data"), f.number(a+"swap_mask"),
				f.number(a+"compare_data"), f.number(a+"compare_mask"))
		} else {
			line += fmt.Sprintf(" FetchAdd %s add=%#x mask=%#x", target, f.number(a+"add_data"), f.number(a+"add_mask"))
		}
	case rdmap.OpAtomicResponse:
		line += fmt.Sprintf(" id=%s original=%#x", answer(a+"original_request_identifier"), f.number(a+"original_remote_data_value"))
	case rdmap.OpTerminate:
		line += f.terminate()
	default:
		line += fmt.Sprintf(" len=%d", m.n)
	}
	return line + fmt.Sprintf(" in %d", m.segments)
}

// terminate describes the Terminate header (RFC 5040 section 4.8). tshark names
// type and code by the layer.
func (f *fpdu) terminate() string {
	const t = "iwarp_rdma.term_"
	first := func(names ...string) uint64 {
		for _, name := range names {
			if _, ok := f.fields[t+name]; ok {
				return f.number(t + name)
			}
		}
		return 0xdead
	}
	hex := func(name string) string { return strings.ReplaceAll(f.fields[t+name], ":", "") }
	return fmt.Sprintf(" %d/%d/%#02x M=%d D=%d R=%d length=%s ddp=%s rdmap=%s", f.number(t+"layer"),
		first("etype_rdma", "etype_ddp", "etype_llp", "etype"),
		first("errcode_rdma", "errcode_ddp_tagged", "errcode_ddp_untagged", "errcode_llp", "errcode"),
		f.number(t+"hdrct_m"), f.number("iwarp_rdma.hdrct_d"), f.number("iwarp_rdma.hdrct_r"),
		hex("ddp_seg_len"), hex("ddp_h"), hex("rdma_h"))
}
