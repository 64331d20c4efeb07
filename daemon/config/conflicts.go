package config

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/transport"
)

// checkConflicts finds conflicts between declarations.
func checkConflicts(c *Config) Errors {
	var errs Errors
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	hosts := map[string]string{}
	names, addrs, ids := map[string]Pos{}, map[netip.Addr]Peer{}, map[string]Peer{}
	for i := range c.Peers {
		p := &c.Peers[i]
		if p.Port == 0 {
			p.Port = c.ListenPort
		}
		if p.UDPPort == 0 && p.has(transport.SCTPUDP) {
			p.UDPPort = c.ListenUDPPort
		}
		p.setDefaults()
		if p.Name == "" || !p.Address.IsValid() {
			continue
		}
		if at, dup := names[p.Name]; dup {
			fail(p.Origin, fmt.Sprintf("peer %s is already declared at %s", p.Name, at), "give each peer its own name")
			continue
		}
		names[p.Name] = p.Origin
		if q := hosts[p.Host]; p.Host != "" && q != "" {
			fail(p.Origin, fmt.Sprintf("peers %s and %s have the same name %s as their addresses", q, p.Name, p.Host), "a peer is recognised by its address: give each host its own")
			continue
		}
		hosts[p.Host] = p.Name
		clash := false
		for _, pair := range p.Pairs() {
			a := pair.Address
			for _, form := range (guard.Spec{Remote: a}).Addresses() {
				if q, dup := addrs[form]; dup {
					same := a.String()
					if form != a {
						same += fmt.Sprintf(", for which %s is another form (RFC 6052)", form)
					}
					fail(p.Origin, fmt.Sprintf("peers %s and %s have the same address %s", q.Name, p.Name, same), "a peer is recognised by its address: give each host its own (on loopback any of 127.0.0.0/8)")
					clash = true
				}
			}
		}
		if clash {
			continue
		}
		for _, pair := range p.Pairs() {
			addrs[pair.Address] = *p
		}
		if p.Protection != ProtectIPsec {
			continue
		}
		for _, q := range p.AllPaths() {
			if q.Port != c.ListenPort {
				fail(p.Origin, fmt.Sprintf("peer %s listens on port %d and this host on %d", p.Name, q.Port, c.ListenPort), "the SAs of a link are for one port: set listen: {port: ...} to the same on both hosts")
				break
			}
		}
		if p.ISCSIPort == c.ListenPort {
			fail(p.Origin, fmt.Sprintf("peer %s has iscsi_port: %d, which is the port of RDMA streams", p.Name, p.ISCSIPort), fmt.Sprintf("use another: %d is that of iSCSI", DefaultISCSIPort))
		}
		if p.NVMePort != 0 && (p.NVMePort == c.ListenPort || p.NVMePort == p.ISCSIPort) {
			fail(p.Origin, fmt.Sprintf("peer %s has nvme_port: %d, which is the port of RDMA streams or of iSCSI", p.Name, p.NVMePort), fmt.Sprintf("use another: %d is that of NVMe over RDMA", DefaultNVMePort))
		}
		if p.has(transport.SCTPUDP) && p.UDPPort != c.ListenUDPPort {
			fail(p.Origin, fmt.Sprintf("peer %s has UDP port %d and this host %d", p.Name, p.UDPPort, c.ListenUDPPort), "the SAs of a link are for one port: set listen: {udp_port: ...} to the same on both hosts")
		}
		if q, dup := ids[p.Identity()]; dup {
			fail(p.Origin, fmt.Sprintf("peers %s and %s have the same IKE identity %s", q.Name, p.Name, p.Identity()), "give each a remote_id of its own")
		}
		ids[p.Identity()] = *p
		if at, msg, fix := c.resolve(p); msg != "" {
			fail(at, msg, fix)
		}
	}
	errs = append(errs, checkAddresses(c, names)...)
	errs = append(errs, checkULPs(c, names)...)
	errs = append(errs, checkPorts(c)...)
	errs = append(errs, fillPartitions(c)...)
	errs = append(errs, checkPartitions(c)...)
	errs = append(errs, checkFabric(c)...)
	fillPrograms(c)
	c.SetQueueSize(c.Limits.QueueSize)
	errs = append(errs, checkCapacity(c)...)
	errs = append(errs, checkShares(c)...)
	seen := map[string]Pos{}
	for _, e := range c.Exports {
		if e.Name == "" {
			continue
		}
		if at, dup := seen[e.Name]; dup {
			fail(e.Origin, fmt.Sprintf("export %s is already declared at %s", e.Name, at), "give each export its own name")
		}
		seen[e.Name] = e.Origin
		for _, a := range e.Allow {
			if id, ok := strings.CutPrefix(a, AllowIdentity); ok {
				if _, ok := ids[id]; !ok {
					fail(e.Origin, fmt.Sprintf("export %s allows the IKE identity %s, which no configured peer has", e.Name, id), "`ironwarp peer ls` shows the peers, and `ironwarp peer show` the identity of one; correct the identity, or remove it from allow")
				}
			} else if _, ok := names[a]; !ok {
				fail(e.Origin, fmt.Sprintf("export %s allows peer %s, which is not configured", e.Name, a), "add it with `ironwarp peer add`, or remove it from allow")
			}
		}
	}
	errs = append(errs, checkPools(c, func(a string) bool {
		if id, ok := strings.CutPrefix(a, AllowIdentity); ok {
			_, ok := ids[id]
			return ok
		}
		_, ok := names[a]
		return ok
	})...)
	errs = append(errs, checkTargets(c)...)
	return append(errs, checkSubsystems(c)...)
}
