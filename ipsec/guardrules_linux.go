package ipsec

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Userland ESP routes by host: its rule 220 sends every packet to a peer with an
// SA into the tun, where those that no SA covers vanish. Two rules before it
// confine that to the port: the port's packets look into charon's table, all
// others to that peer are routed as ever. Without an SA charon's table is empty,
// and the packets meet the guard on their usual way.
const (
	rulePort     = 218
	ruleElse     = 219
	charonTable  = 220 // charon.routing_table
	mainTable    = unix.RT_TABLE_MAIN
	sysctlAccept = "1"
)

func (k *kernel) portRules(g GuardSpec) []*netlink.Rule {
	var rules []*netlink.Rule
	for _, local := range []bool{false, true} {
		r := k.rule(g, rulePort, charonTable)
		r.IPProto = int(g.protocol())
		if local {
			r.Sport = netlink.NewRulePortRange(g.Port, g.Port)
		} else {
			r.Dport = netlink.NewRulePortRange(g.Port, g.Port)
		}
		rules = append(rules, r)
	}
	return rules
}

func (k *kernel) rule(g GuardSpec, pref, table int) *netlink.Rule {
	r := netlink.NewRule()
	r.Family = familyOf(g.Remote)
	r.Dst = hostNet(g.Remote)
	r.Priority, r.Table = pref, table
	return r
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

func (k *kernel) addRules(g GuardSpec) error {
	var errs []error
	for _, r := range append(k.portRules(g), k.rule(g, ruleElse, mainTable)) {
		if err := k.RuleAdd(r); err != nil && !errors.Is(err, syscall.EEXIST) {
			errs = append(errs, fmt.Errorf("add routing rule %d: %w", r.Priority, err))
		}
	}
	return errors.Join(errs...)
}

// removeRules removes the rules of a guard; the one that other ports of the peer
// share goes with the last of them.
func (k *kernel) removeRules(g GuardSpec) error {
	var errs []error
	del := func(r *netlink.Rule) {
		if err := k.RuleDel(r); err != nil && !errors.Is(err, syscall.ENOENT) {
			errs = append(errs, fmt.Errorf("delete routing rule %d: %w", r.Priority, err))
		}
	}
	for _, r := range k.portRules(g) {
		del(r)
	}
	left, err := k.RuleList(familyOf(g.Remote))
	if err != nil {
		return errors.Join(append(errs, fmt.Errorf("list routing rules: %w", err))...)
	}
	for _, r := range left {
		if r.Priority == rulePort && r.Dst != nil && prefixOf(r.Dst).Addr() == g.Remote {
			return errors.Join(errs...)
		}
	}
	del(k.rule(g, ruleElse, mainTable))
	return errors.Join(errs...)
}

// exemptInbound lets decrypted packets that charon writes to its tun pass the
// inbound block. It is set on that device alone: a new device starts without
// it, so that nothing else is ever exempt.
func exemptInbound(dev string) error {
	path := "/proc/sys/net/ipv4/conf/" + dev + "/disable_policy"
	if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == sysctlAccept {
		return nil
	}
	if err := os.WriteFile(path, []byte(sysctlAccept), 0); err != nil {
		return fmt.Errorf("let %s pass the inbound guard: %w", dev, err)
	}
	return nil
}
