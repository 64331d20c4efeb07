package daemon

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/directory"
	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/partition"
	"github.com/ironwarp/ironwarp/fabric/sa"
)

// fabricRoutes are those of the control API that are about the fabric.
func (d *Daemon) fabricRoutes(mux *http.ServeMux) {
	get(mux, "GET /v1/fabric", func(*http.Request) (api.FabricStatus, error) { return d.fabricStatus(), nil })
	get(mux, "GET /v1/fabric/services", func(r *http.Request) ([]api.FabricService, error) {
		return d.listServices(r.Context(), r.URL.Query().Get("name"))
	})
	get(mux, "GET /v1/fabric/paths", func(r *http.Request) ([]api.FabricPath, error) { return d.listPaths(r.Context()) })
	get(mux, "GET /v1/fabric/subscriptions", func(*http.Request) ([]api.FabricSubscription, error) {
		return fromKeeper(d, func(v *directory.View) []api.FabricSubscription { return each(v.Subscriptions, d.describeSubscription) })
	})
	get(mux, "GET /v1/fabric/guids", func(*http.Request) ([]api.FabricGUID, error) {
		return fromKeeper(d, func(v *directory.View) []api.FabricGUID { return each(v.GUIDs, d.describeGUID) })
	})
	get(mux, "GET /v1/fabric/groups", func(*http.Request) ([]api.FabricGroup, error) {
		return fromKeeper(d, func(v *directory.View) (all []api.FabricGroup) {
			for _, g := range v.Groups {
				all = append(all, each(g.Members, d.describeMember)...)
			}
			return all
		})
	})
	post(mux, "POST /v1/fabric/keys", func(r *http.Request, q api.FabricKeyRequest) (api.FabricKeys, error) {
		return d.rotateKeys(r.Context(), q)
	})
	post(mux, "POST /v1/fabric/partitions", func(r *http.Request, q api.FabricPartitionsRequest) (any, error) {
		return struct{}{}, d.restrictHost(r.Context(), q)
	})
	post(mux, "POST /v1/fabric/drain", func(r *http.Request, q api.FabricDrainRequest) (any, error) {
		return struct{}{}, d.drainHost(r.Context(), q)
	})
	get(mux, "GET /v1/fabric/drops", func(*http.Request) ([]api.FabricDrops, error) {
		return fromKeeper(d, func(v *directory.View) []api.FabricDrops { return each(v.Drops, d.describeDrops) })
	})
}

// each is what a function makes of the elements of a list.
func each[In, Out any](list []In, f func(In) Out) []Out {
	out := make([]Out, 0, len(list))
	for _, v := range list {
		out = append(out, f(v))
	}
	return out
}

// fromKeeper is what this host's own directory has. It fails with an *api.Error on a host that keeps none.
func fromKeeper[Out any](d *Daemon, f func(*directory.View) []Out) ([]Out, error) {
	v, ok := d.directory.View()
	if !ok {
		return nil, d.keepsNone()
	}
	return f(v), nil
}

// keepsNone refuses what only a manager knows or does.
func (d *Daemon) keepsNone() *api.Error {
	if !d.config().Fabric.Enabled() {
		return &api.Error{Code: api.CodeUnavailable, Message: directory.ErrNoFabric.Error()}
	}
	return &api.Error{Code: api.CodeUnavailable, Message: "this host keeps no directory", Fix: "run the command on a manager: `ironwarp fabric managers` lists them"}
}

