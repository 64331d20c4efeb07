package main

import (
	"fmt"
	"strings"
)

// Side is one end of a case.
type Side int

// The ends.
const (
	Ours Side = iota
	Siw
)

// Case is one run of rping: a client and a server, one of them ours.
type Case struct {
	Server  Side
	IPv6    bool
	OurCRC  bool   // we ask for CRCs
	SiwCRC  bool   // siw asks for them
	Size    int    // bytes of a ping
	P2P     bool   // the client asks for MPA's peer-to-peer model (RFC 6581)
	MPA1    bool   // the client begins with MPA revision 1
	Round   int    // of those that are repeated, from 1
	Lacking string // why it can't work, if it can't: what the peer lacks
	Quirk   string // what the peer does wrong, though the case works
}

// What siw can't do, or does differently.
const (
	noORD   = "rping can't post its RDMA Read: it accepts with the ORD that the request offers, and MPA revision 1 offers none"
	crcLost = "siw as a responder does not ask for the CRC that it was told to require, so there is none"
)

// WantCRC reports whether the two ends should agree on CRCs: one is enough
// (RFC 5044 section 7.1.1).
func (c Case) WantCRC() bool { return (c.OurCRC || c.SiwCRC) && c.Quirk != crcLost }

// pings is the number of pings in each case.
const pings = 5

// segments is a payload of many segments at the MTU of the virtual network.
const segments = 60000

// Name identifies the case; it is a file name, too.
func (c Case) Name() string {
	parts := []string{"siw-client", "ipv4", c.crc(), fmt.Sprint(c.Size)}
	if c.Server == Siw {
		parts[0] = "siw-server"
	}
	if c.IPv6 {
		parts[1] = "ipv6"
	}
	if c.P2P {
		parts = append(parts, "p2p")
	}
	if c.MPA1 {
		parts = append(parts, "mpa1")
	}
	if c.Round > 0 {
		parts = append(parts, fmt.Sprintf("round%d", c.Round))
	}
	return strings.Join(parts, "-")
}

func (c Case) crc() string {
	switch {
	case c.OurCRC && c.SiwCRC:
		return "crc"
	case c.OurCRC:
		return "ourcrc"
	case c.SiwCRC:
		return "siwcrc"
	}
	return "nocrc"
}

// Feature names what the case is about.
func (c Case) Feature() string {
	f := map[string]string{"crc": "CRC", "ourcrc": "CRC, which only we ask for", "siwcrc": "CRC, which only siw asks for", "nocrc": "no CRC"}[c.crc()]
	f = fmt.Sprintf("%s, %d bytes", f, c.Size)
	if c.P2P {
		f += ", peer-to-peer"
	}
	if c.MPA1 {
		f += ", MPA revision 1"
	}
	return f
}

func cases() []Case {
	var all []Case
	for _, server := range []Side{Ours, Siw} {
		for _, v6 := range []bool{false, true} {
			for _, crc := range []bool{true, false} {
				for _, size := range []int{100, segments} {
					all = append(all, Case{Server: server, IPv6: v6, OurCRC: crc, SiwCRC: crc, Size: size})
				}
			}
		}
		siwCRC := Case{Server: server, SiwCRC: true, Size: segments}
		mpa1 := Case{Server: server, OurCRC: true, SiwCRC: true, Size: 100, MPA1: true}
		if server == Siw {
			siwCRC.Quirk, mpa1.Lacking = crcLost, noORD
		}
		all = append(all,
			Case{Server: server, OurCRC: true, Size: segments},
			siwCRC,
			Case{Server: server, OurCRC: true, SiwCRC: true, Size: 100, P2P: true},
			mpa1,
		)
	}
	return all
}
