package daemon

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/verbs"
)

// applyULPs makes the local consumers what the configuration says, and reports what
// it did. changing is held.
func (d *Daemon) applyULPs(next *config.Config) (changed []string) {
	say := func(format string, a ...any) { changed = append(changed, fmt.Sprintf(format, a...)) }
	touched := false // not so at the start, when disks are yet to be restored
	for _, c := range d.local.ULPs() {
		u, ok := next.ULP(c.Name)
		same := u.Equal(c.Declared())
		touched = touched || !ok || !same || trustModelOf(next, u) != c.Disks.Trust()
		switch {
		case !ok:
			d.endULP(c, d.disks.DetachInBackground)
			say("ULP %s removed", c.Name)
		case u.Disabled != nil:
			d.endULP(c, d.disks.Suspend)
			say("ULP %s disabled: %v", c.Name, u.Disabled)
		case needsNewConsumer(next, c, u):
			d.endULP(c, d.disks.Suspend)
			d.startULP(next, u)
			say("ULP %s changed; its disks connect anew", c.Name)
		case !same:
			d.changeULP(c, u)
			say("ULP %s changed", c.Name)
		}
	}
	for _, u := range next.ULPs {
		switch {
		case u.Disabled != nil:
			d.log.Warn("a ULP is disabled; its users are refused", "ulp", u.Name, "error", u.Disabled)
		case d.local.Find(u.Name) == nil && d.startULP(next, u):
			say("ULP %s added", u.Name)
		}
	}
	d.disks.Resume()
	if touched {
		d.disks.SaveOrLog()
	}
	d.setSocketAccess(slices.ContainsFunc(next.ULPs, func(u config.ULP) bool { return u.Disabled == nil && !u.Nobody() }))
	return changed
}

// trustModelOf is the trust model of a ULP.
func trustModelOf(cfg *config.Config, u config.ULP) verbs.TrustModel {
	return cmp.Or(u.Trust, cfg.ServiceTrust(config.ServiceAttachments)).Model()
}

// startULP registers a ULP with the RNIC.
func (d *Daemon) startULP(cfg *config.Config, u config.ULP) bool {
	rdma, err := d.dev.NewULP(u.Name, verbs.ULPConfig{Quota: u.Limits, Trust: trustModelOf(cfg, u), Privileged: u.Privileged, Label: labelOfULP(cfg, u)})
	if err != nil {
		d.log.Error("a ULP cannot be registered; its users are refused", "ulp", u.Name, "error", err)
		return false
	}
	d.local.Add(d.ctx, u, rdma)
	return true
}

// changeULP applies a different declaration. What its users may not do any more
// ends, be it a request under way, a disk or an NBD client.
func (d *Daemon) changeULP(c *local.Consumer, u config.ULP) {
	if err := d.dev.SetQuota(c.Disks, u.Limits); err != nil {
		d.log.Error("a ULP keeps its quota", "ulp", c.Name, "error", err)
	}
	c.Declare(d.ctx, u)
	d.disks.ApplyULP(c)
}

// needsNewConsumer reports whether a ULP's declaration makes another consumer of it.
func needsNewConsumer(next *config.Config, c *local.Consumer, u config.ULP) bool {
	return u.Disabled != nil || u.Privileged != c.Declared().Privileged || trustModelOf(next, u) != c.Disks.Trust()
}

// cutOffULP ends the requests, sessions and streams of a ULP, and waits for nobody.
func (d *Daemon) cutOffULP(c *local.Consumer) {
	c.EndRequests()
	d.disks.EndSessions(func(by *local.Consumer, _ context.Context) bool { return by == c })
	for _, qp := range d.dev.QPs() {
		if qp.PD().ULP() == c.Disks {
			qp.Abort(fmt.Errorf("ULP %s has changed, or is removed from the configuration", c.Name))
		}
	}
}

// endULP ends what a ULP has, and its disks in a way.
func (d *Daemon) endULP(c *local.Consumer, end func(...*attach.Attachment)) {
	d.cutOffULP(c)
	d.local.Remove(c)
	disks := d.disks.List(attach.Of(c))
	end(disks...)
	// One of its requests may be what made this change.
	d.run(func(context.Context) {
		c.Requests.Wait()
		attach.AwaitEnded(disks)
		c.Closing.Wait()
		if err := c.Disks.Close(); err != nil {
			d.log.Error("a ULP that was removed leaves something behind", "ulp", c.Name, "error", err)
		}
	})
}

// setSocketAccess lets all users connect to the control socket when there are ULPs: the kernel
// reports who they are.
func (d *Daemon) setSocketAccess(open bool) {
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

// describeULPs describes the local consumers.
func (d *Daemon) describeULPs() []api.ULP {
	out := []api.ULP{}
	for _, c := range d.local.ULPs() {
		out = append(out, d.describeULP(c))
	}
	for _, u := range d.config().ULPs {
		if e := ulpProblem(u); e != nil {
			out = append(out, api.ULP{ULPSpec: specOfULP(u), Problem: e})
		}
	}
	for i := range out {
		if u, ok := d.config().ULP(out[i].Name); ok {
			out[i].Source = u.Origin.String()
		}
	}
	return out
}

// describeULP describes a ULP as its users may see it.
func (d *Daemon) describeULP(c *local.Consumer) api.ULP {
	v := api.ULP{ULPSpec: specOfULP(c.Declared()), Attachments: len(d.disks.List(attach.Of(c)))}
	v.Trust = c.Disks.Trust().String()
	v.Connections, _, v.Refused = c.Gate.Use()
	return v
}
