package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// PortBlock is a block of ports, of which programs of a ULP have their streams.
type PortBlock struct {
	First uint16
	Size  uint16 // a power of two, of which First is a multiple
	UDP   bool   // of UDP, for SCTP in it, otherwise of TCP: as the ULP's transport says
	Label string // the security label of its link with a peer; "": none
}

// Last is the block's highest port.
func (b PortBlock) Last() uint16 { return b.First + b.Size - 1 }

// Contains reports whether a port is of the block.
func (b PortBlock) Contains(port uint16) bool { return b.First <= port && port <= b.Last() }

// Overlaps reports whether two blocks have a port in common.
func (b PortBlock) Overlaps(o PortBlock) bool { return b.Contains(o.First) || o.Contains(b.First) }

// String is the block as it is written: FIRST/SIZE.
func (b PortBlock) String() string { return fmt.Sprintf("%d/%d", b.First, b.Size) }

// Words is String with the protocol, unless that is TCP.
func (b PortBlock) Words() string {
	if b.UDP {
		return b.String() + " over " + string(TransportSCTPUDP)
	}
	return b.String()
}

// Protocol is that of the ports.
func (b PortBlock) Protocol() transport.Protocol {
	if b.UDP {
		return transport.ProtoUDP
	}
	return transport.ProtoTCP
}

// Carries reports whether streams at a port of a protocol are of the block.
func (b PortBlock) Carries(p transport.Protocol, port uint16) bool {
	return b.Protocol() == p && b.Contains(port)
}

// Link is the block as a link of a peer.
func (b PortBlock) Link() pad.Link {
	return pad.Link{Protocol: b.Protocol(), Port: b.First, Size: b.Size, Label: b.Label}.Normal()
}

// blockLinks are blocks as links.
func blockLinks(blocks []PortBlock) (links []pad.Link) {
	for _, b := range blocks {
		links = append(links, b.Link())
	}
	return links
}

// blockFault is why a text is no block of ports.
type blockFault struct{ msg, fix string }

func (f *blockFault) Error() string { return f.msg + "; " + f.fix }

// Fault is what is wrong, and what to do.
func (f *blockFault) Fault() (msg, fix string) { return f.msg, f.fix }

// ParsePortBlock reads a block of ports, FIRST/SIZE. It fails at what is none, and where a program's
// ports cannot be: the kernel's selectors know aligned powers of two, ports below 1024 are those of
// the system, and from 32768 on Linux takes the ports of those who dial.
func ParsePortBlock(s string) (PortBlock, error) {
	fault := func(fix, format string, a ...any) (PortBlock, error) {
		return PortBlock{}, &blockFault{fmt.Sprintf("block of ports %q ", s) + fmt.Sprintf(format, a...), fix}
	}
	firstText, sizeText, found := strings.Cut(s, "/")
	first, err1 := strconv.ParseUint(firstText, 10, 16)
	size, err2 := strconv.ParseUint(sizeText, 10, 32)
	switch {
	case !found || err1 != nil || err2 != nil:
		return fault("write its first port and how many there are, such as 18512/16", "is not FIRST/SIZE")
	case size == 0 || size&(size-1) != 0:
		return fault("a selector of the kernel has a power of two: 1, 2, 4, 8, 16 and so on", "has %d ports", size)
	case size > MaxBlockPorts:
		return fault(fmt.Sprintf("up to %d are possible; several blocks are, too", MaxBlockPorts), "has %d ports", size)
	case first%size != 0:
		return fault(fmt.Sprintf("the first has to be a multiple of the size: %d/%d or %d/%d", first/size*size, size, (first/size+1)*size, size), "does not begin at a multiple of %d", size)
	case first < FirstProgramPort:
		return fault(fmt.Sprintf("those below %d are of services of the system: use others, such as 18432/512", FirstProgramPort), "has ports below %d", FirstProgramPort)
	case first+size > EndProgramPorts:
		return fault(fmt.Sprintf("from %d on Linux takes the ports of those who dial (net.ipv4.ip_local_port_range): use others, such as 18432/512", EndProgramPorts), "reaches port %d", first+size-1)
	}
	return PortBlock{First: uint16(first), Size: uint16(size)}, nil
}

// portBlocks reads a list of blocks of ports; a single one may have no brackets.
func (d *decoder) portBlocks(dst *[]PortBlock) func(ast.Node) {
	item := func(n ast.Node) {
		switch n.(type) {
		case *ast.StringNode, *ast.IntegerNode:
		default:
			d.fail(n, fmt.Sprintf("block of ports is %s", kind(n)), "write its first port and how many there are, such as 18512/16")
			return
		}
		b, err := ParsePortBlock(n.GetToken().Value)
		if f, ok := err.(*blockFault); ok {
			d.fail(n, f.msg, f.fix)
			return
		}
		for _, o := range *dst {
			if o.Overlaps(b) {
				d.fail(n, fmt.Sprintf("blocks of ports %v and %v overlap", o, b), "write each port once")
				return
			}
		}
		*dst = append(*dst, b)
	}
	return func(n ast.Node) {
		switch n.(type) {
		case *ast.StringNode, *ast.IntegerNode:
			item(n)
		default:
			d.sequence(n, "ports", item)
		}
		if have := len(*dst); have > MaxPortBlocks {
			d.fail(n, fmt.Sprintf("%d blocks of ports", have), fmt.Sprintf("allowed: up to %d: each is a guard, and two child SAs of each peer; larger blocks cost no more", MaxPortBlocks))
		}
		slices.SortFunc(*dst, comparePortBlocks)
	}
}

