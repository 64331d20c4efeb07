package ipsec

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

// quoteTable is what the kernel has of guardTable.
type quoteTable struct {
	absent bool // the kernel has no nf_tables
	faults []string
	there  bool
	links  map[blockKey]bool
	hosts  map[netip.Addr]bool
}

// tables is the connection to nf_tables, opened when it is first needed.
func (k *kernel) tables() (*nftables.Conn, error) {
	if k.nft == nil {
		c, err := openTables()
		if err != nil {
			return nil, err
		}
		k.nft = c
	}
	return k.nft, nil
}

// quotes reads guardTable, once between two changes.
func (k *kernel) quotes() (*quoteTable, error) {
	if k.quoted != nil {
		return k.quoted, nil
	}
	q := &quoteTable{links: map[blockKey]bool{}, hosts: map[netip.Addr]bool{}}
	c, err := k.tables()
	if err == nil {
		err = q.read(c)
	}
	if withoutTables(err) {
		q.absent, err = true, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at table %s of nf_tables: %w", guardTable, err)
	}
	k.quoted = q
	return q, nil
}

func (q *quoteTable) read(c *nftables.Conn) error {
	t, err := findTable(c, guardTable)
	if err != nil {
		return err
	}
	if t == nil {
		q.faults = []string{"table " + guardTable + " of nf_tables is missing"}
		return nil
	}
	q.there = true
	if t.Flags&dormantTable != 0 {
		q.faults = append(q.faults, "table "+guardTable+" of nf_tables is dormant")
	}
	if err := q.readSets(c, t); err != nil {
		return err
	}
	return q.readChains(c, t)
}

func (q *quoteTable) readSets(c *nftables.Conn, t *nftables.Table) error {
	have, err := c.GetSets(t)
	if err != nil {
		return err
	}
	sets := map[string]*nftables.Set{}
	for _, s := range have {
		sets[s.Name] = s
	}
	for _, w := range guardSets(t) {
		s := sets[w.Name]
		if s == nil || s.KeyType.Bytes != w.KeyType.Bytes {
			q.faults = append(q.faults, fmt.Sprintf("set %s of table %s is missing, or is one of something else", w.Name, guardTable))
			continue
		}
		elements, err := c.GetSetElements(s)
		if err != nil {
			return err
		}
		for _, e := range elements {
			if w.family == nil {
				if a, ok := netip.AddrFromSlice(e.Key); ok {
					q.hosts[a] = true
				}
			} else if k, ok := w.family.parse(e.Key); ok {
				q.links[k] = true
			}
		}
	}
	return nil
}

// readChains compares chains and rules with those that should be there.
func (q *quoteTable) readChains(c *nftables.Conn, t *nftables.Table) error {
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return err
	}
	chains := map[string]*nftables.Chain{}
	for _, x := range all {
		if x.Table.Name == guardTable {
			chains[x.Name] = x
		}
	}
	rules := guardRules(t)
	for _, w := range guardChains(t) {
		x := chains[w.Name]
		if x == nil || (x.Hooknum == nil) != (w.Hooknum == nil) || w.Hooknum != nil && *x.Hooknum != *w.Hooknum {
			q.faults = append(q.faults, fmt.Sprintf("chain %s of table %s is missing, or has another hook", w.Name, guardTable))
			continue
		}
		is, err := c.GetRules(t, x)
		if err != nil {
			return err
		}
		should := slices.DeleteFunc(slices.Clone(rules), func(r *nftables.Rule) bool { return r.Chain.Name != w.Name })
		if signatures(is) != signatures(should) {
			q.faults = append(q.faults, fmt.Sprintf("the rules of chain %s of table %s are not those of the guard", w.Name, guardTable))
		}
	}
	return nil
}

// guardSet is a set of the table: of links, or of the hosts that have one.
type guardSet struct {
	*nftables.Set
	family *blockFamily // of links, nil of hosts
	bits   int          // of an address
}

// guardSets and guardChains are those of the table.
func guardSets(t *nftables.Table) []*guardSet {
	var sets []*guardSet
	for i, name := range []string{setHosts4, setHosts6} {
		sets = append(sets, &guardSet{bits: []int{32, 128}[i], Set: &nftables.Set{Table: t, Name: name, KeyType: []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr}[i]}})
	}
	for _, f := range linkFamilies() {
		sets = append(sets, &guardSet{family: &f, bits: int(f.size) * 8, Set: &nftables.Set{Table: t, Name: f.set, KeyType: f.keyType, Concatenation: true}})
	}
	for i, s := range sets {
		s.ID = uint32(i + 1)
	}
	return sets
}

