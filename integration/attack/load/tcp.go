package load

import (
	"net"
	"time"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/enhanced"
	"github.com/ironwarp/ironwarp/integration/attack/raw"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

const (
	// held is how many connections an attacker that only opens them holds at a time.
	held = 64
	// batch is how many segments go in one system call.
	batch = 32
	// depth is the IRD of the ping service.
	depth = 32
)

func tcpAttacks() []Attack {
	return []Attack{
		{Name: "connects", Carrier: transport.TCP, run: connects},
		{Name: "half-open start-ups", Carrier: transport.TCP, run: halfOpen},
		{Name: "requests for no service", Carrier: transport.TCP, run: func(a *attacker) { a.refused([]byte("let me in")) }},
		{Name: "hellos", Carrier: transport.TCP, run: func(a *attacker) { a.refused(raw.PingRequest(true)) }},
		{Name: "invalid STags", Carrier: transport.TCP, run: badSTags},
		{Name: "Terminates", Carrier: transport.TCP, run: terminates},
		{Name: "Sends of one byte", Carrier: transport.TCP, run: tinySends},
		{Name: "Writes of no byte", Carrier: transport.TCP, run: emptyWrites},
		{Name: "Reads of no byte", Carrier: transport.TCP, run: func(a *attacker) { a.reads(0, true) }},
		{Name: "Reads of one byte", Carrier: transport.TCP, run: func(a *attacker) { a.reads(1, true) }},
		{Name: "Reads of 1 MiB", Carrier: transport.TCP, run: func(a *attacker) { a.reads(1<<20, true) }},
		{Name: "Reads that nobody takes", Carrier: transport.TCP, Bounded: true, run: func(a *attacker) { a.reads(1<<20, false) }},
		{Name: "idle streams", Carrier: transport.TCP, Bounded: true, run: idle},
		{Name: "sessions", Carrier: transport.TCP, run: sessions},
		{Name: "idle sessions", Carrier: transport.TCP, Bounded: true, run: idleSessions},
		{Name: "heartbeats", Carrier: transport.TCP, run: heartbeats},
	}
}

func connects(a *attacker) {
	if c := a.dial(); c != nil {
		c.Close()
		a.did(1)
	}
}

// halfOpen begins requests, and goes on to hold as many as it can.
func halfOpen(a *attacker) {
	var ring [held]*net.TCPConn
	defer func() {
		for _, c := range ring {
			if c != nil {
				c.Close()
			}
		}
	}()
	for i := 0; a.did(0); i = (i + 1) % held {
		if ring[i] != nil {
			ring[i].Close()
		}
		if ring[i] = a.dial(); ring[i] != nil {
			ring[i].Write([]byte("MPA ID Req"))
			a.did(1)
		}
	}
}

// start opens a stream with private data, nil if it is refused.
func (a *attacker) start(private []byte) (*net.TCPConn, mpa.Frame) {
	fr := mpa.Frame{CRC: true, Revision: 2, Enhanced: &enhanced.Data{IRD: depth, ORD: depth}, PrivateData: private}
	req, err := fr.Append(nil)
	if err != nil {
		panic(err) // too long, by a mistake of ours
	}
	c := a.dial()
	if c == nil {
		return nil, fr
	}
	stop := a.closing(c)
	if _, err = c.Write(req); err == nil {
		if fr, err = raw.ReadReply(c); err == nil {
			return c, fr
		}
	}
	stop()
	return nil, fr
}

func (a *attacker) refused(private []byte) {
	if c, _ := a.start(private); c != nil {
		c.Close()
	}
	a.did(1)
}

// ping opens a stream to the ping service.
func (a *attacker) ping() (*net.TCPConn, raw.Region) {
	c, fr := a.start(raw.PingRequest(false))
	if c == nil {
		return nil, raw.Region{}
	}
	r, ok := raw.PingRegion(fr.PrivateData)
	if !ok {
		c.Close()
		return nil, r
	}
	return c, r
}

// fpdu is a segment as it goes over the wire.
func fpdu(b []byte, s iwarptest.Segment) []byte {
	seg := s.Append(nil)
	return raw.AppendFPDU(b, seg, len(seg))
}

// untilEnd reads until the daemon has ended the stream.
func untilEnd(c net.Conn) {
	b := make([]byte, 4096)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

// badSTags writes to memory that is not there, which ends the stream, time and
// again: each is an event, too.
func badSTags(a *attacker) {
	c, r := a.ping()
	if c == nil {
		a.rest(time.Millisecond)
		return
	}
	c.Write(fpdu(nil, iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: r.STag ^ 0x5a5a00, Payload: []byte("evil")}))
	c.CloseWrite()
	untilEnd(c)
	c.Close()
	a.did(1)
}

func terminates(a *attacker) {
	c, _ := a.ping()
	if c == nil {
		a.rest(time.Millisecond)
		return
	}
	t := rdmap.Terminate{Layer: ddp.LayerRDMA, Type: rdmap.TypeRemoteOperation, Code: rdmap.CodeUnspecified}
	c.Write(fpdu(nil, iwarptest.Segment{Last: true, Op: rdmap.OpTerminate, QN: rdmap.QNTerminate, MSN: 1, Payload: t.Append(nil)}))
	c.CloseWrite()
	untilEnd(c)
	c.Close()
	a.did(1)
}

// flood sends segments, a batch at a time, until the stream ends.
func (a *attacker) flood(c *net.TCPConn, next func(b []byte) []byte) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		untilEnd(c)
	}()
	var b []byte
	for {
		b = b[:0]
		for range batch {
			b = next(b)
		}
		c.SetDeadline(time.Now().Add(attackTime))
		if _, err := c.Write(b); err != nil || !a.did(batch) {
			break
		}
	}
	c.Close()
	<-done
}

