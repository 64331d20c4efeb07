package sctpadapt

import (
	"fmt"

	"github.com/ironwarp/ironwarp/ddp"
)

// depth turns a configured depth into what goes on the wire.
func depth(d uint16) uint16 {
	switch d {
	case 0:
		return DefaultDepth
	case DepthNone:
		return 0
	case DepthULP:
		return DepthULP
	}
	return min(d, MaxDepth)
}

// negotiated is what both ends have agreed on.
type negotiated struct {
	ird, ord uint16
	rtr      RTR
}

// reply is the responder's part (RFC 6581 sections 9.1 and 9.2).
func (n *negotiated) reply(req *Enhanced, supported RTR) *Enhanced {
	if supported == 0 {
		supported = RTRWrite | RTRRead
	}
	rep := &Enhanced{PeerToPeer: req.PeerToPeer}
	least := uint16(0) // IRD
	if req.PeerToPeer {
		if rep.RTR = req.RTR & supported; rep.RTR == 0 {
			rep.RTR = supported
		}
		n.rtr = rep.RTR & req.RTR
		if n.rtr == RTRRead {
			least = 1
		}
	}
	n.ird = max(n.ird, least)
	if req.ORD == DepthULP || n.ird == DepthULP {
		rep.IRD = DepthULP
	} else {
		n.ird = min(n.ird, max(req.ORD, least))
		rep.IRD = n.ird
	}
	switch {
	case req.IRD == DepthULP:
		rep.ORD = DepthULP
	case n.ord == DepthULP:
		n.ord = req.IRD
		rep.ORD = n.ord
	default:
		n.ord = min(n.ord, req.IRD)
		rep.ORD = n.ord
	}
	return rep
}

// Codes of a Terminate message about the set-up (RFC 6581 section 8).
const (
	codeIRD = 0x06
	codeRTR = 0x07
)

// take is the initiator's part.
func (n *negotiated) take(req, rep *Enhanced) *ddp.Error {
	n.ird, n.ord = req.IRD, req.ORD
	if rep.IRD != DepthULP && n.ord != DepthULP {
		n.ord = min(n.ord, rep.IRD)
	}
	fault := func(code uint8, format string, args ...any) *ddp.Error {
		return &ddp.Error{Layer: ddp.LayerLLP, Type: 0, Code: code, Text: fmt.Sprintf(format, args...)}
	}
	if rep.ORD != DepthULP && n.ird != DepthULP && rep.ORD > n.ird {
		return fault(codeIRD, "the peer wants %d outstanding reads and %d are accepted here", rep.ORD, n.ird)
	}
	if rep.PeerToPeer && !req.PeerToPeer {
		return fault(codeRTR, "the peer wants the peer-to-peer model, for which it was not asked")
	}
	if req.PeerToPeer {
		if n.rtr = req.RTR & rep.RTR; rep.IRD == 0 { // no Read may go there
			n.rtr &^= RTRRead
		}
		if n.rtr == 0 {
			return fault(codeRTR, "the peer takes none of the offered ready-to-receive indications")
		}
	}
	return nil
}
