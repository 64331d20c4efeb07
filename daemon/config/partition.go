package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/fabric/policy"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/transport"
)

// Partition is a partition of this host.
type Partition struct {
	partition.Partition
	Origin Pos
}

// Equal reports whether two declarations are the same, wherever they are written.
func (p Partition) Equal(q Partition) bool {
	return p.Name == q.Name && p.PKey == q.PKey && p.Label == q.Label && p.Port == q.Port && p.ISCSIPort == q.ISCSIPort && p.Own == q.Own && equalMembers(p.Members, q.Members)
}

func equalMembers(a, b map[string]partition.Membership) bool {
	for id, m := range a {
		if b[id] != m {
			return false
		}
	}
	return len(a) == len(b)
}

// Engine is what decides which labels may use which partitions.
type Engine string

// The engines.
const (
	EngineAuto    Engine = "auto"    // the kernel where SELinux is active, else the file
	EngineSELinux Engine = "selinux" // the kernel, or nobody
	EnginePolicy  Engine = "policy"  // the file, whatever the kernel has
)

// Labels is how labels are decided about, and who has which.
type Labels struct {
	Policy  string // the file; "": there is none
	Engine  Engine
	Default string // of whoever has no label of his own, nor from the kernel
	// Loaded is the file, compiled; nil: there is none. Load fills it in.
	Loaded *policy.Policy

	declared bool // labels: is there
	at       Pos  // of Policy
}

// Equal reports whether two declarations are the same; what the file says is none of it.
func (l Labels) Equal(m Labels) bool {
	return l.Policy == m.Policy && l.Engine == m.Engine && l.Default == m.Default && l.declared == m.declared
}

// Decide reports whether labels: is there, so that something decides about them.
func (l Labels) Decide() bool { return l.declared }

// Partition finds a partition by name.
func (c *Config) Partition(name string) (Partition, bool) {
	return findByName(c.Partitions, name, func(p Partition) string { return p.Name })
}

// PartitionTable is the partitions as a table.
func (c *Config) PartitionTable() *partition.Table {
	var all []partition.Partition
	for _, p := range c.Partitions {
		all = append(all, p.Partition)
	}
	return partition.NewTable(all)
}

// ULPPartition is the partition of what a ULP attaches without saying which, "": none. Its programs' ports are of
// its own alone.
func (c *Config) ULPPartition(u ULP) string {
	return cmp.Or(u.Partition, c.Services[ServiceAttachments].Partition)
}

// ServiceLabel is the security label of a service's queue pairs and listeners, "": the default one.
func (c *Config) ServiceLabel(service string) string { return c.Services[service].Label }