func comparePortBlocks(a, b PortBlock) int { return cmp.Compare(a.First, b.First) }

// mayHavePrograms reports whether programs of the ULP may have streams with a peer: one that the
// ULP may use as a whole.
func (u ULP) mayHavePrograms(peer string) bool {
	return u.Privileged || slices.Contains(u.Peers, peer)
}

// fillPrograms gives each peer the blocks of the ULPs whose programs may have streams with it. A
// disabled ULP keeps its blocks guarded.
func fillPrograms(c *Config) {
	for i := range c.Peers {
		p := &c.Peers[i]
		p.Programs = nil
		for _, u := range c.ULPs {
			label, linked := c.labelOfPrograms(u, *p)
			if !u.mayHavePrograms(p.Name) || !linked {
				continue
			}
			for _, b := range u.Ports {
				b.Label = label
				p.Programs = append(p.Programs, b)
			}
		}
		slices.SortFunc(p.Programs, comparePortBlocks)
	}
}

// checkPorts finds blocks of ports that others have as well.
func checkPorts(c *Config) Errors {
	var errs Errors
	for i, u := range c.ULPs {
		for _, b := range u.Ports {
			fail := func(what, fix string) {
				errs = append(errs, &Error{Pos: u.Origin, Msg: fmt.Sprintf("ULP %s has the block of ports %v, %s", u.Name, b, what), Fix: fix})
			}
			for _, v := range c.ULPs[:i] {
				for _, o := range v.Ports {
					if b.Overlaps(o) {
						fail(fmt.Sprintf("and ULP %s has %v", v.Name, o), "a port is of one ULP: give each its own")
					}
				}
			}
			if b.Contains(c.ListenPort) {
				fail(fmt.Sprintf("in which port %d is that of RDMA streams between the daemons", c.ListenPort), "use other ports, or another one of listen: {port: ...}, the same on both hosts")
			}
			if b.Contains(c.ListenUDPPort) {
				fail(fmt.Sprintf("in which port %d is that of SCTP in UDP", c.ListenUDPPort), "use other ports, or another one of listen: {udp_port: ...}, the same on both hosts")
			}
			for _, p := range c.Peers {
				if p.ISCSIPort != 0 && b.Contains(p.ISCSIPort) && u.mayHavePrograms(p.Name) {
					fail(fmt.Sprintf("in which port %d is the iscsi_port of peer %s", p.ISCSIPort, p.Name), "use other ports")
				}
			}
			for _, p := range c.Peers {
				if p.NVMePort != 0 && b.Contains(p.NVMePort) && u.mayHavePrograms(p.Name) {
					fail(fmt.Sprintf("in which port %d is the nvme_port of peer %s", p.NVMePort, p.Name), "use other ports")
				}
			}
			for _, p := range c.Peers {
				if r := p.Resolved; r != nil && r.Version == 1 && b.Size > 1 && u.mayHavePrograms(p.Name) {
					fail(fmt.Sprintf("and peer %s the profile %s with IKEv1", p.Name, r.Name), "IKEv1's selectors have no port ranges (RFC 2407 4.6.2): take a profile with IKEv2, blocks of one port such as 18512/1, or let the ULP name other peers alone")
				}
			}
			for _, s := range c.Subsystems {
				if b.Contains(s.Port) {
					fail(fmt.Sprintf("in which port %d is that of subsystem %s", s.Port, s.Name), "use other ports")
				}
			}
			for _, t := range c.Targets {
				if b.Contains(t.Port) {
					fail(fmt.Sprintf("in which port %d is that of target %s", t.Port, t.Name), "use other ports")
				}
			}
		}
	}
	return errs
}

// UseOfPort says what of the configuration has a TCP port, at which nothing else may be served: guards and SAs may
// cover it, now or once there is another peer. "": nothing.
func (c *Config) UseOfPort(port uint16) string {
	if port == c.ListenPort {
		return "RDMA streams (listen: {port: ...})"
	}
	for _, u := range c.ULPs {
		for _, b := range u.Ports {
			if b.Contains(port) {
				return "programs of ULP " + u.Name
			}
		}
	}
	for _, p := range c.Partitions {
		if port == p.Port || port == p.ISCSIPort {
			return "partition " + p.Name
		}
	}
	for _, p := range c.Peers {
		if port == p.ISCSIPort {
			return "iSCSI with peer " + p.Name
		}
		if port == p.NVMePort {
			return "NVMe with peer " + p.Name
		}
	}
	for _, t := range c.Targets {
		if port == t.Port {
			return "target " + t.Name
		}
	}
	for _, x := range c.Subsystems {
		if port == x.Port {
			return "subsystem " + x.Name
		}
	}
	return ""
}
