package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ironwarp/ironwarp/transport"
)

// Partitions decides who may use which partitions (IBTA volume 1, section 10.9). It is asked about each queue pair when it
// is made and whenever CheckPartitions is called, and about each request, outgoing and incoming; never on the data path. Its
// methods are called from several goroutines and must not block.
type Partitions interface {
	// MayUse fails unless a queue pair or listener with a security label may use a partition; "" is who has none of his own.
	MayUse(label, partition string) error
	// MayTalk fails unless this host has a link of a partition with an authenticated peer.
	MayTalk(partition, peer string) error
}

// ErrPartition is matched by a *PartitionError.
var ErrPartition = errors.New("verbs: the partition may not be used")

// PartitionError means that a queue pair or listener may not use its partition. Err, of Partitions, names the policy.
type PartitionError struct {
	Op        string // what was refused
	Partition string
	Label     string // "": the default one
	Peer      transport.Identity
	Err       error
}

func (e *PartitionError) Error() string {
	s := "verbs: " + e.Op + " in partition " + e.Partition
	if e.Label != "" {
		s += " with label " + e.Label
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns ErrPartition and the error of Partitions.
func (e *PartitionError) Unwrap() []error { return []error{ErrPartition, e.Err} }

var (
	errNoPartitions   = errors.New("this device has no partitions")
	errOtherPartition = errors.New("a queue pair does not change its partition")
)

// Partition is the name of the partition that the queue pair is of, "": of none.
func (qp *QP) Partition() string {
	qp.mu.Lock()
	defer qp.mu.Unlock()
	return qp.within
}

// Label is the security label of the queue pair, "": the default one.
func (qp *QP) Label() string { return cmp.Or(qp.cfg.Label, qp.pd.ulp.Label()) }

// mayUse fails with a *PartitionError unless the label may use the partition, and this host talks in it with the peer, if
// that is known.
func (d *Device) mayUse(op, label, partition string, peer transport.Identity) error {
	if partition == "" {
		return nil
	}
	err := errNoPartitions
	if d.partitions != nil {
		if err = d.partitions.MayUse(label, partition); err == nil && peer != "" {
			err = d.partitions.MayTalk(partition, string(peer))
		}
	}
	if err == nil {
		return nil
	}
	return &PartitionError{Op: op, Partition: partition, Label: label, Peer: peer, Err: err}
}

// CheckPartitions looks at all queue pairs and associations anew, and returns how many it has ended because their labels may
// not use their partitions any more, or this host has no link with their peers in them: each goes to QPError, with an
// EventPartition, and what it has not sent is not sent. It is for whoever has changed what Partitions, or the label of a ULP
// or a listener, says: first that is in force, then this is called. A queue pair that is made meanwhile is
// among those that are looked at, or was made by what is in force.
func (d *Device) CheckPartitions() (ended int) {
	if d.partitions == nil {
		return 0
	}
	d.mu.Lock()
	qps := slices.Collect(maps.Values(d.qps))
	d.mu.Unlock()
	for _, qp := range qps {
		if err := d.deniesGoingOn(qp.Label(), qp.Partition(), qp.Peer()); err != nil && qp.State() != QPError {
			ended++
			d.events.emit(qp.event(EventPartition, err))
			resetOnClose(qp.link())
			qp.Abort(err)
		}
	}
	for _, a := range d.assocs.denied() {
		a.assoc.Abort(ErrPartition.Error())
		a.assoc.Close()
	}
	return ended
}

// denied keeps new streams off the associations whose partitions may not be used any more, and returns those that are up.
func (as *associations) denied() (all []*association) {
	as.mu.Lock()
	defer as.mu.Unlock()
	for a := range as.all {
		label, partition := cmp.Or(a.key.label, a.ulpLabel()), a.key.partition
		if a.listener != nil {
			label, partition = a.listener.label(), a.listener.cfg.Partition
		}
		if a.dev.deniesGoingOn(label, partition, a.assoc.Protection().Peer()) != nil {
			as.retireLocked(a)
			all = append(all, a)
		}
	}
	return all
}

func (a *association) ulpLabel() string {
	if a.key.ulp == nil {
		return ""
	}
	return a.key.ulp.Label()
}

// resetOnClose has the kernel forget what a connection has not sent when it is closed: TCP's peer gets a reset.
func resetOnClose(c Transport) {
	if r, ok := c.(interface{ ResetOnClose() }); ok {
		r.ResetOnClose()
	}
}

// label is the listener's at this moment.
func (l *Listener) label() string {
	if l.cfg.Label == nil {
		return ""
	}
	return l.cfg.Label()
}

// gated is the transport of a partition's listener.
func (l *Listener) gated(t *transport.Config) *transport.Config {
	if t == nil || t.Protector == nil {
		return t
	}
	c := *t
	c.Protector = &partitionGate{l, t.Protector}
	return &c
}

// partitionGate is a Protector that refuses what comes to a partition's listener, before anything is answered, unless the
// partition may be used and this host has a link with the peer in it.
type partitionGate struct {
	l *Listener
	transport.Protector
}

// Screen implements transport.Screener.
func (g *partitionGate) Screen(f transport.Flow) error {
	if err := g.l.dev.deniesRequest(g.l.label(), g.l.cfg.Partition); err != nil {
		return err
	}
	if s, ok := g.Protector.(transport.Screener); ok {
		return s.Screen(f)
	}
	return nil
}

// Admit implements transport.Protector.
func (g *partitionGate) Admit(ctx context.Context, f transport.Flow, outgoing bool, c transport.Monitored) (transport.Protection, error) {
	d, label, partition := g.l.dev, g.l.label(), g.l.cfg.Partition
	if err := d.deniesRequest(label, partition); err != nil {
		return nil, fmt.Errorf("%w: %w", transport.ErrNoAnswer, err)
	}
	p, err := g.Protector.Admit(ctx, f, outgoing, c)
	if err != nil {
		return nil, err
	}
	if err := d.deniesPeer(label, partition, p.Peer()); err != nil {
		p.Release()
		return nil, fmt.Errorf("%w: %w", transport.ErrNoAnswer, err)
	}
	return p, nil
}
