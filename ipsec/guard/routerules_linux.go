package guard

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

// Userland ESP routes by host: its rule 220 sends every packet to a peer with an
// SA into the tun, where those that no SA covers vanish. Rules before it confine
// that to the port: the port's packets look into charon's table, all others to
// that peer are routed as ever. Without an SA charon's table is empty, and the
// packets go on: in IPv4 to the guard on their usual way, in IPv6 to a rule that
// has no way for them.
const (
	rulePort    = 217
	ruleShut    = 218 // IPv6 only
	ruleElse    = 219
	charonTable = 220 // charon.routing_table

	// Devices are in group 0 unless somebody puts them into another one. Routes by
	// such a device, as strongSwan's bypass-lan or a child that passes makes them,
	// are no way for the port.
	defaultGroup = 0
	tunGroup     = 74
	mainTable    = unix.RT_TABLE_MAIN
)

// rules are those of a guard under userland ESP, in the order in which they
// have to be added, so that none opens a way.
func (g Spec) rules() []*netlink.Rule {
	var rules []*netlink.Rule
	if g.Remote.Is6() {
		for _, r := range g.portRules(ruleShut) {
			r.Type = unix.RTN_PROHIBIT
			rules = append(rules, r)
		}
	}
	for _, r := range g.portRules(rulePort) {
		r.Table = charonTable
		if g.Remote.Is6() { // only a host's route into a tun will do
			r.SuppressPrefixlen, r.SuppressIfgroup = 127, defaultGroup
		}
		rules = append(rules, r)
	}
	rest := g.rule(ruleElse)
	rest.Table = mainTable
	return append(rules, rest)
}

// portRules are rules for the port's packets, as that of either host.
func (g Spec) portRules(pref int) []*netlink.Rule {
	var rules []*netlink.Rule
	for _, local := range []bool{false, true} {
		r := g.rule(pref)
		r.IPProto = int(g.protocol())
		if local {
			r.Sport = netlink.NewRulePortRange(g.Port, g.last())
		} else {
			r.Dport = netlink.NewRulePortRange(g.Port, g.last())
		}
		rules = append(rules, r)
	}
	return rules
}

