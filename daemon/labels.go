package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/fabric/policy"
	"github.com/ironwarp/ironwarp/fabric/selinux"
	"github.com/ironwarp/ironwarp/internal/rate"
	"github.com/ironwarp/ironwarp/verbs"
)

// labels is what decides which labels may use which partitions, besides the file. Daemon.changing is held where it changes.
type labels struct {
	kernel *selinux.Decider   // nil where SELinux does not decide
	stop   context.CancelFunc // of who hears its changes
}

// noDecider decides about nothing, and says why.
type noDecider struct{ why string }

var errNoDecider = errors.New("nothing is there to decide")

func (n noDecider) MayModify(string, string) (bool, error) {
	return false, fmt.Errorf("%w: %s", errNoDecider, n.why)
}
func (noDecider) Partition(uint16) (string, bool) { return "", false }
func (n noDecider) Source() string                { return n.why }

// deciderOf returns what decides by a configuration; nil: it has no labels. The caller closes the kernel's, if there is one.
func deciderOf(c *config.Config) (policy.Decider, *selinux.Decider) {
	l := c.Labels
	if !l.Decide() {
		return nil, nil
	}
	mount, active := selinux.Active()
	switch {
	case l.Engine == config.EnginePolicy, l.Engine == config.EngineAuto && !active && l.Loaded != nil:
		return l.Loaded, nil
	case !active && l.Engine == config.EngineSELinux:
		return noDecider{"SELinux is not active on this host"}, nil
	case !active:
		return noDecider{"SELinux is not active on this host, and labels: has no policy"}, nil
	}
	var of selinux.Labels
	if l.Loaded != nil {
		of = l.Loaded
	}
	k, err := mount.Open(of)
	if err != nil {
		return noDecider{"SELinux is active, and does not answer: " + err.Error()}, nil
	}
	return k, k
}

// ownLabel is the label of this process as SELinux has it, "" where that is not active.
func ownLabel() string {
	mount, active := selinux.Active()
	if !active {
		return ""
	}
	label, err := mount.OwnLabel()
	if err != nil {
		return ""
	}
	return label
}

// applyPartitions puts the partitions and the policy of a configuration in force, gives services and ULPs their labels, and
// ends what may not be any more: in that order, so that nothing that is made meanwhile is forgotten. changing is held.
func (d *Daemon) applyPartitions(next *config.Config) {
	decider, kernel := deciderOf(next)
	left := d.leftPartitions(next)
	linked := map[string]map[string]bool{} // by partition and identity
	for _, c := range next.Peers {
		id := string(newPeer(c).identity)
		for _, q := range c.Partitions {
			if partition.Links(min(q.Own, left[q.Name]), q.Theirs) {
				if linked[q.Name] == nil {
					linked[q.Name] = map[string]bool{}
				}
				linked[q.Name][id] = true
			}
		}
	}
	d.partitions.Publish(&partition.Snapshot{Table: partition.NewTable(partitionsIn(next, left)), Decider: decider, Default: cmp.Or(next.Labels.Default, ownLabel()),
		Links: func(name, peer string) bool { return linked[name][peer] }})
	for _, name := range config.ServiceNames() {
		d.dev.SetLabel(d.ulps[name], next.ServiceLabel(name))
	}
	for _, c := range d.local.ULPs() {
		if u, ok := next.ULP(c.Name); ok {
			d.dev.SetLabel(c.Disks, labelOfULP(next, u))
		}
	}
	before := d.labels
	d.labels = labels{kernel: kernel}
	if kernel != nil {
		var ctx context.Context
		ctx, d.labels.stop = context.WithCancel(d.ctx)
		d.run(func(context.Context) { d.hearSELinux(ctx, kernel) })
	}
	d.closeLabels(before)
	if source := permissiveIn(next, d.partitions.Now()); source != "" {
		d.log.Warn("INSECURE: the policy of partitions is permissive: what it denies is logged, and let pass", "policy", source)
	}
	d.endDenied()
}

// leftPartitions are the most that this host may be in its partitions: what the managers of the fabric have left to it.
func (d *Daemon) leftPartitions(c *config.Config) map[string]partition.Membership {
	keys, all := d.directory.Partitions()
	left := map[string]partition.Membership{}
	for _, p := range c.Partitions {
		if all {
			left[p.Name] = partition.Full
		}
		for _, k := range keys {
			if key := partition.PKey(k); key.Base() == p.PKey.Base() {
				left[p.Name] = key.Membership()
			}
		}
	}
	return left
}

// partitionsIn are the partitions of a configuration that this host is in.
func partitionsIn(c *config.Config, left map[string]partition.Membership) (all []partition.Partition) {
	for _, p := range c.Partitions {
		if left[p.Name] != partition.None {
			all = append(all, p.Partition)
		}
	}
	return all
}

// closeLabels ends hearing what decided before.
func (d *Daemon) closeLabels(l labels) {
	if l.kernel == nil {
		return
	}
	l.stop()
	if err := l.kernel.Close(); err != nil {
		d.log.Warn("SELinux's status page is not released", "error", err)
	}
}

// hearSELinux looks at what there is again whenever SELinux has another policy or mode.
func (d *Daemon) hearSELinux(ctx context.Context, kernel *selinux.Decider) {
	for {
		select {
		case <-kernel.Changed():
		case <-ctx.Done():
			return
		}
		d.log.Warn("SELinux's policy or mode has changed", "policy", kernel.Source())
		d.endDenied() // what is made from now on is decided about by the new one
		d.changeSoon(ctx, func() {
			d.exports.RefreshAllowed()
			d.programs.Reconsider()
			d.listenForTargets(ctx, d.config())
		})
	}
}

// changeSoon makes a change with changing held, as soon as that is free, unless ctx ends before: who closes the daemon waits for
// goroutines with it held.
func (d *Daemon) changeSoon(ctx context.Context, change func()) {
	for range rate.Ticks(ctx, changeRetry) {
		if d.changing.TryLock() {
			defer d.changing.Unlock()
			change()
			return
		}
	}
}

// changeRetry is how soon a change that was heard is tried again while another is being made.
const changeRetry = 20 * time.Millisecond

// endDenied ends the queue pairs that may not use their partitions any more.
func (d *Daemon) endDenied() {
	if n := d.dev.CheckPartitions(); n > 0 {
		d.log.Warn("streams are ended: their labels may not use their partitions any more, or their peers are no members", "streams", n)
	}
}

// onPermitted logs what a permissive policy denies.
func (d *Daemon) onPermitted(p *partition.Denied) {
	d.log.Warn("permissive: denied, and let pass", "label", p.Label, "partition", p.Partition, "reason", p.Error())
}

// labelOfULP is the label of a ULP's queue pairs that have none of their own.
func labelOfULP(c *config.Config, u config.ULP) string {
	return cmp.Or(u.Label, c.ServiceLabel(config.ServiceAttachments))
}

// deniesExport reports whether the label of an export keeps it from its partition.
func (d *Daemon) deniesExport(c *config.Config, e config.Export) bool {
	return e.Partition != "" && d.partitions.MayUse(cmp.Or(e.Label, c.ServiceLabel(config.ServiceExports)), e.Partition) != nil
}

// deniesTarget reports whether the label of a target keeps its portals from its partition.
func (d *Daemon) deniesTarget(t config.Target) bool {
	return t.Partition != "" && d.partitions.MayUse(d.labelOfTarget(t), t.Partition) != nil
}

func (d *Daemon) labelOfTarget(t config.Target) string {
	return cmp.Or(t.Label, d.config().ServiceLabel(config.ServiceTargets))
}

var _ verbs.Partitions = (*partition.Published)(nil)
