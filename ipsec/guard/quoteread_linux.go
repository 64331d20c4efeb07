package guard

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/ironwarp/ironwarp/transport"
)

// quoteTable is what the kernel has of quotesTable.
type quoteTable struct {
	absent bool // the kernel has no nf_tables
	faults []string
	there  bool
	links  map[LinkKey]bool
	hosts  map[netip.Addr]bool
}

// quotes reads quotesTable, once between two changes.
func (k *kernel) quotes() (*quoteTable, error) {
	if k.quoted != nil {
		return k.quoted, nil
	}
	var q *quoteTable
	err := askTables(func(c *nftables.Conn) error {
		q = newQuoteTable()
		return q.read(c)
	})
	if withoutTables(err) {
		q, err = &quoteTable{absent: true}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at table %s of nf_tables: %w", quotesTable, err)
	}
	k.quoted = q
	return q, nil
}

func newQuoteTable() *quoteTable {
	return &quoteTable{links: map[LinkKey]bool{}, hosts: map[netip.Addr]bool{}}
}

func (q *quoteTable) read(c *nftables.Conn) error {
	t, err := findTable(c, quotesTable)
	if err != nil {
		return err
	}
	if t == nil {
		q.faults = []string{"table " + quotesTable + " of nf_tables is missing"}
		return nil
	}
	q.there = true
	if t.Flags&dormantTable != 0 {
		q.faults = append(q.faults, "table "+quotesTable+" of nf_tables is dormant")
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
	for _, w := range quoteSets(t) {
		s := sets[w.Name]
		if s == nil || s.KeyType.Bytes != w.KeyType.Bytes {
			q.faults = append(q.faults, fmt.Sprintf("set %s of table %s is missing, or is one of something else", w.Name, quotesTable))
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
		if x.Table.Name == quotesTable {
			chains[x.Name] = x
		}
	}
	rules := quoteRules(t)
	for _, w := range guardChains(t) {
		x := chains[w.Name]
		if x == nil || (x.Hooknum == nil) != (w.Hooknum == nil) || w.Hooknum != nil && *x.Hooknum != *w.Hooknum {
			q.faults = append(q.faults, fmt.Sprintf("chain %s of table %s is missing, or has another hook", w.Name, quotesTable))
			continue
		}
		is, err := c.GetRules(t, x)
		if err != nil {
			return err
		}
		should := slices.DeleteFunc(slices.Clone(rules), func(r *nftables.Rule) bool { return r.Chain.Name != w.Name })
		if signatures(is) != signatures(should) {
			q.faults = append(q.faults, fmt.Sprintf("the rules of chain %s of table %s are not those of the guard", w.Name, quotesTable))
		}
	}
	return nil
}

// quoteSet is a set of the table: of links, or of the hosts that have one.
type quoteSet struct {
	*nftables.Set
	family *blockFamily // of links, nil of hosts
	bits   int          // of an address
}

// quoteSets and guardChains are those of the table.
func quoteSets(t *nftables.Table) []*quoteSet {
	var sets []*quoteSet
	for i, name := range []string{setHosts4, setHosts6} {
		sets = append(sets, &quoteSet{bits: []int{32, 128}[i], Set: &nftables.Set{Table: t, Name: name, KeyType: []nftables.SetDatatype{nftables.TypeIPAddr, nftables.TypeIP6Addr}[i]}})
	}
	for _, f := range linkFamilies() {
		sets = append(sets, &quoteSet{family: &f, bits: int(f.size) * 8, Set: &nftables.Set{Table: t, Name: f.set, KeyType: f.keyType, Concatenation: true}})
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
	for _, name := range []string{chainErrors4, chainErrors6, chainQuoted4, chainQuoted6, chainFragment6, chainHost6, chainCarried, chainRouted4} {
		chains = append(chains, &nftables.Chain{Name: name, Table: t})
	}
	// Behind all address translation: what counts is how it leaves.
	return append(chains, hooked(chainOut, nftables.ChainHookPostrouting, nftables.ChainPriorityConntrackHelper),
		hooked(chainForward, nftables.ChainHookForward, nftables.ChainPriorityFilter))
}

// Keys are a guard's elements of the sets.
func (g Spec) Keys() []LinkKey {
	var keys []LinkKey
	for _, a := range g.Addresses() {
		for i := range max(g.Size, 1) {
			keys = append(keys, LinkKey{a, g.protocol(), g.Port + i})
		}
	}
	return keys
}

// guards reports whether what a key names is stopped by a policy.
func guards(p *xfrmPolicy, k LinkKey) bool {
	port, size, _, ok := p.ports()
	return ok && k.Port&^(size-1) == port && transport.Protocol(p.Proto) == k.proto && remoteOf(p) == k.Addr
}

// missing returns which of a guard's elements a table lacks.
func (q *quoteTable) missing(g Spec) []LinkKey {
	return slices.DeleteFunc(g.Keys(), func(k LinkKey) bool { return q.links[k] && q.hosts[k.Addr] })
}
