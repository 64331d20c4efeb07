package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/nbd"
	"github.com/ironwarp/ironwarp/verbs"
)

// applyULPs makes the local consumers what the configuration says, and reports what
// it did. changing is held.
func (d *Daemon) applyULPs(next *config.Config) (changed []string) {
	say := func(format string, a ...any) { changed = append(changed, fmt.Sprintf(format, a...)) }
	var back []*attachment // disks of ULPs that are replaced
	touched := false       // not so at the start, when disks are yet to be restored
	for _, c := range d.consumerList() {
		u, ok := next.ULP(c.name)
		touched = touched || !ok || !u.Equal(c.cfg) || modelOf(next, u) != c.rdma.Trust()
		switch {
		case !ok:
			d.endULP(c)
			say("ULP %s removed", c.name)
		case u.Disabled != nil:
			back = append(back, d.endULP(c)...)
			say("ULP %s disabled: %v", c.name, u.Disabled)
		case replaced(next, c, u):
			back = append(back, d.endULP(c)...)
			d.startULP(next, u)
			say("ULP %s changed; its disks connect anew", c.name)
		case !u.Equal(c.cfg):
			d.changeULP(c, u)
			say("ULP %s changed", c.name)
		}
	}
	for _, u := range next.ULPs {
		switch {
		case u.Disabled != nil:
			d.log.Warn("a ULP is disabled; its users are refused", "ulp", u.Name, "error", u.Disabled)
		case d.consumer(u.Name) == nil && d.startULP(next, u):
			say("ULP %s added", u.Name)
		}
	}
	for _, at := range back {
		d.restore(at.saved(), at)
	}
	d.mu.Lock()
	waiting := d.aside
	d.aside = nil
	d.mu.Unlock()
	for _, a := range waiting {
		d.restore(a.saved, a.before)
	}
	if touched {
		d.rememberOrLog()
	}
	d.openToUsers(slices.ContainsFunc(next.ULPs, func(u config.ULP) bool { return u.Disabled == nil }))
	return changed
}

// consumer is the consumer of a name, root's for "", and nil if there is none.
func (d *Daemon) consumer(name string) *consumer {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name == "" {
		return d.local.root
	}
	return d.local.ulps[name]
}

// consumerList are all but root, by name.
func (d *Daemon) consumerList() []*consumer {
	d.mu.Lock()
	defer d.mu.Unlock()
	list := make([]*consumer, 0, len(d.local.ulps))
	for _, c := range d.local.ulps {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *consumer) int { return strings.Compare(a.name, b.name) })
	return list
}

// modelOf is the trust model of a ULP.
func modelOf(cfg *config.Config, u config.ULP) verbs.TrustModel {
	return cmp.Or(u.Trust, cfg.ServiceTrust(config.ServiceAttachments)).Model()
}

// startULP registers a ULP with the RNIC.
func (d *Daemon) startULP(cfg *config.Config, u config.ULP) bool {
	rdma, err := d.dev.NewULP(u.Name, verbs.ULPConfig{Quota: u.Limits, Trust: modelOf(cfg, u), Privileged: u.Privileged})
	if err != nil {
		d.log.Error("a ULP cannot be registered; its users are refused", "ulp", u.Name, "error", err)
		return false
	}
	c := &consumer{name: u.Name, gate: local.ULPGate(u.Privileged), cfg: u, rdma: rdma, sessions: map[string]*session{}, large: nbd.NewLargeReads(ulpLarge)}
	c.current, c.change = context.WithCancel(d.ctx)
	d.mu.Lock()
	d.local.ulps[u.Name] = c
	d.mu.Unlock()
	return true
}

// changeULP applies a different declaration. What its users may not do any more
// ends, be it a request under way, a disk or an NBD client.
func (d *Daemon) changeULP(c *consumer, u config.ULP) {
	if err := d.dev.SetQuota(c.rdma, u.Limits); err != nil {
		d.log.Error("a ULP keeps its quota", "ulp", c.name, "error", err)
	}
	d.mu.Lock()
	c.cfg = u
	change := c.change
	c.current, c.change = context.WithCancel(d.ctx)
	d.mu.Unlock()
	change()
	for _, at := range d.attachmentList() {
		switch {
		case at.owner != c:
		case !u.MayAttach(at.key.Peer, at.key.Export):
			d.log.Info("a disk that its ULP may not attach any more is detached", "ulp", c.name, "disk", at.key.String())
			d.dropLater(at)
		default:
			at.recheck()
		}
	}
}

