package mpa

import (
	"time"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/ddp/tap"
)

// CRCMode is a side's wish for CRCs. They are on if either side wants them
// (RFC 5044 section 7.1.1).
type CRCMode uint8

const (
	// CRCPrefer asks for CRCs, the default.
	CRCPrefer CRCMode = iota
	// CRCAvoid does not ask. Only an administrator may choose it, and only where
	// something else protects the stream as well, such as ESP (RFC 5044
	// section 4.4).
	CRCAvoid
)

// Config describes how a connection starts up. The zero value is useful. It is
// read only and may be shared.
type Config struct {
	CRC CRCMode

	// Markers asks the peer to send markers to us. Whether we send them is the
	// peer's wish.
	Markers bool

	// Requested, if not nil, is called by Client when its request has been sent.
	Requested func()

	// IRD is how many RDMA Reads of the peer an initiator accepts at a time, ORD how
	// many of its own it wants outstanding (RFC 6581 section 9.1): 0 is none,
	// enhanced.DepthULP leaves it to the ULP, and enhanced.MaxDepth is the most that
	// can be negotiated. A responder's are in AcceptOptions.
	IRD, ORD uint16

	// Revision is the MPA revision of a request, 0 for 2. A request of revision 1
	// cannot negotiate IRD and ORD. The responder follows the request.
	Revision uint8

	// PeerToPeer, if not 0, makes a client ask for the peer-to-peer model with
	// these RTR indications (RFC 6581 section 9.2), of which Conn.RTR then says
	// which may be sent; the caller must send one first. For a server it is the
	// indications that it takes, 0 for a Write and a Read.
	PeerToPeer enhanced.RTR

	// MayDecline makes a client whose PeerToPeer the responder declines go on in the
	// client-server model, as if it had not asked. Section 9.2 has no such reply, but
	// there are adapters that give it. Otherwise it is a NegotiationError.
	MayDecline bool

	// LargeFPDU, if not 0, offers ULPDUs of up to this many bytes, at most
	// MaxLargeFPDU, to a peer that is an IronWarp, too. It prefixes the private
	// data with 16 bytes, so a client sets it only where IronWarp is
	// expected.
	LargeFPDU int

	// PrivateData is the ULP's part of the start-up frame: at most 512 bytes,
	// less 4 in revision 2 and less 16 with LargeFPDU.
	PrivateData []byte

	// StartupTimeout bounds the start-up, in addition to the context: on the
	// server from Server to the request, and again for the reply. 0 stands for
	// 10 seconds.
	StartupTimeout time.Duration

	// HoldTimeout bounds how long a responder's Flush waits for the initiator's
	// first FPDU, 0 for a minute.
	HoldTimeout time.Duration

	// EMSS returns TCP's maximum segment size in bytes, 0 if unknown. It is called
	// now and then by whoever flushes and must be quick. Nil asks the socket.
	EMSS func() int

	// Spin is how long a receiver that finds nothing to read looks again before
	// it sleeps. That saves the wake-up, which is most of a small message's
	// latency, and keeps a processor busy meanwhile. It is for a process with
	// GOMAXPROCS=1 and a processor of its own, and makes others slower. 0: not at
	// all.
	Spin time.Duration

	// Pool is where buffers come from and go back to when the connection waits.
	// Nil: the connection keeps its own, some 280 KiB.
	Pool *Pool

	// Link, if not nil, is the connection as those know it who watch what it carries. A Config with
	// one is for that connection alone.
	Link *tap.Link
}

func (c *Config) revision() uint8 {
	if c.Revision == 1 {
		return 1
	}
	return 2
}

func (c *Config) startupTimeout() time.Duration {
	if c.StartupTimeout > 0 {
		return c.StartupTimeout
	}
	return defaultStartupTimeout
}

func (c *Config) holdTimeout() time.Duration {
	if c.HoldTimeout > 0 {
		return c.HoldTimeout
	}
	return defaultHoldTimeout
}

// largeFPDU is the offer, rounded so that payloads behind a DDP header of 14
// or 18 bytes are multiples of 4 bytes and no FPDU needs padding.
func (c *Config) largeFPDU() int {
	if c.LargeFPDU <= 0 {
		return 0
	}
	n := max(minMULPDU, min(c.LargeFPDU, MaxLargeFPDU))
	return n - (n-2)&3
}