func tinySends(a *attacker) {
	c, _ := a.ping()
	if c == nil {
		a.rest(time.Millisecond)
		return
	}
	msn := uint32(0)
	a.flood(c, func(b []byte) []byte {
		msn++
		return fpdu(b, iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: msn, Payload: []byte("S")})
	})
}

func emptyWrites(a *attacker) {
	c, r := a.ping()
	if c == nil {
		a.rest(time.Millisecond)
		return
	}
	w := fpdu(nil, iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: r.STag})
	a.flood(c, func(b []byte) []byte { return append(b, w...) })
}

// reads has as many Reads under way as the daemon allows, and takes the answers or
// does not.
func (a *attacker) reads(size uint32, take bool) {
	c, r := a.ping()
	if c == nil {
		a.rests()
		a.rest(time.Millisecond)
		return
	}
	defer c.Close()
	msn := uint32(0)
	ask := func(n int) error {
		var b []byte
		for range n {
			msn++
			req := rdmap.ReadRequest{SinkSTag: 1, Size: size, SourceSTag: r.STag}
			b = fpdu(b, iwarptest.Segment{Last: true, Op: rdmap.OpReadRequest, QN: rdmap.QNReadRequest, MSN: msn, Payload: req.Append(nil)})
		}
		c.SetDeadline(time.Now().Add(attackTime))
		_, err := c.Write(b)
		return err
	}
	if ask(depth) != nil {
		return
	}
	if !take {
		a.did(depth)
		a.rests()
		<-a.ctx.Done()
		return
	}
	buf, have := make([]byte, 256<<10), 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		rest, answered := buf[:have], 0
		for {
			seg, more, ok := raw.CutFPDU(rest)
			if !ok {
				break
			}
			rest = more
			switch {
			case len(seg) == 0 || seg[0]&0x80 == 0: // untagged: a Terminate
				return
			case seg[0]&0x40 != 0: // the last of an answer
				answered++
			}
		}
		have = copy(buf, rest)
		if answered > 0 && (ask(answered) != nil || !a.did(answered)) {
			return
		}
	}
}

// hoard opens streams and keeps them, as many as it gets.
func (a *attacker) hoard(open func() *net.TCPConn) {
	for a.did(0) {
		if open() == nil {
			a.rests()
			a.rest(10 * time.Millisecond)
			continue
		}
		a.did(1)
	}
}

func idle(a *attacker) {
	a.hoard(func() *net.TCPConn {
		c, _ := a.ping()
		return c
	})
}

// session opens a block session.
func (a *attacker) session(n uint32) *net.TCPConn {
	c, _ := a.start(raw.SessionRequest(uint32(a.n)<<16|n, uint32(a.n)<<16|n))
	if c == nil {
		return nil
	}
	c.Write(fpdu(nil, iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: 1, Payload: raw.InfoRequest("attack" + string(rune('a'+a.n)) + string(rune('a'+n%26)))}))
	if _, err := c.Read(make([]byte, 4096)); err != nil {
		c.Close()
		return nil
	}
	return c
}

func sessions(a *attacker) {
	for n := uint32(0); a.did(0); n++ {
		c := a.session(n)
		if c == nil {
			a.rest(time.Millisecond)
			continue
		}
		c.Close()
		a.did(1)
	}
}

func idleSessions(a *attacker) {
	n := uint32(0)
	a.hoard(func() *net.TCPConn { n++; return a.session(n) })
}

// heartbeats has each of which answered.
func heartbeats(a *attacker) {
	c := a.session(0)
	if c == nil {
		a.rest(time.Millisecond)
		return
	}
	msn := uint32(1)
	a.flood(c, func(b []byte) []byte {
		msn++
		return fpdu(b, iwarptest.Segment{Last: true, Op: rdmap.OpImmediate, QN: rdmap.QNSend, MSN: msn, Payload: []byte{0, 0, 0, 0, 0x80, 0, 0, 0}})
	})
}
