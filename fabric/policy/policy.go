package policy

import (
	"errors"
	"fmt"
	"strings"
)

// Decider says which labels may use which partitions. A Policy is one, and so is the
// kernel (package selinux).
type Decider interface {
	// MayModify reports whether a queue pair or listener with the label subject may use a
	// partition with the label partition. It fails where one of them is no label, or the
	// answer cannot be had; then nothing may be used.
	MayModify(subject, partition string) (bool, error)
	// Partition returns the label that the policy gives a P_Key.
	Partition(pkey uint16) (context string, ok bool)
	// Source is the policy in words for a user, as in "policy FILE".
	Source() string
}

// Enforcer is a Decider that can be permissive, as the kernel can. What one that is no
// Enforcer denies is always enforced.
type Enforcer interface {
	Decider
	// Enforces reports whether what is denied to subject is refused. If not, the denial is
	// logged and let pass.
	Enforces(subject string) bool
}

// membership is the bit of a P_Key that is not part of the partition's number: full or
// limited (IBTA 10.9.1).
const membership = 0x8000

// Policy is what a file says, compiled. It does not change, so it may be used by several
// goroutines at once.
type Policy struct {
	file       string
	types      map[string]int // their rows and columns below
	attributes map[string]bool
	allowed    table
	partitions map[uint16]string // by P_Key without membership
}

// ErrUnknownType means that a label has a type that the policy does not have.
var ErrUnknownType = errors.New("the policy has no such type")

// MayModify reports whether the policy allows subject to modify partition, of class
// rdma_partition. Each is a context, of which the type decides, or a type. It fails with
// ErrContext, or with ErrUnknownType.
func (p *Policy) MayModify(subject, partition string) (bool, error) {
	s, err := p.typeOf(subject)
	if err != nil {
		return false, fmt.Errorf("%s: label %q: %w", p.Source(), subject, err)
	}
	t, err := p.typeOf(partition)
	if err != nil {
		return false, fmt.Errorf("%s: partition's label %q: %w", p.Source(), partition, err)
	}
	return p.allowed.has(s, t), nil
}

func (p *Policy) typeOf(label string) (int, error) {
	name := label
	if strings.IndexByte(label, ':') >= 0 {
		c, err := ParseContext(label)
		if err != nil {
			return 0, err
		}
		name = c.Type
	} else if !isIdentifier(name) {
		return 0, ErrContext
	}
	i, ok := p.types[name]
	switch {
	case ok:
		return i, nil
	case p.attributes[name]:
		return 0, fmt.Errorf("%s is an attribute: %w", name, ErrUnknownType)
	}
	return 0, fmt.Errorf("%s: %w", name, ErrUnknownType)
}

// Partition returns the label of the partition of a P_Key, with either membership.
func (p *Policy) Partition(pkey uint16) (context string, ok bool) {
	context, ok = p.partitions[pkey&^membership]
	return context, ok
}

// Source is "policy" and the file.
func (p *Policy) Source() string { return "policy " + p.file }
