package load

import (
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/integration/attack/raw"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
)

// packetsAtOnce and packetsEvery bound the packets of an attacker that no window of an
// association bounds: 32 of them fill some 150 Mbit/s of wire with 160,000 packets a second.
// Without a bound loopback drops most of all packets, good ones as well, since
// to send one that is dropped costs less than to read any.
const (
	packetsAtOnce = 50
	packetsEvery  = 10 * time.Millisecond
)

func sctpAttacks() []Attack {
	return []Attack{
		{Name: "INITs", Carrier: transport.SCTPUDP, Packets: true, run: packets(func(a *attacker) []byte {
			return raw.AppendChunk(raw.Packet(uint16(rand.Uint32()), a.Addr.Port(), 0), raw.ChunkInit, 0, raw.Init(rand.Uint32()|1, 1<<20, 16, rand.Uint32()))
		})},
		{Name: "cookies of no one", Carrier: transport.SCTPUDP, Packets: true, run: packets(func(a *attacker) []byte {
			return raw.AppendChunk(raw.Packet(uint16(rand.Uint32()), a.Addr.Port(), rand.Uint32()), raw.ChunkCookieEcho, 0, make([]byte, 200))
		})},
		{Name: "packets of no association", Carrier: transport.SCTPUDP, Packets: true, run: packets(func(a *attacker) []byte {
			return raw.AppendChunk(raw.Packet(uint16(rand.Uint32()), a.Addr.Port(), rand.Uint32()), raw.ChunkData, 7, raw.Data(1, 0, 0, sctpadapt.PPIDSegment, make([]byte, 8)))
		})},
		{Name: "associations", Carrier: transport.SCTPUDP, run: associations},
		{Name: "half-open associations", Carrier: transport.SCTPUDP, run: halfOpenAssociations},
		{Name: "Initiates", Carrier: transport.SCTPUDP, run: initiates},
		{Name: "chunks again and out of order", Carrier: transport.SCTPUDP, run: chunks},
		{Name: "Sends of one byte over SCTP", Carrier: transport.SCTPUDP, run: tinySendsSCTP},
	}
}

// udp is a socket from the attacker's address, nil if there is none.
func (a *attacker) udp() *net.UDPConn {
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.from, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(a.Addr.Addr(), a.UDP)))
	if err != nil {
		a.rest(time.Millisecond)
		return nil
	}
	return c
}

// packets sends packets and listens to nothing.
func packets(make func(a *attacker) []byte) func(a *attacker) {
	return func(a *attacker) {
		c := a.udp()
		if c == nil {
			return
		}
		defer c.Close()
		for a.did(packetsAtOnce) {
			for range packetsAtOnce {
				// A refusal is news of an earlier packet.
				_, _ = c.Write(raw.Seal(make(a)))
			}
			a.rest(packetsEvery)
		}
	}
}

// associate sets an association up by hand, nil if the daemon does not want it.
func (a *attacker) associate() (*net.UDPConn, *raw.Association) {
	c := a.udp()
	if c == nil {
		return nil, nil
	}
	stop := a.closing(c)
	_ = c.SetDeadline(time.Now().Add(time.Second))
	as, err := raw.Associate(c, uint16(rand.Uint32())|1, a.Addr.Port(), rand.Uint32()|1)
	if err != nil {
		stop()
		a.rest(time.Millisecond)
		return nil, nil
	}
	return c, as
}

func associations(a *attacker) {
	if c, as := a.associate(); as != nil {
		_ = as.Abort() // on loopback it is there at once
		c.Close()
		a.did(1)
	}
}

// halfOpenAssociations never has a session on them.
func halfOpenAssociations(a *attacker) {
	var ring [held]*net.UDPConn
	var as [held]*raw.Association
	defer func() {
		for i := range ring {
			if as[i] != nil {
				_ = as[i].Abort()
				ring[i].Close()
			}
		}
	}()
	for i := 0; a.did(0); i = (i + 1) % held {
		if as[i] != nil {
			_ = as[i].Abort()
			ring[i].Close()
		}
		if ring[i], as[i] = a.associate(); as[i] != nil {
			a.did(1)
		}
	}
}

