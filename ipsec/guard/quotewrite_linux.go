package guard

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// writing serialises changes of the table by this process: what goes, and what stays
// without it, depends on what was there.
var writing sync.Mutex

// writeQuotes adds links to the table and removes others, in one step, and makes
// what is not as it should be. The table goes with the last link.
func (k *kernel) writeQuotes(add, gone []LinkKey) error {
	writing.Lock()
	defer writing.Unlock()
	err := askTables(func(c *nftables.Conn) (err error) {
		for range 5 {
			q := newQuoteTable()
			if err = q.read(c); err != nil {
				return err
			}
			if err = q.change(c, add, gone); err != nil {
				return err
			}
			err = c.Flush()
			// Somebody else has changed it meanwhile, or it holds something else by a name of
			// ours: what is there is looked at afresh.
			if err == nil || !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrExist) && !errors.Is(err, unix.EBUSY) {
				break
			}
		}
		return err
	})
	k.quoted = nil
	if err != nil {
		return fmt.Errorf("change table %s of nf_tables: %w", quotesTable, err)
	}
	return nil
}

// change queues what turns the table into one with the links that it has, those
// in add and without those in gone. A table that is not as it should be is made
// anew, in the same step; of one that is, nothing but elements changes.
func (q *quoteTable) change(c *nftables.Conn, add, gone []LinkKey) error {
	t := &nftables.Table{Name: quotesTable, Family: nftables.TableFamilyINet}
	links, hosts := maps.Clone(q.links), map[netip.Addr]bool{}
	for _, k := range add {
		links[k] = true
	}
	for _, k := range gone {
		delete(links, k)
	}
	for k := range links {
		hosts[k.Addr] = true
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
	for _, s := range quoteSets(t) {
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
	for _, r := range quoteRules(t) {
		c.AddRule(r)
	}
	return errors.Join(errs...)
}

// elements are those of a set for links and hosts, without what a table has.
func (s *quoteSet) elements(links map[LinkKey]bool, hosts map[netip.Addr]bool, without *quoteTable) (out []nftables.SetElement) {
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

// fillQuotes puts in place at once what the table lacks of all these guards: a change
// of it takes the kernel long. It returns how much that was of each. What fails is
// tried by the guards' own steps again, which say so.
func (k *kernel) fillQuotes(specs []Spec) []int {
	lacked := make([]int, len(specs))
	q, err := k.quotes()
	if err != nil || q.absent {
		return lacked
	}
	var all []LinkKey
	for i, g := range specs {
		if g.validate() == nil {
			missing := q.missing(g)
			all, lacked[i] = append(all, missing...), len(missing)+len(q.faults)
		}
	}
	if len(all)+len(q.faults) == 0 {
		return lacked
	}
	for first := true; first || len(all) > 0; first = false {
		n := min(len(all), maxKeys)
		if k.writeQuotes(all[:n], nil) != nil {
			return make([]int, len(specs))
		}
		all = all[n:]
	}
	return lacked
}