func (g Spec) rule(pref int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family = familyOf(g.Remote)
	r.Dst = hostNet(g.Remote)
	r.Priority = pref
	return r
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

func rulesStep(k *kernel, g Spec) step {
	return step{
		do: func() (int, error) {
			var errs []error
			for _, r := range g.rules() {
				if err := k.RuleAdd(r); err != nil && !errors.Is(err, syscall.EEXIST) {
					errs = append(errs, fmt.Errorf("add routing rule %d: %w", r.Priority, err))
				}
			}
			return 0, errors.Join(errs...)
		},
		check: func() ([]Hole, error) {
			have, err := k.ruleList(g)
			if err != nil {
				return nil, err
			}
			return g.ruleFaults(have), nil
		},
	}
}

func (k *kernel) ruleList(g Spec) ([]netlink.Rule, error) {
	have, err := k.RuleList(familyOf(g.Remote))
	for try := 0; errors.Is(err, netlink.ErrDumpInterrupted) && try < 10; try++ {
		have, err = k.RuleList(familyOf(g.Remote))
	}
	if err != nil {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	return have, nil
}

// rulesHold reports whether the rules that stand for the outbound policies of IPv6
// are all there.
func (k *kernel) rulesHold(g Spec) (bool, error) {
	have, err := k.ruleList(g)
	if err != nil {
		return false, err
	}
	for _, r := range g.rules() {
		if r.Priority == ruleShut && !slices.ContainsFunc(have, func(h netlink.Rule) bool { return sameRule(&h, r) }) {
			return false, nil
		}
	}
	return true, nil
}

func sameRule(a, b *netlink.Rule) bool {
	return a.Priority == b.Priority && shuts(a) == shuts(b) && a.Table == b.Table &&
		a.SuppressIfgroup == b.SuppressIfgroup && a.SuppressPrefixlen == b.SuppressPrefixlen &&
		prefixOf(a.Dst) == prefixOf(b.Dst) && a.IPProto == b.IPProto && samePorts(a.Sport, b.Sport) && samePorts(a.Dport, b.Dport) &&
		a.Mark == 0 && a.Src == nil && a.IifName == "" && a.OifName == "" && !a.Invert
}

// shuts reports whether a rule has no way for packets. A list of rules does not
// say what each does, but all others name a table or another rule.
func shuts(r *netlink.Rule) bool { return r.Table == 0 && r.Goto < 0 }

func samePorts(a, b *netlink.RulePortRange) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// ruleFaults compares a guard's rules with those that the host has.
func (g Spec) ruleFaults(have []netlink.Rule) []Hole {
	var holes []Hole
	rules := g.rules()
	for _, r := range rules {
		if slices.ContainsFunc(have, func(h netlink.Rule) bool { return sameRule(&h, r) }) {
			continue
		}
		h := Hole{Spec: g, Shut: true, What: fmt.Sprintf("routing rule %d for %v is missing: the link's packets, or others to %v, go astray", r.Priority, g, g.Remote),
			Fix: "restart the daemon, and find out who removed it (ip rule flush, systemd-networkd with ManageForeignRoutingPolicyRules)"}
		if r.Priority == ruleShut {
			h.Shut = false
			h.What = fmt.Sprintf("routing rule %d, which keeps clear packets of %v from leaving, is missing", r.Priority, g)
		}
		holes = append(holes, h)
	}
	for i := range have {
		r := &have[i]
		own := slices.ContainsFunc(rules, func(w *netlink.Rule) bool { return sameRule(r, w) }) || g.isPortRule(r)
		if r.Priority > ruleShut || own || !g.precedes(r) {
			continue
		}
		// In IPv4 the packets meet the policies, whatever their way.
		holes = append(holes, Hole{Spec: g, Shut: !g.Remote.Is6(),
			What: fmt.Sprintf("routing rule %d has its say about packets of %v before those of the guard", r.Priority, g),
			Fix:  fmt.Sprintf("give it a preference after %d, or let it spare the port: ip %srule", ruleElse, map[bool]string{true: "-6 "}[g.Remote.Is6()])})
	}
	return holes
}

// isPortRule reports whether a rule is that of a guard of another port of the same peer: it leads into
// the tun as the guard's own do, or nowhere.
func (g Spec) isPortRule(r *netlink.Rule) bool {
	h := g
	ports := r.Dport
	if ports == nil {
		ports = r.Sport
	}
	if ports == nil {
		return false
	}
	h.Port, h.Size = ports.Start, ports.End-ports.Start+1
	return slices.ContainsFunc(h.rules(), func(w *netlink.Rule) bool { return w.Priority == rulePort && sameRule(r, w) })
}

// precedes reports whether a rule may take packets of the guard's port.
func (g Spec) precedes(r *netlink.Rule) bool {
	switch {
	case r.Table == unix.RT_TABLE_LOCAL, r.Mark != 0, shuts(r):
		return false
	case r.IPProto != 0 && transport.Protocol(r.IPProto) != g.protocol():
		return false
	case r.Dst != nil && !prefixOf(r.Dst).Contains(g.Remote) && !r.Invert:
		return false
	}
	covers := func(p *netlink.RulePortRange) bool { return p == nil || p.Start <= g.last() && g.Port <= p.End }
	return covers(r.Dport) || covers(r.Sport)
}

// shutRules lists the rules that stand for outbound block policies.
func (k *kernel) shutRules() ([]Policy, error) {
	have, err := k.RuleList(netlink.FAMILY_V6)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list routing rules: %w", err)
	}
	var out []Policy
	for i := range have {
		r := &have[i]
		if r.Priority != ruleShut || !shuts(r) || r.Dst == nil || !prefixOf(r.Dst).IsSingleIP() || (r.Sport == nil) == (r.Dport == nil) {
			continue
		}
		p := Policy{Direction: "out", Action: "block", Remote: prefixOf(r.Dst).Addr(), Protocol: transport.Protocol(r.IPProto), Rule: r.Priority}
		ports := r.Sport
		if ports != nil {
			p.LocalPort = ports.Start
		} else {
			ports = r.Dport
			p.PeerPort = ports.Start
		}
		if ports.End > ports.Start {
			p.Size = ports.End - ports.Start + 1
		}
		out = append(out, p)
	}
	return out, nil
}

// removeRules removes the rules of a guard; the one that other ports of the peer
// share goes with the last of them. Rules that are not there are no error.
func (k *kernel) removeRules(g Spec) error {
	have, err := k.ruleList(g)
	if err != nil {
		return err
	}
	var errs []error
	gone := func(wanted []*netlink.Rule) {
		have = slices.DeleteFunc(have, func(h netlink.Rule) bool {
			i := slices.IndexFunc(wanted, func(r *netlink.Rule) bool { return sameRule(&h, r) })
			if i < 0 {
				return false
			}
			if err := k.RuleDel(wanted[i]); err != nil && !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, fmt.Errorf("delete routing rule %d: %w", h.Priority, err))
			}
			return true
		})
	}
	rules := g.rules()
	slices.Reverse(rules) // the one that shuts goes last
	gone(slices.DeleteFunc(slices.Clone(rules), func(r *netlink.Rule) bool { return r.Priority == ruleElse }))
	shared := slices.ContainsFunc(have, func(h netlink.Rule) bool {
		return h.Priority == rulePort && h.Dst != nil && prefixOf(h.Dst).Addr() == g.Remote
	})
	if !shared {
		gone(rules[:1])
	}
	return errors.Join(errs...)
}