func guardChains(t *nftables.Table) []*nftables.Chain {
	policy := nftables.ChainPolicyAccept
	hooked := func(name string, hook *nftables.ChainHook, at *nftables.ChainPriority) *nftables.Chain {
		return &nftables.Chain{Name: name, Table: t, Type: nftables.ChainTypeFilter, Hooknum: hook, Priority: at, Policy: &policy}
	}
	var chains []*nftables.Chain
	for _, name := range []string{chainErrors4, chainErrors6, chainQuoted4, chainQuoted6, chainFragment6, chainHost6, chainCarried} {
		chains = append(chains, &nftables.Chain{Name: name, Table: t})
	}
	// Behind all address translation: what counts is how it leaves.
	return append(chains, hooked(chainOut, nftables.ChainHookPostrouting, nftables.ChainPriorityConntrackHelper),
		hooked(chainForward, nftables.ChainHookForward, nftables.ChainPriorityFilter))
}

// quoteKeys are a guard's elements of the sets.
func (g GuardSpec) quoteKeys() []blockKey {
	var keys []blockKey
	for _, a := range g.Addresses() {
		keys = append(keys, blockKey{a, g.protocol(), g.Port})
	}
	return keys
}

// missing tells which of a guard's elements a table lacks.
func (q *quoteTable) missing(g GuardSpec) []blockKey {
	return slices.DeleteFunc(g.quoteKeys(), func(k blockKey) bool { return q.links[k] && q.hosts[k.addr] })
}

// writing serialises changes of the table by this process: what goes, and what stays
// without it, depends on what was there.
var writing sync.Mutex

// writeQuotes adds links to the table and removes others, in one step, and makes
// what is not as it should be. The table goes with the last link.
func (k *kernel) writeQuotes(add, gone []blockKey) error {
	writing.Lock()
	defer writing.Unlock()
	c, err := k.tables()
	if err != nil {
		return err
	}
	for range 5 {
		var q *quoteTable
		k.quoted = nil
		if q, err = k.quotes(); err != nil || q.absent {
			return cmp.Or(err, error(unix.EOPNOTSUPP))
		}
		if err = q.change(c, add, gone); err != nil {
			return err
		}
		err = c.Flush()
		k.quoted = nil
		// Somebody else has changed it meanwhile, or it holds something else by a name of
		// ours: what is there is looked at afresh.
		if err == nil || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.EBUSY) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("change table %s of nf_tables: %w", guardTable, err)
	}
	return nil
}

// change queues what turns the table into one with the links that it has, those
// in add and without those in gone. A table that is not as it should be is made
// anew, in the same step; of one that is, nothing but elements changes.
func (q *quoteTable) change(c *nftables.Conn, add, gone []blockKey) error {
	t := &nftables.Table{Name: guardTable, Family: nftables.TableFamilyINet}
	links, hosts := maps.Clone(q.links), map[netip.Addr]bool{}
	for _, k := range add {
		links[k] = true
	}
	for _, k := range gone {
		delete(links, k)
	}
	for k := range links {
		hosts[k.addr] = true
	}
	sound := q.there && len(q.faults) == 0 && len(links) > 0
	if !sound {
		if q.there || len(links) > 0 {
			c.AddTable(t) // that it is not there is no error
			c.DelTable(t)
		}
		if len(links) == 0 {
			return nil
		}
		c.AddTable(t)
		q = &quoteTable{}
	}
	var errs []error
	for _, s := range guardSets(t) {
		more, less := s.elements(links, hosts, q), s.elements(q.links, q.hosts, &quoteTable{links: links, hosts: hosts})
		if !sound {
			errs = append(errs, c.AddSet(s.Set, nil))
		}
		errs = append(errs, setElements(c.SetDeleteElements, s.Set, less), setElements(c.SetAddElements, s.Set, more))
	}
	if sound {
		return errors.Join(errs...)
	}
	for _, x := range guardChains(t) {
		c.AddChain(x)
	}
	for _, r := range guardRules(t) {
		c.AddRule(r)
	}
	return errors.Join(errs...)
}

// elements are those of a set for links and hosts, without what a table has.
func (s *guardSet) elements(links map[blockKey]bool, hosts map[netip.Addr]bool, without *quoteTable) (out []nftables.SetElement) {
	if s.family == nil {
		for a := range hosts {
			if a.BitLen() == s.bits && !without.hosts[a] {
				out = append(out, nftables.SetElement{Key: a.AsSlice()})
			}
		}
		return out
	}
	for k := range links {
		if s.family.holds(k) && !without.links[k] {
			out = append(out, nftables.SetElement{Key: k.bytes()})
		}
	}
	return out
}

// coarseTypes are the kernel's own errors, which XFRM policies tell by their type
// where there is no nf_tables: the selector has it in place of the source port.
func coarseTypes(a netip.Addr) (transport.Protocol, []int) {
	if a.Is6() {
		return protoICMP6, []int{1, 2, 3, 4, redirect6}
	}
	return protoICMP, []int{3, 4, 5, 11, 12}
}

