package siw

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ironwarp/ironwarp/verbs"
)

// Variant is a way to set up streams between siw and us.
type Variant struct {
	Dial bool      // we connect to siw, not siw to us
	IPv6 bool      //
	CRC  bool      // both ask for it
	RTR  verbs.RTR // the initiator asks for MPA's peer-to-peer model with these messages (RFC 6581 section 9.2); 0: it does not
	MPA1 bool      // the initiator begins with MPA revision 1
}

// Name identifies the variant.
func (v Variant) Name() string {
	parts := []string{"siw-dials", "ipv4", "nocrc"}
	if v.Dial {
		parts[0] = "we-dial"
	}
	if v.IPv6 {
		parts[1] = "ipv6"
	}
	if v.CRC {
		parts[2] = "crc"
	}
	if v.RTR != 0 {
		parts = append(parts, "p2p-"+strings.ReplaceAll(v.rtr(), " or ", "-"))
	}
	if v.MPA1 {
		parts = append(parts, "mpa1")
	}
	return strings.Join(parts, "-")
}

func (v Variant) rtr() string {
	var names []string
	for _, r := range []struct {
		is   verbs.RTR
		name string
	}{{verbs.RTRWrite, "write"}, {verbs.RTRRead, "read"}} {
		if v.RTR&r.is != 0 {
			names = append(names, r.name)
		}
	}
	return strings.Join(names, " or ")
}

// Feature describes what is special about the start-up.
func (v Variant) Feature() string {
	f := "no CRC"
	if v.CRC {
		f = "CRC"
	}
	if v.RTR != 0 {
		f += ", peer-to-peer by " + v.rtr()
	}
	if v.MPA1 {
		f += ", MPA revision 1"
	}
	return f
}

// parameters are siw's module parameters for the variant.
func (v Variant) parameters() map[string]string {
	p := map[string]string{"mpa_crc_required": "0", "peer_to_peer": "0", "mpa_version": "2", "rtr_type": fmt.Sprint(rtrBits(verbs.RTRWrite | verbs.RTRRead))}
	if v.CRC {
		p["mpa_crc_required"] = "1"
	}
	if v.RTR != 0 {
		p["peer_to_peer"] = "1"
	}
	if v.RTR != 0 && !v.Dial {
		p["rtr_type"] = fmt.Sprint(rtrBits(v.RTR))
	}
	if v.MPA1 && !v.Dial {
		p["mpa_version"] = "1"
	}
	return p
}

// rtrBits are the control bits of a start-up frame beside its ORD (RFC 6581
// section 6).
func rtrBits(r verbs.RTR) (b int) {
	if r&verbs.RTRWrite != 0 {
		b |= 0x8000
	}
	if r&verbs.RTRRead != 0 {
		b |= 0x4000
	}
	return b
}

// setup is our side's start-up.
func (v Variant) setup() verbs.Setup {
	if !v.Dial {
		return verbs.Setup{NoCRC: !v.CRC}
	}
	return verbs.Setup{NoCRC: !v.CRC, PeerToPeer: v.RTR, ClientServer: v.RTR == 0, Plain: v.MPA1}
}

// Addresses of siw and of us.
func (v Variant) addresses() (siw, ours netip.Addr) {
	if v.IPv6 {
		return netip.MustParseAddr("fd09::1"), netip.MustParseAddr("fd09::2")
	}
	return netip.MustParseAddr("10.9.0.1"), netip.MustParseAddr("10.9.0.2")
}

// Variants are all variants over which the suite runs.
func Variants() []Variant {
	var all []Variant
	for _, dial := range []bool{true, false} {
		for _, v6 := range []bool{false, true} {
			for _, crc := range []bool{true, false} {
				all = append(all, Variant{Dial: dial, IPv6: v6, CRC: crc})
			}
		}
		for _, r := range []verbs.RTR{verbs.RTRWrite, verbs.RTRRead, verbs.RTRWrite | verbs.RTRRead} {
			all = append(all, Variant{Dial: dial, CRC: true, RTR: r})
		}
		all = append(all, Variant{Dial: dial, CRC: true, MPA1: true})
	}
	return all
}
