package main

import (
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
)

// Startup is what a capture shows of one connection's start-up.
type Startup struct {
	Request, Reply *mpa.Frame // nil: not seen
	First          []byte     // the DDP segment of the initiator's first FPDU
}

// CRC reports whether the two frames agree on CRCs.
func (s Startup) CRC() bool { return s.Request.CRC || s.Reply.CRC }

// Ready reports whether the first FPDU is a ready-to-receive message that the
// reply allows (RFC 6581 section 9.2).
func (s Startup) Ready() bool {
	e := s.Reply.Enhanced
	if e == nil || !e.PeerToPeer || ddp.HeaderLen(s.First) == 0 {
		return false
	}
	if ddp.IsTagged(s.First) {
		t := ddp.Tagged(s.First)
		_, op := rdmap.ParseControl(t.ULP())
		return op == rdmap.OpWrite && len(t.Payload()) == 0 && e.RTR&enhanced.RTRWrite != 0
	}
	u := ddp.Untagged(s.First)
	_, op := rdmap.ParseControl(u.ULP())
	r, ok := rdmap.ParseReadRequest(u.Payload())
	return op == rdmap.OpReadRequest && ok && r.Size == 0 && e.RTR&enhanced.RTRRead != 0
}

// Fault is something wrong that one end has put on the wire.
type Fault struct {
	Siw  bool // it was siw's end
	What string
}

// faults are those of a connection: FPDUs whose CRC is wrong, where there are CRCs, and
// anything that is not an FPDU. A direction of which the capture has lost a part is
// judged only up to there.
func (c *connection) faults() []Fault {
	var fs []Fault
	for _, d := range []struct {
		from netip.Addr
		d    *direction
	}{{c.client.Addr(), &c.wire.up}, {c.server.Addr(), &c.wire.down}} {
		siw := isSiw(d.from)
		for _, w := range d.d.wrong {
			fs = append(fs, Fault{siw, w.String()})
		}
		if d.d.garbage != "" {
			fs = append(fs, Fault{siw, d.d.garbage})
		}
	}
	return fs
}

// isSiw reports whether an address on the virtual wire is siw's.
func isSiw(a netip.Addr) bool { return a.AsSlice()[len(a.AsSlice())-1] == 1 }

// Evidence of a capture, by the server's port and by the two ends of a
// connection, our end first.
type capture struct {
	all    []*connection
	byPort map[uint16][]*connection
	byFlow map[string]*connection
}

func readCapture(path string) (*capture, error) {
	all, err := readConnections(path)
	if err != nil {
		return nil, err
	}
	c := &capture{all: all, byPort: make(map[uint16][]*connection), byFlow: make(map[string]*connection)}
	for _, one := range all {
		c.byPort[one.server.Port()] = append(c.byPort[one.server.Port()], one)
		ours, siw := one.client, one.server
		if isSiw(ours.Addr()) {
			ours, siw = siw, ours
		}
		c.byFlow[fmt.Sprintf("%v-%v", ours, siw)] = one
	}
	return c, nil
}

// startup is the start-up of the first connection to a port that got a reply, or else
// of the last.
func (c *capture) startup(port int) (s Startup) {
	for _, one := range c.byPort[uint16(port)] {
		s = one.wire.Startup
		if s.Reply != nil {
			break
		}
	}
	return s
}

// ofPort are the faults on all connections to a port.
func (c *capture) ofPort(port int) (fs []Fault) {
	for _, one := range c.byPort[uint16(port)] {
		fs = append(fs, one.faults()...)
	}
	return fs
}

// ofFlows are the faults on the connections between these ends.
func (c *capture) ofFlows(flows []string) (fs []Fault) {
	for _, f := range flows {
		if one := c.byFlow[f]; one != nil {
			fs = append(fs, one.faults()...)
		}
	}
	return fs
}

// terminates are the Terminates that siw sent between these ends.
func (c *capture) terminates(flows []string) (ts [][]byte) {
	for _, f := range flows {
		if one := c.byFlow[f]; one != nil {
			if isSiw(one.client.Addr()) {
				ts = append(ts, one.wire.up.terminates...)
			} else {
				ts = append(ts, one.wire.down.terminates...)
			}
		}
	}
	return ts
}