func (g GuardSpec) coarse() []*netlink.XfrmPolicy {
	var out []*netlink.XfrmPolicy
	for _, a := range g.Addresses() {
		proto, types := coarseTypes(a)
		for _, kind := range types {
			out = append(out, &netlink.XfrmPolicy{Dir: netlink.XFRM_DIR_OUT, Proto: netlink.Proto(proto), Src: everything(a), Dst: hostNet(a),
				SrcPort: kind, Action: netlink.XFRM_POLICY_BLOCK, Priority: blockPriority})
		}
	}
	return out
}

// fillQuotes puts in place at once what the table lacks of all these guards: a change
// of it takes the kernel long. It tells how much that was of each. What fails is
// tried by the guards' own steps again, which say so.
func (k *kernel) fillQuotes(specs []GuardSpec) []int {
	lacked := make([]int, len(specs))
	q, err := k.quotes()
	if err != nil || q.absent {
		return lacked
	}
	var all []blockKey
	for i, g := range specs {
		if g.validate() == nil {
			missing := q.missing(g)
			all, lacked[i] = append(all, missing...), len(missing)+len(q.faults)
		}
	}
	if len(all)+len(q.faults) == 0 || k.writeQuotes(all, nil) != nil {
		return make([]int, len(specs))
	}
	return lacked
}

// quoteStep is the part of a guard that keeps ICMP from quoting the link.
func quoteStep(k *kernel, g GuardSpec, have inventory) step {
	coarse := func(there bool, do func(*netlink.XfrmPolicy) error) error {
		var errs []error
		for _, p := range g.coarse() {
			if (have.all[keyOf(p)] != nil) == there {
				errs = append(errs, do(p))
			}
		}
		return errors.Join(errs...)
	}
	return step{
		do: func() (int, error) {
			q, err := k.quotes()
			if err == nil && !q.absent {
				missing := q.missing(g)
				if len(missing)+len(q.faults) == 0 {
					return 0, coarse(true, k.delPolicy)
				}
				if err = k.writeQuotes(missing, nil); err == nil {
					return len(missing) + len(q.faults), coarse(true, k.delPolicy)
				}
			}
			// All of it is better than none.
			return 0, errors.Join(err, coarse(false, func(p *netlink.XfrmPolicy) error {
				if err := k.XfrmPolicyUpdate(p); err != nil {
					return fmt.Errorf("add an XFRM policy: %w", err)
				}
				return nil
			}))
		},
		check: func() ([]Hole, error) {
			q, err := k.quotes()
			if err != nil {
				return nil, err
			}
			faults := q.faults
			switch {
			case q.absent:
				faults = nil
				_ = coarse(false, func(p *netlink.XfrmPolicy) error {
					faults = append(faults, fmt.Sprintf("the policy %q is missing", k.describe(p)))
					return nil
				})
			case q.there && len(q.missing(g)) > 0:
				faults = append(slices.Clone(faults), fmt.Sprintf("the sets of table %s lack %v", guardTable, g))
			}
			if len(faults) == 0 {
				return nil, nil
			}
			return []Hole{{Spec: g, What: "ICMP may quote in clear what ESP has carried: " + strings.Join(faults, ", "),
				Fix: "restart the daemon, and find out who removed it (nft flush ruleset, systemctl reload nftables)"}}, nil
		},
	}
}

// removeQuotes takes that part of a guard away. The policies that stand for it
// go with the last guard of the host: left are the guard policies that stay.
func (k *kernel) removeQuotes(g GuardSpec, left []netlink.XfrmPolicy) error {
	q, err := k.quotes()
	if err == nil && !q.absent && slices.ContainsFunc(g.quoteKeys(), func(x blockKey) bool { return q.links[x] }) {
		err = k.writeQuotes(nil, g.quoteKeys())
	}
	errs := nonNil(err)
	for _, c := range g.coarse() {
		used := func(p netlink.XfrmPolicy) bool {
			return isGuard(&p) && !isCoarse(&p) && remoteOf(&p) == remoteOf(c)
		}
		there := func(p netlink.XfrmPolicy) bool { return isGuard(&p) && keyOf(&p) == keyOf(c) }
		if slices.ContainsFunc(left, there) && !slices.ContainsFunc(left, used) {
			errs = append(errs, k.delPolicy(c))
		}
	}
	return errors.Join(errs...)
}

// isCoarse tells a guard's policy against ICMP from those of its port.
func isCoarse(p *netlink.XfrmPolicy) bool {
	return p.Proto == protoICMP || p.Proto == protoICMP6
}
