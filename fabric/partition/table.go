package partition

import (
	"cmp"
	"slices"
)

// Partition is one of a host's partitions.
type Partition struct {
	Name  string
	PKey  PKey
	Label string // the security label, a context; "": labels play no part
	Port  uint16 // of its link: TCP's, SCTP's, and UDP's of SCTP in UDP
	// ISCSIPort is the TCP port of iSCSI targets of the partition; 0: it has none.
	ISCSIPort uint16
	// Members are those hosts that belong to it, by their IKE identities.
	Members map[string]Membership
	// Own is this host's membership where Members does not say; None: Members says.
	Own Membership
}

// Between are the memberships of this host, which has the identity local towards a peer, and of the peer.
func (p *Partition) Between(local, peer string) (own, theirs Membership) {
	if own = p.Own; own == None {
		own = p.Members[local]
	}
	return own, p.Members[peer]
}

// Links reports whether two hosts of these memberships have a link of the partition.
func Links(own, theirs Membership) bool { return mayTalk(own, theirs) }

// Table is the partitions of a host. It does not change.
type Table struct{ all []Partition } // by name

// NewTable returns a table of partitions with different names.
func NewTable(all []Partition) *Table {
	t := &Table{slices.Clone(all)}
	slices.SortFunc(t.all, func(a, b Partition) int { return cmp.Compare(a.Name, b.Name) })
	return t
}

// All are the partitions, by name.
func (t *Table) All() []Partition {
	if t == nil {
		return nil
	}
	return t.all
}

// Find finds a partition by name.
func (t *Table) Find(name string) (Partition, bool) {
	i, ok := slices.BinarySearchFunc(t.All(), name, func(p Partition, name string) int { return cmp.Compare(p.Name, name) })
	if !ok {
		return Partition{}, false
	}
	return t.all[i], true
}
