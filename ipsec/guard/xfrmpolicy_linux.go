package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// xfrmPolicy is an XFRM policy as the kernel has it. A port of its selector has a mask, which package
// netlink neither writes nor reads: a block of ports would be written as one port, and taken for one.
// So this package has its own messages for policies.
type xfrmPolicy struct {
	netlink.XfrmPolicy
	srcMask, dstMask uint16 // 0: any port
}

// portMask is the mask of a block of ports, of one if it has no size.
func portMask(size uint16) uint16 { return ^(max(size, 1) - 1) }

// ports returns the block of ports that the selector names, and whose it is; false for one that names
// none, two, or what is no block.
func (p *xfrmPolicy) ports() (port, size uint16, source, ok bool) {
	port, mask, source := uint16(p.DstPort), p.dstMask, p.srcMask != 0
	if source {
		port, mask = uint16(p.SrcPort), p.srcMask
	}
	size = ^mask + 1
	ok = (p.srcMask == 0) != (p.dstMask == 0) && bits.OnesCount16(size) == 1 && port&^mask == 0 && port != 0 &&
		(!source && p.SrcPort == 0 || source && p.DstPort == 0)
	return port, size, source, ok
}

// listPolicies lists the policies of both families.
func (k *kernel) listPolicies() ([]xfrmPolicy, error) {
	req := k.xfrmRequest(nl.XFRM_MSG_GETPOLICY, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	messages, err := req.Execute(unix.NETLINK_XFRM, nl.XFRM_MSG_NEWPOLICY)
	if err != nil {
		return nil, err
	}
	all := make([]xfrmPolicy, 0, len(messages))
	for _, m := range messages {
		p, err := parsePolicy(m)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

func (k *kernel) xfrmRequest(kind, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = k.xfrm
	return req
}

// addPolicy adds a policy, or replaces the one that has its selector and priority.
func (k *kernel) addPolicy(p *xfrmPolicy) error {
	m := &nl.XfrmUserpolicyInfo{Sel: p.selector(), Priority: uint32(p.Priority), Dir: uint8(p.Dir), Action: uint8(p.Action)}
	m.Lft.SoftByteLimit, m.Lft.HardByteLimit, m.Lft.SoftPacketLimit, m.Lft.HardPacketLimit = nl.XFRM_INF, nl.XFRM_INF, nl.XFRM_INF, nl.XFRM_INF
	req := k.xfrmRequest(nl.XFRM_MSG_UPDPOLICY, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	req.AddData(m)
	p.addMark(req)
	if _, err := req.Execute(unix.NETLINK_XFRM, 0); err != nil {
		return fmt.Errorf("add an XFRM policy: %w", err)
	}
	return nil
}

// delPolicy removes a policy. That it is not there is no error.
func (k *kernel) delPolicy(p *xfrmPolicy) error {
	req := k.xfrmRequest(nl.XFRM_MSG_DELPOLICY, unix.NLM_F_ACK)
	req.AddData(&nl.XfrmUserpolicyId{Sel: p.selector(), Index: uint32(p.Index), Dir: uint8(p.Dir)})
	p.addMark(req)
	if p.Ifid != 0 {
		req.AddData(nl.NewRtAttr(nl.XFRMA_IF_ID, nl.Uint32Attr(uint32(p.Ifid))))
	}
	if _, err := req.Execute(unix.NETLINK_XFRM, 0); err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("delete an XFRM policy: %w", err)
	}
	return nil
}

func (p *xfrmPolicy) addMark(req *nl.NetlinkRequest) {
	if p.Mark != nil {
		m := nl.XfrmMark{Value: p.Mark.Value, Mask: p.Mark.Mask}
		req.AddData(nl.NewRtAttr(nl.XFRMA_MARK, slices.Clone(m.Serialize())))
	}
}

// selector is that of the kernel's struct xfrm_selector.
func (p *xfrmPolicy) selector() (s nl.XfrmSelector) {
	src, dst := prefixOf(p.Src), prefixOf(p.Dst)
	s.Family = uint16(familyOf(dst.Addr()))
	copy(s.Saddr[:], src.Addr().AsSlice())
	copy(s.Daddr[:], dst.Addr().AsSlice())
	s.PrefixlenS, s.PrefixlenD = uint8(src.Bits()), uint8(dst.Bits())
	s.Proto, s.Ifindex = uint8(p.Proto), int32(p.Ifindex)
	s.Sport, s.SportMask = nl.Swap16(uint16(p.SrcPort)), nl.Swap16(p.srcMask)
	s.Dport, s.DportMask = nl.Swap16(uint16(p.DstPort)), nl.Swap16(p.dstMask)
	return s
}

// parsePolicy reads a struct xfrm_userpolicy_info and its attributes.
func parsePolicy(b []byte) (p xfrmPolicy, err error) {
	if len(b) < nl.SizeofXfrmUserpolicyInfo {
		return p, fmt.Errorf("an XFRM policy of %d bytes", len(b))
	}
	m := nl.DeserializeXfrmUserpolicyInfo(b)
	prefix := func(a nl.XfrmAddress, bits uint8) *net.IPNet {
		size := 4
		if m.Sel.Family == unix.AF_INET6 {
			size = 16
		}
		return &net.IPNet{IP: slices.Clone(a[:size]), Mask: net.CIDRMask(int(bits), size*8)}
	}
	p.Src, p.Dst = prefix(m.Sel.Saddr, m.Sel.PrefixlenS), prefix(m.Sel.Daddr, m.Sel.PrefixlenD)
	p.Proto, p.Ifindex = netlink.Proto(m.Sel.Proto), int(m.Sel.Ifindex)
	p.SrcPort, p.srcMask = int(nl.Swap16(m.Sel.Sport)), nl.Swap16(m.Sel.SportMask)
	p.DstPort, p.dstMask = int(nl.Swap16(m.Sel.Dport)), nl.Swap16(m.Sel.DportMask)
	p.Priority, p.Index, p.Dir, p.Action = int(m.Priority), int(m.Index), netlink.Dir(m.Dir), netlink.PolicyAction(m.Action)
	attributes, err := nl.ParseRouteAttr(b[nl.SizeofXfrmUserpolicyInfo:])
	if err != nil {
		return p, fmt.Errorf("an XFRM policy: %w", err)
	}
	for _, a := range attributes {
		switch v := a.Value; a.Attr.Type {
		case nl.XFRMA_TMPL:
			for ; len(v) >= nl.SizeofXfrmUserTmpl; v = v[nl.SizeofXfrmUserTmpl:] {
				t := nl.DeserializeXfrmUserTmpl(v)
				p.Tmpls = append(p.Tmpls, netlink.XfrmPolicyTmpl{Src: t.Saddr.ToIP(), Dst: t.XfrmId.Daddr.ToIP(), Proto: netlink.Proto(t.XfrmId.Proto), Mode: netlink.Mode(t.Mode),
					Spi: int(nl.Swap32(t.XfrmId.Spi)), Reqid: int(t.Reqid), Optional: int(t.Optional)})
			}
		case nl.XFRMA_MARK:
			if len(v) >= 8 {
				p.Mark = &netlink.XfrmMark{Value: binary.NativeEndian.Uint32(v), Mask: binary.NativeEndian.Uint32(v[4:])}
			}
		case nl.XFRMA_IF_ID:
			if len(v) >= 4 {
				p.Ifid = int(binary.NativeEndian.Uint32(v))
			}
		}
	}
	return p, nil
}

// policyKey is what two policies have in common that are the same.
type policyKey struct {
	dir              netlink.Dir
	action           netlink.PolicyAction
	proto            netlink.Proto
	priority         int
	srcPort, dstPort int
	srcMask, dstMask uint16
	ifindex          int
	mark             netlink.XfrmMark
	src, dst         netip.Prefix
}

func keyOf(p *xfrmPolicy) policyKey {
	k := policyKey{p.Dir, p.Action, p.Proto, p.Priority, p.SrcPort, p.DstPort, p.srcMask, p.dstMask, p.Ifindex, netlink.XfrmMark{}, prefixOf(p.Src), prefixOf(p.Dst)}
	if p.Mark != nil {
		k.mark = *p.Mark
	}
	return k
}
