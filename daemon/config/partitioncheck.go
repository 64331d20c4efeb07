package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/transport"
)

// fillPartitions gives each peer the partitions of which it is a member, and says where this host's own membership is
// not known.
func fillPartitions(c *Config) (errs Errors) {
	for i := range c.Peers {
		p := &c.Peers[i]
		p.Partitions = nil
		local := cmp.Or(p.LocalID, FormatAddr(p.LocalAddress))
		for _, q := range c.Partitions {
			own, theirs := q.Between(local, p.Identity())
			if theirs == partition.None {
				continue
			}
			if own == partition.None && local == "" {
				errs = append(errs, &Error{Pos: q.Origin, Msg: fmt.Sprintf("partition %s has the member %s, which is peer %s, and towards that peer this host's identity is the address that a route will give it", q.Name, p.Identity(), p.Name),
					Fix: "set local_id or local_address of the peer to what members: has for this host, or add membership: full or limited to the partition for this host"})
				continue
			}
			p.Partitions = append(p.Partitions, PeerPartition{Name: q.Name, Port: q.Port, ISCSIPort: q.ISCSIPort, Label: q.Label, Own: own, Theirs: theirs})
		}
	}
	return errs
}

// checkPartitions finds what is wrong with partitions, and conflicts between them and others.
func checkPartitions(c *Config) Errors {
	var errs Errors
	fail := func(p Partition, msg, fix string) { errs = append(errs, &Error{Pos: p.Origin, Msg: msg, Fix: fix}) }
	if n := len(c.Partitions); n > MaxPartitions {
		fail(c.Partitions[MaxPartitions], fmt.Sprintf("%d partitions", n), fmt.Sprintf("allowed: up to %d: each has a guard and two child SAs of each member for each of its transports", MaxPartitions))
	}
	for i, p := range c.Partitions {
		if p.Name == "" {
			continue
		}
		for _, o := range c.Partitions[:i] {
			switch {
			case o.Name == p.Name:
				fail(p, fmt.Sprintf("partition %s is already declared at %s", p.Name, o.Origin), "give each partition its own name")
			case o.PKey == p.PKey:
				fail(p, fmt.Sprintf("partitions %s and %s have the same pkey %v", o.Name, p.Name, p.PKey), "give each a number of its own")
			case o.Port == p.Port || o.Port == p.ISCSIPort || o.ISCSIPort != 0 && (o.ISCSIPort == p.Port || o.ISCSIPort == p.ISCSIPort):
				fail(p, fmt.Sprintf("partitions %s and %s have a port in common", o.Name, p.Name), "a port is of one partition, whose label its SAs have: give each its own")
			}
		}
		if p.Label != "" && !c.Labels.Decide() {
			fail(p, fmt.Sprintf("partition %s has a label, and nothing decides who may use it", p.Name), "add labels: {policy: FILE}, or labels: {engine: selinux} on a host with SELinux")
		}
		if p.Label == "" && c.Labels.Decide() {
			fail(p, fmt.Sprintf("partition %s has no label", p.Name), fmt.Sprintf("add label:, or `#partcon %v` and a context to the policy", p.PKey))
		}
		for _, port := range []uint16{p.Port, p.ISCSIPort} {
			if port != 0 {
				c.checkPartitionPort(p, port, fail)
			}
		}
	}
	for _, p := range c.Peers {
		for _, q := range p.Partitions {
			if p.Protection == ProtectPlaintext && q.Label != "" && q.Linked() {
				at, _ := c.partitionNamed(q.Name)
				fail(at, fmt.Sprintf("partition %s has a label, and its member %s, peer %s, has insecure_plaintext: nothing would negotiate the label", q.Name, p.Identity(), p.Name), "give the peer IPsec, or take it out of the partition")
			}
			if r := p.Resolved; r != nil && r.Version == 1 && q.Label != "" && q.Linked() {
				at, _ := c.partitionNamed(q.Name)
				fail(at, fmt.Sprintf("partition %s has a label, and its member %s, peer %s, the profile %s with IKEv1, which negotiates none", q.Name, p.Identity(), p.Name, r.Name),
					"take a profile with IKEv2 for the peer, on both hosts, or remove the label")
			}
		}
	}
	return append(errs, checkPartitionUses(c)...)
}

// partitionNamed is Partition for a list that is not sorted yet.
func (c *Config) partitionNamed(name string) (Partition, bool) {
	i := slices.IndexFunc(c.Partitions, func(p Partition) bool { return p.Name == name })
	if i < 0 {
		return Partition{}, false
	}
	return c.Partitions[i], true
}

