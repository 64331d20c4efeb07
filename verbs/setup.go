package verbs

import (
	"time"

	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// Setup describes how streams start up: by MPA over TCP (RFC 5044 section 7.1), by session
// control over SCTP (RFC 5043 section 6), with the enhanced connection establishment of
// RFC 6581 over both. The zero value is right for most. A transport that has no use for
// an option ignores it.
type Setup struct {
	// Over each transport.

	// PeerToPeer is the peer-to-peer model (RFC 6581 section 9.2), in which the
	// dialler's first message is an empty one that says it is ready to receive. A
	// dialler offers these indications, and fails if the peer takes none of them.
	// A listener takes these of what is offered, 0: RTRWrite and RTRRead. For a
	// dialler 0 depends on the transport: over MPA, where an acceptor's data waits for
	// the dialler's first message (RFC 5044 section 7.1.2), all are offered and the peer
	// may decline; over SCTP, which has no such rule, the model is not requested.
	// An RTRSend message consumes a receive of the peer's; no consumer sees the others.
	PeerToPeer RTR
	// ClientServer makes a dialler not request the peer-to-peer model, for a peer that must
	// send nothing before this end has. Then, with a peer that declines, and with one
	// of MPA revision 1, what an acceptor posts over MPA waits for the dialler's consumer.
	ClientServer bool
	// Plain makes a dialler start up without RFC 6581: with MPA revision 1, with the
	// Initiate of RFC 5043. IRD and ORD are then not negotiated, and there is no
	// peer-to-peer model.
	Plain bool
	// Timeout bounds the start-up, in addition to the context. Over MPA 0 is 10
	// seconds, and a listener allows as long for the request and again for the answer. Over
	// SCTP 0 is 30 seconds, and only a dialler has it.
	Timeout time.Duration

	// Over MPA on TCP.

	// NoCRC does not ask for CRCs, which are on if either end asks (RFC 5044 section
	// 7.1.1). Only an administrator may choose that, and only if something else
	// protects the stream as well, such as ESP (section 4.4).
	NoCRC bool
	// Markers asks the peer to send markers (RFC 5044 section 4.3). The peer decides
	// whether this end sends them.
	Markers bool
	// LargeFPDU, if not 0, offers ULPDUs of up to this many bytes, at most
	// MaxLargeFPDU, to a peer that is IronWarp, too. It takes 16 bytes of a request's
	// private data, so a dialler sets it only where IronWarp is expected.
	LargeFPDU int
	// HoldTimeout bounds how long what an acceptor posts waits for the dialler's first
	// message, 0 for a minute.
	HoldTimeout time.Duration
	// EMSS, if not nil, reports TCP's effective maximum segment size in bytes (RFC 5044
	// section 4.5), in place of the socket. It is called now and then and must be quick.
	EMSS func() int
	// Spin is how long a receiver that finds nothing to read polls before it sleeps, which
	// saves the wake-up and keeps a processor busy. It is for a process
	// with GOMAXPROCS=1 and a processor of its own, and makes others slower.
	Spin time.Duration
}

// MaxLargeFPDU is the most that Setup.LargeFPDU offers, in bytes.
const MaxLargeFPDU = mpa.MaxLargeFPDU

// RTR is a set of ready-to-receive indications: the empty messages with which a dialler
// may announce that it is ready to receive (RFC 6581 section 9.2).
type RTR = enhanced.RTR

const (
	RTRSend  = enhanced.RTRSend  // a Send, which takes a receive of the peer's
	RTRWrite = enhanced.RTRWrite // an RDMA Write
	RTRRead  = enhanced.RTRRead  // an RDMA Read, for which the peer has an IRD of at least 1
)

// offer is what a dialler offers, 0 by default.
func (s *Setup) offer() RTR {
	if s.ClientServer {
		return 0
	}
	return s.PeerToPeer
}

// chooseRTR chooses, of the ready-to-receive messages agreed on (RFC 6581 section 9.2), the
// one that costs the peer least.
func chooseRTR(rtr RTR) rdmap.Ready {
	switch {
	case rtr&RTRWrite != 0:
		return rdmap.ReadyWrite
	case rtr&RTRRead != 0:
		return rdmap.ReadyRead
	case rtr&RTRSend != 0:
		return rdmap.ReadySend
	}
	return rdmap.ReadyNone
}

// mpa is s for a connection of the device.
func (s *Setup) mpa(d *Device, conn *transport.Conn) *mpa.Config {
	c := &mpa.Config{
		Markers: s.Markers, LargeFPDU: s.LargeFPDU, PeerToPeer: s.PeerToPeer,
		StartupTimeout: s.Timeout, HoldTimeout: s.HoldTimeout, EMSS: s.EMSS, Spin: s.Spin, Pool: d.pool, Link: d.link(conn),
	}
	if s.NoCRC {
		c.CRC = mpa.CRCAvoid
	}
	if s.Plain {
		c.Revision = 1
	}
	if c.EMSS == nil {
		c.EMSS = conn.RefreshEMSS
	}
	return c
}
