package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/fabric/policy"
	"github.com/ironwarp/ironwarp/ipsec"
)

// describePartitions describes the partitions.
func (d *Daemon) describePartitions() []api.Partition {
	c, now := d.config(), d.partitions.Now()
	streams := map[string]int{}
	for _, s := range d.streams() {
		streams[s.Partition]++
	}
	out := []api.Partition{}
	for _, p := range c.Partitions {
		v := api.Partition{Name: p.Name, PKey: p.PKey.String(), Label: p.Label, Port: p.Port, ISCSIPort: p.ISCSIPort, Source: p.Origin.String(), Streams: streams[p.Name], Members: []api.PartitionMember{}}
		if now.Decider != nil && p.Label != "" {
			v.Policy = now.Decider.Source()
		}
		for id, m := range p.Members {
			w := api.PartitionMember{Identity: id, Membership: m.String()}
			for _, q := range c.Peers {
				if q.Identity() == id {
					w.Peer, w.Linked = q.Name, q.MayUsePartition(p.Name)
				}
			}
			v.Members = append(v.Members, w)
		}
		slices.SortFunc(v.Members, func(a, b api.PartitionMember) int { return cmp.Compare(a.Identity, b.Identity) })
		v.Users = usersOf(c, now, p.Name)
		out = append(out, v)
	}
	return out
}

// usersOf are what of this host is of a partition, and whether it may be.
func usersOf(c *config.Config, now *partition.Snapshot, name string) []api.PartitionUser {
	out := []api.PartitionUser{}
	add := func(kind, user, label string) {
		u := api.PartitionUser{Kind: kind, Name: user, Label: cmp.Or(label, now.Default)}
		u.Denied, u.Permitted = now.Why(label, name)
		out = append(out, u)
	}
	for _, s := range config.ServiceNames() {
		if c.Services[s].Partition == name {
			add("service", s, c.ServiceLabel(s))
		}
	}
	for _, e := range c.Exports {
		if e.Partition == name {
			add("export", e.Name, cmp.Or(e.Label, c.ServiceLabel(config.ServiceExports)))
		}
	}
	for _, t := range c.Targets {
		if t.Partition == name {
			add("target", t.Name, cmp.Or(t.Label, c.ServiceLabel(config.ServiceTargets)))
		}
	}
	for _, u := range c.ULPs {
		if u.Partition == name {
			add("ulp", u.Name, labelOfULP(c, u))
		}
	}
	return out
}

// partitionsOf describes the partitions of which a peer is a member.
func (d *Daemon) partitionsOf(p *peer) (out []api.PeerPartition) {
	c := d.config()
	var lanes []ipsec.LaneStatus
	if m := d.sas.Current(); m != nil && p.cfg.Protection == config.ProtectIPsec {
		if st, err := m.PeerStatus(p.cfg.Name); err == nil {
			lanes = st.Lanes
		}
	}
	for _, q := range p.cfg.Partitions {
		of, _ := c.Partition(q.Name)
		v := api.PeerPartition{Name: q.Name, PKey: of.PKey.String(), Label: q.Label, Port: q.Port, Own: q.Own.String(), Theirs: q.Theirs.String(), State: api.PartitionReady}
		switch {
		case !q.Linked():
			v.State = api.PartitionApart
			v.Problem = &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("there is no link of partition %s with peer %s: this host is %s there, and the peer %s", q.Name, p.cfg.Name, memberWords(q.Own), memberWords(q.Theirs)),
				Fix: "make both hosts members, and one of them a full one, on both hosts"}
		case p.cfg.Protection == config.ProtectIPsec:
			v.State = string(ipsec.StateDown)
			for _, l := range lanes {
				if !isOfPartition(p.cfg.Name, l.Child, q.Name) {
					continue
				}
				if v.State == string(ipsec.StateDown) || l.State == ipsec.StateUp {
					v.State = string(l.State)
				}
				if l.Err != nil {
					v.Problem = p.ikeProblem(l.Err)
				}
			}
		}
		out = append(out, v)
	}
	return out
}

func memberWords(m partition.Membership) string {
	if m == partition.None {
		return "no member"
	}
	return "a " + m.String() + " member"
}

// isOfPartition reports whether a child of a peer's connection is one of a partition's link.
func isOfPartition(peer, child, name string) bool {
	rest, ok := strings.CutPrefix(child, peer+"-out-"+name)
	if !ok {
		rest, ok = strings.CutPrefix(child, peer+"-in-"+name)
	}
	return ok && (rest == "" || rest[0] == '-')
}

// permissive says that the policy of the partitions lets pass what it denies to a label that is configured, "" if it does not.
func (d *Daemon) permissive() string { return permissiveIn(d.config(), d.partitions.Now()) }

func permissiveIn(c *config.Config, now *partition.Snapshot) string {
	e, ok := now.Decider.(policy.Enforcer)
	if len(c.Partitions) == 0 || !ok {
		return ""
	}
	for _, label := range c.ConfiguredLabels() {
		if label = cmp.Or(label, now.Default); !e.Enforces(label) {
			return fmt.Sprintf("%s, for label %s", e.Source(), label)
		}
	}
	return ""
}