// checkPartitionPort finds who else has a port of a partition.
func (c *Config) checkPartitionPort(p Partition, port uint16, fail func(p Partition, msg, fix string)) {
	taken := func(what string) {
		fail(p, fmt.Sprintf("partition %s has the port %d, which is %s", p.Name, port, what), "a partition's port is of nothing else: take another one, the same on all its hosts")
	}
	if port == c.ListenPort {
		taken("that of RDMA streams of no partition (listen: port:)")
	}
	if port == c.ListenUDPPort {
		taken("that of SCTP in UDP (listen: udp_port:)")
	}
	for _, q := range c.Peers {
		if q.ISCSIPort == port {
			taken("the iscsi_port of peer " + q.Name)
		}
		if q.NVMePort == port {
			taken("the nvme_port of peer " + q.Name)
		}
	}
	for _, u := range c.ULPs {
		if slices.ContainsFunc(u.Ports, func(b PortBlock) bool { return b.Contains(port) }) {
			taken("one of ULP " + u.Name)
		}
	}
	for _, s := range c.Subsystems {
		if s.Port == port {
			taken("that of subsystem " + s.Name)
		}
	}
	for _, t := range c.Targets {
		if t.Port == port && (port != p.ISCSIPort || t.Partition != p.Name) {
			taken("that of target " + t.Name)
		}
	}
}

// checkPartitionUses finds exports, targets, ULPs and services of partitions that do not fit them.
func checkPartitionUses(c *Config) (errs Errors) {
	fail := func(at Pos, msg, fix string) { errs = append(errs, &Error{Pos: at, Msg: msg, Fix: fix}) }
	known := func(at Pos, what, name string) bool {
		if name == "" {
			return false
		}
		if _, ok := c.partitionNamed(name); ok {
			return true
		}
		fail(at, fmt.Sprintf("%s is of partition %s, which is not declared", what, name), "declare it under partitions:, or remove partition:")
		return false
	}
	allows := func(at Pos, what, partition string, allow []string) {
		for _, a := range allow {
			if p, ok := c.allowed(a); ok && !p.MayUsePartition(partition) {
				fail(at, fmt.Sprintf("%s is of partition %s, and allows %s, with whom this host has no link of it", what, partition, a),
					"make both hosts members of the partition, one of them at least a full one, or do not allow the peer")
			}
		}
	}
	for _, name := range ServiceNames() {
		known(c.positions[name], "service "+name, c.Services[name].Partition)
	}
	for _, e := range c.Exports {
		if p := e.Partition; known(e.Origin, "export "+e.Name, p) {
			allows(e.Origin, "export "+e.Name, p, e.Allow)
		}
	}
	for _, u := range c.ULPs {
		known(u.Origin, "ULP "+u.Name, u.Partition)
	}
	for _, t := range c.Targets {
		name := t.Partition
		if !known(t.Origin, "target "+t.Name, name) {
			continue
		}
		p, _ := c.partitionNamed(name)
		switch {
		case p.ISCSIPort == 0:
			fail(t.Origin, fmt.Sprintf("target %s is of partition %s, which has no iscsi_port", t.Name, name), "add iscsi_port: to the partition, the same on all its hosts")
		case t.Port != p.ISCSIPort:
			fail(t.Origin, fmt.Sprintf("target %s has the port %d, and its partition %s the iscsi_port %d", t.Name, t.Port, name, p.ISCSIPort), "remove port: of the target")
		case t.Undeclared:
			fail(t.Origin, fmt.Sprintf("target %s is of partition %s, and has insecure_undeclared", t.Name, name), "hosts that are no peers are members of nothing: remove one of them")
		}
		allows(t.Origin, "target "+t.Name, name, t.Peers)
	}
	return errs
}

// partitionOfUses gives exports and targets without a partition that of their service, and targets of one its port.
func partitionOfUses(c *Config) {
	for i := range c.Exports {
		e := &c.Exports[i]
		e.Partition = cmp.Or(e.Partition, c.Services[ServiceExports].Partition)
	}
	for i := range c.Targets {
		t := &c.Targets[i]
		t.Partition = cmp.Or(t.Partition, c.Services[ServiceTargets].Partition)
		if p, ok := c.partitionNamed(t.Partition); ok && t.Port == DefaultISCSIPort && p.ISCSIPort != 0 {
			t.Port = p.ISCSIPort
		}
	}
}

// labelOfPrograms is the label of a ULP's ports, and whether they are a link with a peer.
func (c *Config) labelOfPrograms(u ULP, p Peer) (label string, linked bool) {
	if u.Partition == "" {
		return "", true
	}
	q, ok := p.findPartition(u.Partition)
	return q.Label, ok && q.Linked()
}

// PartitionAt is the partition of a flow with a peer by the port of this host, or of the peer, at which it was dialled; ""
// where the port is of none.
func (c *Config) PartitionAt(proto transport.Protocol, port uint16) string {
	for _, p := range c.Partitions {
		if port == p.Port || proto == transport.ProtoTCP && port == p.ISCSIPort {
			return p.Name
		}
	}
	u, _ := c.ULPAt(proto, port)
	return u.Partition
}

// ULPAt is the ULP of whose programs a port is.
func (c *Config) ULPAt(proto transport.Protocol, port uint16) (ULP, bool) {
	i := slices.IndexFunc(c.ULPs, func(u ULP) bool {
		return slices.ContainsFunc(u.Ports, func(b PortBlock) bool { return b.Carries(proto, port) })
	})
	if i < 0 {
		return ULP{}, false
	}
	return c.ULPs[i], true
}
