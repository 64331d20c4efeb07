package partition

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ironwarp/ironwarp/fabric/policy"
)

// Why a partition may not be used. A *Denied wraps one of them.
var (
	// ErrUnknown: the host has no partition of that name.
	ErrUnknown = errors.New("this host has no such partition")
	// ErrNoPolicy: nothing decides which labels may use it, or that could not be asked.
	ErrNoPolicy = errors.New("no policy decides about it")
	// ErrLabel: the policy does not allow it.
	ErrLabel = errors.New("the policy does not allow it")
	// ErrMember: this host or the peer is no member, or both are limited ones.
	ErrMember = errors.New("the two hosts have no link in it")
)

// Denied is why a label may not use a partition, or a peer is not reached in it.
type Denied struct {
	Label     string // of whoever wants to use it
	Partition string
	Its       string // the partition's label
	Peer      string // an identity
	Source    string // of the policy
	Kind      error  // ErrUnknown, ErrNoPolicy, ErrLabel, ErrMember
	Err       error  // of the policy, if it could not decide
}

func (d *Denied) Error() string {
	switch {
	case errors.Is(d.Kind, ErrUnknown):
		return fmt.Sprintf("partition %s: %v", d.Partition, d.Kind)
	case errors.Is(d.Kind, ErrMember):
		return fmt.Sprintf("partition %s with %s: %v: one is no member, or both are limited ones", d.Partition, d.Peer, d.Kind)
	}
	s := fmt.Sprintf("label %s may not use partition %s (%s): %v", orNone(d.Label), d.Partition, d.Its, d.Kind)
	if d.Source != "" {
		s += ", by " + d.Source
	}
	if d.Err != nil {
		s += ": " + d.Err.Error()
	}
	return s
}

func orNone(label string) string {
	if label == "" {
		return "(none)"
	}
	return label
}

// Unwrap returns the Kind and the policy's error.
func (d *Denied) Unwrap() []error {
	if d.Err != nil {
		return []error{d.Kind, d.Err}
	}
	return []error{d.Kind}
}

// Snapshot is a table and what decides about it. It does not change.
type Snapshot struct {
	Table *Table
	// Decider decides about labels; nil: partitions with a label are used by nobody.
	Decider policy.Decider
	// Default is the label of whoever has none of his own.
	Default string
	// Links reports whether there is a link of a partition with a peer of an authenticated identity.
	Links func(partition, peer string) bool
}

// Published is the snapshot that is in force. The zero value has no partitions. It is safe for concurrent use.
type Published struct {
	// Permitted, if not nil, is told what a permissive policy denies and lets pass. It must not block.
	Permitted func(*Denied)

	now atomic.Pointer[Snapshot]
}

// Publish puts a snapshot in force: every decision that begins afterwards is by it.
func (p *Published) Publish(s *Snapshot) { p.now.Store(s) }

// Now is the snapshot in force, never nil.
func (p *Published) Now() *Snapshot {
	return p.now.Load().orNone()
}

// orNone is the snapshot, or one without partitions where there is none.
func (s *Snapshot) orNone() *Snapshot {
	if s == nil {
		return &Snapshot{}
	}
	return s
}

// MayUse fails with a *Denied unless a queue pair or listener with a label may use a partition. "" is who has no label of his
// own, and has the default one.
func (p *Published) MayUse(label, name string) error {
	d := p.decide(label, name)
	if d == nil {
		return nil
	}
	if d.permissive {
		if p.Permitted != nil {
			p.Permitted(&d.Denied)
		}
		return nil
	}
	return &d.Denied
}

// decide decides by the snapshot in force: what is denied by an older one may be so because what decided there has been closed.
func (p *Published) decide(label, name string) *decision {
	for {
		s := p.now.Load()
		if d := s.orNone().decide(label, name); d == nil || p.now.Load() == s {
			return d
		}
	}
}

// MayTalk fails with a *Denied unless this host may have streams of a partition with a peer of an authenticated identity.
func (p *Published) MayTalk(name, peer string) error {
	s := p.Now()
	if _, ok := s.Table.Find(name); !ok {
		return &Denied{Partition: name, Peer: peer, Kind: ErrUnknown}
	}
	if s.Links == nil || !s.Links(name, peer) {
		return &Denied{Partition: name, Peer: peer, Kind: ErrMember}
	}
	return nil
}

// decision is a denial, which may be one that a permissive policy lets pass.
type decision struct {
	Denied
	permissive bool
}

// decide returns nil if the label may use the partition.
func (s *Snapshot) decide(label, name string) *decision {
	if label == "" {
		label = s.Default
	}
	of, ok := s.Table.Find(name)
	d := &decision{Denied: Denied{Label: label, Partition: name, Its: of.Label}}
	switch {
	case !ok:
		d.Kind = ErrUnknown
		return d
	case of.Label == "":
		return nil
	case s.Decider == nil:
		d.Kind = ErrNoPolicy
		return d
	}
	d.Source = s.Decider.Source()
	allowed, err := s.Decider.MayModify(label, of.Label)
	switch {
	case err != nil:
		d.Kind, d.Err = ErrNoPolicy, err
	case allowed:
		return nil
	default:
		d.Kind = ErrLabel
	}
	if e, ok := s.Decider.(policy.Enforcer); ok && !e.Enforces(label) {
		d.permissive = true
	}
	return d
}

// Why is a decision in words, for people: "" if a label may use a partition. permissive: it may not, and nobody is kept from it.
func (s *Snapshot) Why(label, name string) (denied string, permissive bool) {
	d := s.decide(label, name)
	if d == nil {
		return "", false
	}
	return d.Error(), d.permissive
}
