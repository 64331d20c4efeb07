// Package enhanced is the enhanced connection establishment of RFC 6581, which MPA
// and SCTP's session control have in common: the data that both ends exchange, and
// what follows from it.
package enhanced

import (
	"encoding/binary"
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
)

const (
	// Len is the length of Data in bytes.
	Len = 4

	// DepthULP as IRD or ORD says on the wire that the ULPs agree on the depth
	// themselves (RFC 6581 section 9.1): the largest value of the field, above
	// MaxDepth.
	DepthULP = 0x3fff
	// MaxDepth is the largest depth that the 14-bit fields can negotiate.
	MaxDepth = 0x3ffe

	// refusalDepth is the IRD and ORD in the reply of an end that refuses for another
	// reason.
	refusalDepth = 32

	// CodeIRD and CodeRTR are the codes of a Terminate about the set-up (RFC 6581
	// section 8).
	CodeIRD uint8 = 0x06 // insufficient IRD resources
	CodeRTR uint8 = 0x07 // no matching RTR option
)

// Depth turns a configured depth into its wire value: 0 is no RDMA Reads, and
// what the field can't hold is cut to MaxDepth.
func Depth(d uint16) uint16 {
	if d == DepthULP {
		return d
	}
	return min(d, MaxDepth)
}

// RTR is a set of ready-to-receive indications: the first message of an
// initiator in the peer-to-peer model (RFC 6581 section 9.2).
type RTR uint8

// The zero-length messages that may serve as RTR.
const (
	RTRSend RTR = 1 << iota
	RTRWrite
	RTRRead
)

// Data is the enhanced RDMA connection establishment data (RFC 6581 section 9).
//
//	0: A B IRD(14) | 2: C D ORD(14)
type Data struct {
	PeerToPeer bool   // A: peer-to-peer model; otherwise RTR has no meaning
	RTR        RTR    // B, C, D
	IRD, ORD   uint16 // 14 bits each; DepthULP leaves them to the ULP
}

const (
	flagPeerToPeer = 0x8000 // A, in the IRD word
	flagRTRSend    = 0x4000 // B, in the IRD word
	flagRTRWrite   = 0x8000 // C, in the ORD word
	flagRTRRead    = 0x4000 // D, in the ORD word
	depthMask      = 0x3fff
)

// Parse reads the first Len bytes of b.
func Parse(b []byte) *Data {
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	d := &Data{IRD: ird & depthMask, ORD: ord & depthMask, PeerToPeer: ird&flagPeerToPeer != 0}
	if d.PeerToPeer { // otherwise the flags are ignored, section 9.2
		if ird&flagRTRSend != 0 {
			d.RTR |= RTRSend
		}
		if ord&flagRTRWrite != 0 {
			d.RTR |= RTRWrite
		}
		if ord&flagRTRRead != 0 {
			d.RTR |= RTRRead
		}
	}
	return d
}

// Append appends d in wire format.
func (d *Data) Append(b []byte) []byte {
	ird, ord := d.IRD&depthMask, d.ORD&depthMask
	if d.PeerToPeer {
		ird |= flagPeerToPeer
		if d.RTR&RTRSend != 0 {
			ird |= flagRTRSend
		}
		if d.RTR&RTRWrite != 0 {
			ord |= flagRTRWrite
		}
		if d.RTR&RTRRead != 0 {
			ord |= flagRTRRead
		}
	}
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, ird), ord)
}

// Agreed is what an end wants at first, and what both have agreed on in the end.
type Agreed struct {
	IRD, ORD uint16
	RTR      RTR // 0 outside the peer-to-peer model
}

// Ask is the data of an initiator's request. rtr, if not 0, asks for the
// peer-to-peer model.
func (a *Agreed) Ask(rtr RTR) *Data {
	return &Data{IRD: a.IRD, ORD: a.ORD, PeerToPeer: rtr != 0, RTR: rtr}
}

// Answer is the responder's part (RFC 6581 sections 9.1 and 9.2): the data of the
// reply. supported are the indications that it takes, 0 for Write and Read. A Read
// needs an IRD, so an end that takes no RDMA Reads chooses it only if nothing else is
// offered. If nothing fits, the answer is what is supported, and the initiator
// gives up.
func (a *Agreed) Answer(req *Data, supported RTR) *Data {
	rep := &Data{PeerToPeer: req.PeerToPeer}
	var least uint16 // IRD
	if req.PeerToPeer {
		if supported == 0 {
			supported = RTRWrite | RTRRead
		}
		a.RTR = req.RTR & supported
		if a.IRD == 0 && a.RTR != RTRRead {
			a.RTR &^= RTRRead
		}
		if rep.RTR = a.RTR; rep.RTR == 0 {
			rep.RTR = supported
		}
		if a.RTR&RTRRead != 0 { // also where the initiator's ORD is 0
			least = 1
		}
	}
	a.IRD = max(a.IRD, least)
	if req.ORD == DepthULP || a.IRD == DepthULP {
		rep.IRD = DepthULP
	} else {
		a.IRD = min(a.IRD, max(req.ORD, least))
		rep.IRD = a.IRD
	}
	switch {
	case req.IRD == DepthULP:
		rep.ORD = DepthULP
	case a.ORD == DepthULP:
		a.ORD = req.IRD
		rep.ORD = a.ORD
	default:
		a.ORD = min(a.ORD, req.IRD)
		rep.ORD = a.ORD
	}
	return rep
}

// Refuse is the data of a reply that refuses the stream and names no depths.
// supported is as in Answer.
func Refuse(req *Data, supported RTR) *Data {
	a := Agreed{IRD: refusalDepth, ORD: refusalDepth}
	return a.Answer(req, supported)
}

// Take is the initiator's part. After an error the peer gets a Terminate.
func (a *Agreed) Take(req, rep *Data) *ddp.Error {
	a.IRD, a.ORD = req.IRD, req.ORD
	if rep.IRD != DepthULP && a.ORD != DepthULP {
		a.ORD = min(a.ORD, rep.IRD)
	}
	switch {
	case rep.ORD != DepthULP && a.IRD != DepthULP && rep.ORD > a.IRD:
		return fault(CodeIRD, "the peer wants %d outstanding reads and %d are accepted here", rep.ORD, a.IRD)
	case rep.PeerToPeer && !req.PeerToPeer:
		return fault(CodeRTR, "the peer wants the peer-to-peer model, for which it was not asked")
	case !req.PeerToPeer:
		return nil
	}
	if a.RTR = req.RTR & rep.RTR; rep.IRD == 0 { // no Read may go there
		a.RTR &^= RTRRead
	}
	if a.RTR == 0 {
		return fault(CodeRTR, "the peer takes none of the offered ready-to-receive indications")
	}
	return nil
}

func fault(code uint8, format string, args ...any) *ddp.Error {
	return &ddp.Error{Layer: ddp.LayerLLP, Type: 0, Code: code, Text: fmt.Sprintf(format, args...)}
}