func (d *Daemon) fabricStatus() api.FabricStatus {
	c := d.config()
	s := api.FabricStatus{Enabled: c.Fabric.Enabled(), Agent: c.Fabric.Agent, Problem: d.fabric.problem.Load(), Managers: []api.FabricManager{}, Insecure: d.directory.Insecure()}
	if !s.Enabled {
		return s
	}
	own, _ := c.FabricIdentity()
	s.Identity, s.GUID, s.Drained, s.MKey = own, directory.GUIDOf(own).String(), d.directory.Drained(), d.directory.Keyed()
	if settings := d.directory.Settings(); settings != nil {
		s.Conf, s.Model = settings.File, settings.SAEnhancedTrustModel
	}
	if t, keeps := d.directory.Totals(); keeps {
		s.Totals = &api.FabricTotals{Hosts: t.Hosts, Services: t.Services, Dropped: t.Dropped}
	}
	for _, m := range d.directory.Managers() {
		v := api.FabricManager{Identity: m.Identity, GUID: m.GUID.String(), Peer: m.Peer, State: api.FabricUnknown, Priority: m.Info.Priority}
		switch {
		case m.Problem != nil:
			v.State, v.Problem = api.FabricUnreachable, apiError(m.Problem)
		case m.Known && m.Info.State == mad.SMMaster:
			v.State = api.FabricMaster
		case m.Known && m.Info.State == mad.SMStandby:
			v.State = api.FabricStandby
		case m.Known:
			v.State = m.Info.State.String()
		}
		if m.Peer == "" {
			s.Manager = true
		}
		if m.Master {
			s.Master = m.Identity
		}
		s.Managers = append(s.Managers, v)
	}
	return s
}

func (d *Daemon) listServices(ctx context.Context, name string) ([]api.FabricService, error) {
	var all []directory.Service
	var err error
	if name != "" {
		all, err = d.directory.Lookup(ctx, name, 0)
	} else {
		all, err = d.directory.Services(ctx)
	}
	if err != nil {
		return nil, fabricError(err)
	}
	return each(all, d.describeService), nil
}

func (d *Daemon) describeService(s directory.Service) api.FabricService {
	own, _ := d.config().FabricIdentity()
	v := api.FabricService{Name: s.Name, Kind: s.Kind.String(), ID: fmt.Sprintf("%#016x", s.ID), Host: s.Host.String(), Peer: d.peerOfGUID(s.Host), Port: s.Port, Size: s.Size, LeaseSeconds: s.Lease, Carriers: []string{}}
	v.Usable = v.Peer != "" || s.Host == directory.GUIDOf(own)
	if s.Kind == directory.Export {
		v.Export = s.Name
	}
	for _, k := range s.Carriers {
		v.Carriers = append(v.Carriers, k.String())
	}
	return v
}

func (d *Daemon) listPaths(ctx context.Context) ([]api.FabricPath, error) {
	all, err := d.directory.Paths(ctx)
	if err != nil {
		return nil, fabricError(err)
	}
	return each(all, func(p directory.Path) api.FabricPath {
		peer := d.peerOfGUID(p.Host)
		return api.FabricPath{Host: p.Host.String(), LID: uint16(p.LID), Peer: peer, MTU: p.MTU, Router: d.directory.Routes(p.Host)}
	}), nil
}

func (d *Daemon) describeSubscription(s sa.SubscriptionView) api.FabricSubscription {
	v := api.FabricSubscription{Host: s.Owner.GUID.String(), Peer: d.peerOfGUID(s.Owner.GUID), Trap: "all", From: "all"}
	if s.Owner.VPort != 0 {
		v.VPort = s.Owner.VPort.String()
	}
	f := s.Filter
	if f.TrapNumber != mad.InformAllTraps {
		v.Trap = strconv.Itoa(int(f.TrapNumber))
		if f.Generic == 0 {
			v.Trap = string(directory.VendorEvent(f.TrapNumber))
		}
	}
	if f.LIDBegin != mad.InformAllLIDs {
		v.From = fmt.Sprintf("LID %d-%d", f.LIDBegin, max(f.LIDBegin, f.LIDEnd))
	}
	return v
}

func (d *Daemon) describeGUID(g sa.GUIDView) api.FabricGUID {
	return api.FabricGUID{Host: g.Port.String(), Peer: d.peerOfGUID(g.Port), Index: g.Index, GUID: g.GUID.String()}
}

func (d *Daemon) describeMember(m mad.MCMemberRecord) api.FabricGroup {
	return api.FabricGroup{GID: m.MGID.String(), LID: uint16(m.MLID), PKey: m.PKey, Member: m.PortGID.String(), Peer: d.peerOfGUID(m.PortGID.GUID()), State: directory.JoinText(m.JoinState)}
}