// ConfiguredLabels are the security labels that services, exports, targets and ULPs are given, each once, sorted. "" stands for
// those who have the default one.
func (c *Config) ConfiguredLabels() []string {
	all := []string{""}
	for _, s := range c.Services {
		all = append(all, s.Label)
	}
	for _, e := range c.Exports {
		all = append(all, e.Label)
	}
	for _, t := range c.Targets {
		all = append(all, t.Label)
	}
	for _, u := range c.ULPs {
		all = append(all, u.Label)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// PeerPartition is a partition of which a peer is a member.
type PeerPartition struct {
	Name            string
	Port, ISCSIPort uint16
	Label           string
	Own, Theirs     partition.Membership
}

// Linked reports whether the two hosts have a link of it.
func (p PeerPartition) Linked() bool { return partition.Links(p.Own, p.Theirs) }

// InPartition is the peer as streams of one of its partitions reach it, on the partition's port by all of its paths. It
// returns false where the two hosts have no link of it.
func (p Peer) InPartition(name string) (Peer, bool) {
	q, ok := p.findPartition(name)
	if !ok || !q.Linked() {
		return p, false
	}
	p.Port, p.UDPPort = q.Port, q.Port
	paths := slices.Clone(p.Paths)
	for i := range paths {
		paths[i].Port, paths[i].UDPPort = q.Port, q.Port
	}
	p.Paths = paths
	return p, true
}

func (p Peer) findPartition(name string) (PeerPartition, bool) {
	i := slices.IndexFunc(p.Partitions, func(q PeerPartition) bool { return q.Name == name })
	if i < 0 {
		return PeerPartition{}, false
	}
	return p.Partitions[i], true
}

// MayUsePartition reports whether the two hosts have a link of a partition; "" is none, and always there.
func (p Peer) MayUsePartition(name string) bool {
	q, _ := p.findPartition(name)
	return name == "" || q.Linked()
}

// linksOfPartitions are the links of the peer's partitions by its first path: one for each of its carriers, and with iscsi
// those of initiators, and that of NVMe, which is of no partition.
func (p Peer) linksOfPartitions(iscsi bool) (links []pad.Link) {
	if iscsi && p.NVMePort != 0 {
		links = append(links, pad.Link{Protocol: transport.ProtoTCP, Port: p.NVMePort, Standing: true})
	}
	for _, q := range p.Partitions {
		if !q.Linked() {
			continue
		}
		for _, k := range p.Links() {
			links = append(links, pad.Link{Protocol: k.Protocol, Port: q.Port, Name: q.Name, Label: q.Label})
		}
		if iscsi && q.ISCSIPort != 0 {
			links = append(links, pad.Link{Protocol: transport.ProtoTCP, Port: q.ISCSIPort, Label: q.Label, Standing: true})
		}
	}
	return links
}

func (d *decoder) partition(n ast.Node) Partition {
	p := Partition{Origin: d.pos(n), Partition: partition.Partition{Members: map[string]partition.Membership{}}}
	faults := len(d.errs)
	d.mapping(n, "a partition", fields{
		"name":       d.str("partition name", &p.Name, CheckPartitionName),
		"pkey":       d.pkey(&p.PKey),
		"label":      d.str("label", &p.Label, CheckLabel),
		"port":       d.integer("port", 1, 65535, func(v uint64) { p.Port = uint16(v) }),
		"iscsi_port": d.integer("iscsi_port", 1, 65535, func(v uint64) { p.ISCSIPort = uint16(v) }),
		"membership": d.enum("membership", func(s string) { p.Own, _ = partition.ParseMembership(s) }, partition.Memberships()...),
		"members":    d.members(&p),
	})
	d.checkWhole(n, faults, p.fault)
	return p
}

// pkey reads a P_Key, as YAML has numbers, decimal or hexadecimal.
func (d *decoder) pkey(dst *partition.PKey) func(ast.Node) {
	return func(n ast.Node) {
		switch n.(type) {
		case *ast.StringNode, *ast.IntegerNode:
		default:
			d.fail(n, fmt.Sprintf("pkey is %s", kind(n)), "write a number such as 0x0012")
			return
		}
		k, err := partition.ParsePKey(n.GetToken().Value)
		if err != nil {
			d.fail(n, fmt.Sprintf("pkey %q %s", n.GetToken().Value, err), "")
			return
		}
		*dst = k
	}
}

func (d *decoder) members(p *Partition) func(ast.Node) {
	return func(n ast.Node) {
		d.entries(n, "members", func(id *ast.StringNode, v ast.Node) {
			if err := checkIdentity(id.Value); err != nil {
				d.fail(id, fmt.Sprintf("member %q %s", id.Value, err), "")
				return
			}
			if _, twice := p.Members[id.Value]; twice {
				d.fail(id, fmt.Sprintf("member %s is there twice", id.Value), "a host is a full member or a limited one")
				return
			}
			d.enum("membership of "+id.Value, func(s string) { p.Members[id.Value], _ = partition.ParseMembership(s) }, partition.Memberships()...)(v)
		})
		if have := len(p.Members); have > MaxMembers {
			d.fail(n, fmt.Sprintf("%d members", have), fmt.Sprintf("allowed: up to %d", MaxMembers))
		}
	}
}

func (p *Partition) fault() (msg, fix string) {
	switch {
	case p.Name == "":
		return "a partition without name", "add name: and a short name of your choice"
	case p.PKey == 0:
		return fmt.Sprintf("partition %s without pkey", p.Name), "add pkey: and a number such as 0x0012, the same on all its hosts"
	case p.PKey == partition.DefaultPKey:
		return fmt.Sprintf("partition %s has the pkey %v", p.Name, p.PKey), "that is the default partition, of which all is that names no other: take another number"
	case p.Port == 0:
		return fmt.Sprintf("partition %s without port", p.Name), "add port: and a port of its own, the same on all its hosts, which no other link has"
	case CheckUDPPort(p.Port) != nil:
		return fmt.Sprintf("partition %s has the port %d, which is IKE's own", p.Name, p.Port), "take another one"
	case p.Port == p.ISCSIPort:
		return fmt.Sprintf("partition %s has %d as port and as iscsi_port", p.Name, p.Port), "give initiators a port of their own"
	case len(p.Members) == 0:
		return fmt.Sprintf("partition %s without members", p.Name), "add members: {IDENTITY: full} for each of its hosts, this one included, by their IKE identities"
	}
	return "", ""
}

// CheckPartitionName fails if a name cannot be a partition's. The error is the reason.
func CheckPartitionName(s string) error { return pad.CheckLinkName(s) }

// CheckLabel fails if a text cannot be a security label. The error is the reason.
func CheckLabel(s string) error {
	if err := pad.CheckLabel(s); err != nil {
		return err
	}
	if _, err := policy.ParseContext(s); err != nil {
		return errors.New("is no security context: write USER:ROLE:TYPE, as in system_u:object_r:rdma_lab_t")
	}
	return nil
}

func (d *decoder) labels(l *Labels) func(ast.Node) {
	return func(n ast.Node) {
		l.declared = true
		d.mapping(n, "labels", fields{
			"policy": func(n ast.Node) {
				l.at = d.pos(n)
				d.path("policy", &l.Policy)(n)
			},
			"engine":  d.enum("engine", func(s string) { l.Engine = Engine(s) }, string(EngineAuto), string(EngineSELinux), string(EnginePolicy)),
			"default": d.str("default", &l.Default, CheckLabel),
		})
		if l.Engine == EnginePolicy && l.Policy == "" {
			d.fail(n, "labels: has engine: policy without policy", "add policy: and the file, or say engine: selinux")
		}
	}
}

// loadPolicy reads the policy, and gives partitions without a label the one that it has for their P_Keys.
func (changed files) loadPolicy(c *Config) (errs Errors) {
	l := &c.Labels
	if l.Policy == "" {
		return nil
	}
	text, err := changed.read(l.Policy)
	if err == nil {
		l.Loaded, err = policy.Parse(l.Policy, text)
	}
	var faults policy.Errors
	switch {
	case errors.As(err, &faults):
		for _, f := range faults {
			errs = append(errs, &Error{Pos: Pos{File: f.File, Line: f.Line, Column: f.Column}, Msg: f.Text})
		}
	case err != nil:
		errs = append(errs, &Error{Pos: l.at, Msg: fmt.Sprintf("the policy %s cannot be read: %s", l.Policy, reason(err))})
	}
	for i := range c.Partitions {
		if p := &c.Partitions[i]; p.Label == "" && l.Loaded != nil {
			p.Label, _ = l.Loaded.Partition(uint16(p.PKey))
		}
	}
	return errs
}