// control is a session control message.
func control(ssn uint16, f sctpadapt.Function, private []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, ssn)
	return append(binary.BigEndian.AppendUint16(b, uint16(f)), private...)
}

// say sends a message in a chunk.
func say(as *raw.Association, b []byte, stream uint16, ppid uint32, payload []byte) []byte {
	b = raw.AppendChunk(b, raw.ChunkData, 7, raw.Data(as.TSN, stream, 0, ppid, payload))
	as.TSN++
	return b
}

// initiates asks for sessions that nobody has.
func initiates(a *attacker) {
	c, as := a.associate()
	if as == nil {
		return
	}
	defer c.Close()
	defer as.Abort()
	a.acknowledging(c, as, func(n uint32) []byte {
		return say(as, nil, uint16(n%16), sctpadapt.PPIDControl, control(0, sctpadapt.FunctionInitiate, []byte("let me in")))
	})
}

// chunks repeats chunks, or sends them long before their turn.
func chunks(a *attacker) {
	c, as := a.associate()
	if as == nil {
		return
	}
	defer c.Close()
	defer as.Abort()
	first := as.TSN
	for n := uint32(0); a.did(1); n++ {
		if n%packetsAtOnce == 0 {
			a.rest(packetsEvery)
		}
		tsn := first
		if n&1 != 0 {
			tsn += 2 + n%1000
		}
		if as.Send(raw.AppendChunk(nil, raw.ChunkData, 7, raw.Data(tsn, uint16(n%16), 0, sctpadapt.PPIDSegment, make([]byte, 8)))) != nil {
			return
		}
	}
}

// acknowledging sends chunks and acknowledges whatever the daemon sends, until it
// ends the association.
func (a *attacker) acknowledging(c *net.UDPConn, as *raw.Association, next func(n uint32) []byte) {
	const window = 64 // chunks that are not acknowledged
	b := make([]byte, 4096)
	be := binary.BigEndian
	acked := as.TSN - 1
	for n := uint32(0); a.did(0); {
		if as.TSN-acked <= window {
			if as.Send(next(n)) != nil {
				return
			}
			n++
			a.did(1)
			if n%8 != 0 {
				continue
			}
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		m, err := c.Read(b)
		if err != nil {
			if as.TSN-acked > window {
				return // it is over, or has lost something
			}
			continue
		}
		for p := b[min(12, m):m]; len(p) >= 4; {
			size := int(be.Uint16(p[2:]))
			if size < 4 || size > len(p) {
				break
			}
			switch {
			case p[0] == raw.ChunkAbort:
				return
			case p[0] == raw.ChunkSack && size >= 16:
				acked = be.Uint32(p[4:])
			case p[0] == raw.ChunkData && size >= 16:
				sack := be.AppendUint32(nil, be.Uint32(p[4:]))
				sack = be.AppendUint32(sack, 1<<20)
				if as.Send(raw.AppendChunk(nil, raw.ChunkSack, 0, append(sack, 0, 0, 0, 0))) != nil {
					return
				}
			}
			p = p[min((size+3)&^3, len(p)):]
		}
	}
}

// tinySendsSCTP floods the ping service.
func tinySendsSCTP(a *attacker) {
	c, as := a.associate()
	if as == nil {
		return
	}
	defer c.Close()
	defer as.Abort()
	a.acknowledging(c, as, func(n uint32) []byte {
		if n == 0 {
			return say(as, nil, 0, sctpadapt.PPIDControl, control(0, sctpadapt.FunctionInitiate, raw.PingRequest(false)))
		}
		seg := iwarptest.Segment{Last: true, Op: rdmap.OpSend, QN: rdmap.QNSend, MSN: n, Payload: []byte("S")}
		return say(as, nil, 0, sctpadapt.PPIDSegment, seg.Append(binary.BigEndian.AppendUint16(nil, uint16(n))))
	})
}
