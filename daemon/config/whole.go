package config

import (
	"fmt"
	"net/netip"
	"strings"
)

// check finds what is wrong between declarations.
func check(c *Config) Errors {
	var errs Errors
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	names, addrs, ids := map[string]Pos{}, map[netip.Addr]Peer{}, map[string]Peer{}
	for i := range c.Peers {
		p := &c.Peers[i]
		if p.Port == 0 {
			p.Port = c.ListenPort
		}
		if p.Name == "" || !p.Address.IsValid() {
			continue
		}
		if at, dup := names[p.Name]; dup {
			fail(p.Origin, fmt.Sprintf("peer %s is already declared at %s", p.Name, at), "give each peer its own name")
			continue
		}
		names[p.Name] = p.Origin
		if q, dup := addrs[p.Address]; dup {
			fail(p.Origin, fmt.Sprintf("peers %s and %s have the same address %s", q.Name, p.Name, p.Address), "a peer is told by its address: give each host its own (on loopback any of 127.0.0.0/8)")
			continue
		}
		addrs[p.Address] = *p
		if p.Protection != ProtectIPsec {
			continue
		}
		if p.Port != c.ListenPort {
			fail(p.Origin, fmt.Sprintf("peer %s listens on port %d and this host on %d", p.Name, p.Port, c.ListenPort), "the SAs of a link are for one port: set listen: {port: ...} to the same on both hosts")
		}
		if q, dup := ids[p.Identity()]; dup {
			fail(p.Origin, fmt.Sprintf("peers %s and %s have the same IKE identity %s", q.Name, p.Name, p.Identity()), "give each a remote_id of its own")
		}
		ids[p.Identity()] = *p
		if at, msg, fix := c.resolve(p); msg != "" {
			fail(at, msg, fix)
		}
	}
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
	return errs
}
