package daemon

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/export"
	"github.com/ironwarp/ironwarp/daemon/manage"
	"github.com/ironwarp/ironwarp/daemon/volumes"
)

// openVolumes takes up the volumes that are recorded, and what lets peers manage them.
func (d *Daemon) openVolumes() (err error) {
	d.volumes, err = volumes.New(volumes.Config{Log: d.log, StateDir: d.config().StateDir, Host: volumeHost{d}})
	if err == nil {
		d.managed = manage.NewServer(d.ulps[config.ServiceExports], d.log, d.answerManager)
	}
	return err
}

// withVolumes gives a configuration the exports that the volumes of its pools are. One that the configuration declares itself
// comes before a volume of its name.
func (d *Daemon) withVolumes(c *config.Config) {
	d.volumes.SetPools(c.Pools)
	declared := declaredExports(c)
	c.Exports = slices.Clone(declared)
	for _, e := range d.volumes.Exports() {
		if !isAmong(declared, e.Name) {
			c.Exports = append(c.Exports, e)
		}
	}
	slices.SortFunc(c.Exports, compareExports)
}

func compareExports(a, b config.Export) int { return cmp.Compare(a.Name, b.Name) }

// declaredExports are those of a configuration that are no volumes.
func declaredExports(c *config.Config) []config.Export {
	return slices.DeleteFunc(slices.Clone(c.Exports), func(e config.Export) bool { return e.Volume })
}

func isAmong(all []config.Export, name string) bool {
	return slices.ContainsFunc(all, func(e config.Export) bool { return e.Name == name })
}

// applyVolume makes one volume's export what it is to be now.
func (d *Daemon) applyVolume(name string) {
	d.changing.Lock()
	defer d.changing.Unlock()
	if d.ctx.Err() != nil {
		return // the next daemon does
	}
	next := *d.config()
	i, found := slices.BinarySearchFunc(next.Exports, name, func(e config.Export, name string) int { return cmp.Compare(e.Name, name) })
	if found && !next.Exports[i].Volume {
		return
	}
	next.Exports = slices.Clone(next.Exports)
	switch e, ok := d.volumes.Export(name); {
	case found && ok:
		next.Exports[i] = e
	case found:
		next.Exports = slices.Delete(next.Exports, i, i+1)
	case ok:
		next.Exports = slices.Insert(next.Exports, i, e)
	}
	d.cfg.Store(&next)
	d.exports.ApplyOne(&next, name)
}

// volumeHost is what the volumes need of the host.
type volumeHost struct{ d *Daemon }

func (h volumeHost) Apply(_ context.Context, name string) { h.d.applyVolume(name) }
func (h volumeHost) Await(name string)                    { h.d.exports.AwaitOpening(name, export.OfferTime) }
func (h volumeHost) AwaitClosed()                         { h.d.exports.AwaitClosed() }
func (h volumeHost) Grown(name string)                    { h.d.exports.Grown(name) }

func (h volumeHost) Freeze(ctx context.Context, name string) (thaw func(), err error) {
	return h.d.exports.Freeze(ctx, name)
}

// Fence fences a peer, and ends its sessions if it goes on reading: whoever has been disallowed has nothing open afterwards. What else it
// has with this host goes on, such as the stream that may have brought the request.
func (h volumeHost) Fence(ctx context.Context, name string, q api.FenceRequest) (api.Fenced, error) {
	f, err := h.d.exports.Fence(ctx, name, q)
	if err != nil {
		return f, err
	}
	e, _ := h.d.config().Export(name)
	allowed := h.d.allowedIdentities(e)
	for _, id := range h.d.exports.Openers(name) {
		if !slices.Contains(allowed, id) {
			h.d.sessions.EndSessions(id, errUnpublished(name))
		}
	}
	return f, nil
}

// errUnpublished is why the streams of a peer end that goes on reading a volume.
func errUnpublished(name string) error {
	return &api.Error{Code: api.CodeForbidden, Message: "volume " + name + " is no longer published to this peer"}
}

func (h volumeHost) Describe(name string) (api.Export, bool) {
	e, ok := h.d.config().Export(name)
	if !ok || !e.Volume {
		return api.Export{}, false
	}
	return h.d.exports.Describe(name)
}

func (h volumeHost) IsDeclared(name string) bool {
	e, ok := h.d.config().Export(name)
	return ok && !e.Volume
}

func (h volumeHost) Peer(nameOrIdentity string) (name, allow string, ok bool) {
	for _, p := range h.d.config().Peers {
		id, isIdentity := strings.CutPrefix(nameOrIdentity, config.AllowIdentity)
		byIdentity := isIdentity && p.Protection == config.ProtectIPsec && p.Identity() == id
		switch {
		case !byIdentity && (isIdentity || p.Name != nameOrIdentity):
		case p.Protection == config.ProtectIPsec:
			return p.Name, config.AllowIdentity + p.Identity(), true
		default:
			return p.Name, p.Name, true
		}
	}
	return "", "", false
}

// isVolume reports whether an export is a volume, or would take the name of one.
func (d *Daemon) isVolume(name string) bool {
	return d.volumes.Has(name) && !volumeHost{d}.IsDeclared(name)
}
