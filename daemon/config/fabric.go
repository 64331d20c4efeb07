package config

import (
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/ipsec/auth"
)

// Fabric is this host's part in a fabric directory. Without managers it has none.
type Fabric struct {
	Managers []string // IKE identities of those that keep a directory: of peers, and of this host
	Routers  []string // and of peers whose datagrams may name others as their senders: relays
	Identity string   // this host's towards the others; empty: the local_id that its peers have in common
	Conf     string   // the directory's and the agent's settings; empty: fabric.conf beside the main file
	Agent    bool     // managers may change what the agent lets them
	Silent   bool     // announce: false; no export or target of this host is in the directory
	Origin   Pos
}

// MaxManagers bounds the directories of a fabric: each host has a stream with every one.
const MaxManagers = 8

// Enabled reports whether this host has a part in a fabric.
func (f Fabric) Enabled() bool { return len(f.Managers) > 0 }

// Equal reports whether two declarations are the same, wherever they are written.
func (f Fabric) Equal(g Fabric) bool {
	f.Origin, g.Origin = Pos{}, Pos{}
	return reflect.DeepEqual(f, g)
}

// IsManager reports whether an identity is one of a manager.
func (f Fabric) IsManager(id string) bool { return hasIdentity(f.Managers, id) }

// IsRouter reports whether an identity is one of a relay.
func (f Fabric) IsRouter(id string) bool { return hasIdentity(f.Routers, id) }

func hasIdentity(list []string, id string) bool {
	return slices.ContainsFunc(list, func(a string) bool { return auth.SameIdentity(a, id) })
}

// FabricFile is the file of the directory's and the agent's settings.
func (c *Config) FabricFile() string {
	if c.Fabric.Conf != "" {
		return c.Fabric.Conf
	}
	return filepath.Join(c.Dir(), "fabric.conf")
}

// FabricIdentity is this host's identity in the fabric; ok: it is known.
func (c *Config) FabricIdentity() (id string, ok bool) {
	if c.Fabric.Identity != "" {
		return c.Fabric.Identity, true
	}
	for _, p := range c.Peers {
		own := p.LocalID
		if own == "" && p.LocalAddress.IsValid() {
			own = p.LocalAddress.String()
		}
		switch {
		case p.Protection == ProtectPlaintext:
		case own == "", id != "" && !auth.SameIdentity(id, own):
			return "", false
		default:
			id = own
		}
	}
	return id, id != ""
}

func (d *decoder) fabric(dst *Fabric) func(ast.Node) {
	return func(n ast.Node) {
		*dst = Fabric{Origin: d.pos(n)}
		announce := true
		d.mapping(n, "fabric", fields{
			"managers": d.strings("manager", &dst.Managers, checkIdentity),
			"routers":  d.strings("router", &dst.Routers, checkIdentity),
			"identity": d.str("identity", &dst.Identity, checkIdentity),
			"conf":     d.path("conf", &dst.Conf),
			"agent":    d.boolean("agent", &dst.Agent),
			"announce": d.boolean("announce", &announce),
		})
		dst.Silent = !announce
		if have := len(dst.Managers); have > MaxManagers {
			d.fail(n, fmt.Sprintf("%d managers", have), fmt.Sprintf("allowed: up to %d: two are enough to survive the loss of one", MaxManagers))
		}
	}
}

// checkFabric compares managers and relays with the peers: the directory adds none.
func checkFabric(c *Config) (errs Errors) {
	f := &c.Fabric
	fail := func(msg, fix string) { errs = append(errs, &Error{Pos: f.Origin, Msg: msg, Fix: fix}) }
	if !f.Enabled() {
		if f.Agent || len(f.Routers) > 0 {
			fail("fabric has no managers, beside other settings", "add managers: [...], the IKE identities of the hosts that keep the directory")
		}
		return errs
	}
	own, known := c.FabricIdentity()
	if !known {
		fail("this host's identity in the fabric is not known: its peers know it by none, or by several", "add identity: to fabric, which has to be the local_id that the peers of the fabric authenticate")
		return errs
	}
	for what, list := range map[string][]string{"manager": f.Managers, "router": f.Routers} {
		for _, id := range list {
			if auth.SameIdentity(id, own) {
				continue
			}
			is := func(p Peer) bool { return p.Protection != ProtectPlaintext && auth.SameIdentity(p.Identity(), id) }
			if !slices.ContainsFunc(c.Peers, is) {
				fail(fmt.Sprintf("fabric has the %s %s, which is neither this host, %s, nor a peer that IKE authenticates", what, id, own), "`ironwarp peer show` has the identity of a peer; add the peer, or correct the identity")
			}
		}
	}
	return errs
}