func (d *Daemon) describeDrops(x sa.DropCount) api.FabricDrops {
	return api.FabricDrops{Host: x.From.GUID.String(), Peer: d.peerOfGUID(x.From.GUID), Count: x.Total(), Last: x.Last.Request + ": " + x.Last.Reason.String(), Age: time.Since(x.Last.Time).Seconds()}
}

// rotateKeys makes new management keys, has them hold, and gives hosts' agents theirs.
func (d *Daemon) rotateKeys(ctx context.Context, q api.FabricKeyRequest) (v api.FabricKeys, err error) {
	all := []conf.KeyName{conf.MKey, conf.SMKey, conf.SAKey}
	var names []conf.KeyName
	for _, text := range q.Keys {
		if !slices.Contains(all, conf.KeyName(text)) {
			return v, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("there is no management key %q", text), Fix: "m_key, sm_key and sa_key are possible"}
		}
		names = append(names, conf.KeyName(text))
	}
	settings := d.directory.Settings()
	if _, keeps := d.directory.View(); !keeps {
		return v, d.keepsNone()
	}
	if len(names) == 0 {
		for _, name := range all {
			if _, used := settings.KeyFiles[name]; used {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return v, &api.Error{Code: api.CodeInvalid, Message: "no management key is in use", Fix: "say which to begin with: `ironwarp fabric keys rotate sa_key`"}
	}
	hosts := d.directory.Hosts()
	v.Files, err = d.directory.Rotate(names)
	if err != nil {
		return v, fabricError(err)
	}
	for _, name := range names {
		if _, used := settings.KeyFiles[name]; !used {
			v.Missed = append(v.Missed, fmt.Sprintf("%s does not hold yet: add the line `%s %s` to %s, then `ironwarp reload`", name, name, settings.KeyPath(name), d.config().FabricFile()))
		}
	}
	if _, err := d.Reload(ctx); err != nil {
		return v, err
	}
	if _, used := settings.KeyFiles[conf.MKey]; !used || !slices.Contains(names, conf.MKey) {
		return v, nil
	}
	done, missed, err := d.directory.GiveKeys(ctx, hosts)
	if err != nil {
		return v, fabricError(err)
	}
	for _, g := range done {
		v.Hosts = append(v.Hosts, d.hostName(g))
	}
	for g, err := range missed {
		v.Missed = append(v.Missed, fmt.Sprintf("%s has no new m_key: %v", d.hostName(g), err))
	}
	slices.Sort(v.Hosts)
	slices.Sort(v.Missed)
	return v, nil
}

// drainHost has a host take no new streams, or take them again.
func (d *Daemon) drainHost(ctx context.Context, q api.FabricDrainRequest) error {
	p, err := d.findPeer(q.Peer)
	if err != nil {
		return err
	}
	return fabricError(d.directory.Drain(ctx, directory.GUIDOf(p.cfg.Identity()), q.Drain))
}

// restrictHost has a host be in some of its partitions alone, as what it is in them by this host's configuration.
func (d *Daemon) restrictHost(ctx context.Context, q api.FabricPartitionsRequest) error {
	p, err := d.findPeer(q.Peer)
	if err != nil {
		return err
	}
	c, id := d.config(), p.cfg.Identity()
	keys := []uint16{}
	for _, name := range q.Partitions {
		of, ok := c.Partition(name)
		if !ok || of.Members[id] == partition.None {
			return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("this host has no partition %q of which %s is a member", name, q.Peer), Fix: "`ironwarp partition ls` lists its partitions"}
		}
	}
	for _, of := range c.Partitions {
		if m := of.Members[id]; m != partition.None && (q.All || slices.Contains(q.Partitions, of.Name)) {
			keys = append(keys, uint16(of.PKey.As(m)))
		}
	}
	return fabricError(d.directory.SetPartitions(ctx, directory.GUIDOf(id), keys))
}