// replaced reports whether a ULP's declaration makes another consumer of it.
func replaced(next *config.Config, c *consumer, u config.ULP) bool {
	return u.Disabled != nil || u.Privileged != c.cfg.Privileged || modelOf(next, u) != c.rdma.Trust()
}

// cutOffULP ends the requests, sessions and streams of a ULP, and waits for nobody.
func (d *Daemon) cutOffULP(c *consumer) {
	d.mu.Lock()
	change := c.change
	d.mu.Unlock()
	change()
	d.endSessions(func(of *consumer, _ *session) bool { return of == c })
	for _, qp := range d.dev.QPs() {
		if qp.PD().ULP() == c.rdma {
			qp.Abort(fmt.Errorf("ULP %s has changed, or is removed from the configuration", c.name))
		}
	}
}

// endULP ends what a ULP has, and returns its disks.
func (d *Daemon) endULP(c *consumer) (disks []*attachment) {
	d.cutOffULP(c)
	d.mu.Lock()
	delete(d.local.ulps, c.name)
	d.mu.Unlock()
	disks = slices.DeleteFunc(d.attachmentList(), func(at *attachment) bool { return at.owner != c })
	d.dropLater(disks...)
	// One of its requests may be what made this change.
	d.run(func(context.Context) {
		c.requests.Wait()
		for _, at := range disks {
			<-at.ended
		}
		c.closing.Wait()
		if err := c.rdma.Close(); err != nil {
			d.log.Error("a ULP that was removed leaves something behind", "ulp", c.name, "error", err)
		}
	})
	return disks
}

// openToUsers lets all users connect to the control socket when there are ULPs: who
// they are is asked of the kernel.
func (d *Daemon) openToUsers(open bool) {
	path := d.controlPath
	if path == "" || path[0] == '@' {
		return
	}
	st, err := os.Lstat(path)
	if err == nil {
		mode := st.Mode().Perm() &^ 0o006
		if open {
			mode |= 0o666
		}
		if mode != st.Mode().Perm() && st.Mode().Type() == fs.ModeSocket {
			err = os.Chmod(path, mode)
		}
	}
	if err != nil {
		d.log.Error("cannot set who may connect to the control socket", "socket", path, "error", err)
	}
}

// ULPs describes the local consumers.
func (d *Daemon) ULPs() []api.ULP {
	out := []api.ULP{}
	for _, c := range d.consumerList() {
		out = append(out, d.describeULP(c))
	}
	for _, u := range d.config().ULPs {
		if e := ulpProblem(u); e != nil {
			out = append(out, api.ULP{Name: u.Name, Privileged: u.Privileged, Trust: string(u.Trust), Users: accounts(u.Users), Groups: accounts(u.Groups),
				Peers: append([]string{}, u.Peers...), Exports: append([]string{}, u.Exports...), MaxAttachments: u.Attachments, Problem: e})
		}
	}
	return out
}

func (d *Daemon) describeULP(c *consumer) api.ULP {
	d.mu.Lock()
	u := c.cfg
	n := 0
	for _, at := range d.disks {
		if at.owner == c {
			n++
		}
	}
	d.mu.Unlock()
	v := api.ULP{
		Name: u.Name, Privileged: u.Privileged, Trust: c.rdma.Trust().String(), Users: accounts(u.Users), Groups: accounts(u.Groups),
		Peers: append([]string{}, u.Peers...), Exports: append([]string{}, u.Exports...), Attachments: n, MaxAttachments: u.Attachments,
	}
	v.Connections, _, v.Refused = c.gate.Use()
	return v
}

func accounts(list []config.Account) []string {
	out := []string{}
	for _, a := range list {
		out = append(out, a.Name)
	}
	return out
}
