package daemon

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/rtrs"
)

// Status describes everything.
func (d *Daemon) Status(ctx context.Context) api.Status {
	st := api.Status{
		Info: d.info(), IKE: d.sas.Component(), Listeners: d.listeners.States(), Peers: d.describePeers(),
		Streams: d.streams(), Sessions: d.sessionStates(d.local.AsRoot()), Exports: d.exports.List(), Pools: d.volumes.States(), Targets: d.targets.List(), NVMe: d.subsystems.List(), Portals: append(d.targets.States(), d.subsystems.States()...), TargetSessions: d.targets.Sessions(), Attachments: d.disks.Describe(d.local.AsRoot()),
	}
	if len(d.config().Partitions) > 0 {
		st.Partitions, st.Permissive = d.describePartitions(), d.permissive()
	}
	st.Refused, st.LastRefused, st.LastRefusedFix = d.refused.summary()
	st.Guard = d.sas.Blocked()
	st.Blocks = d.blocks.All()
	st.Captures = d.describeCaptures()
	if fabric := d.fabricStatus(); fabric.Enabled {
		st.Fabric = &fabric
		if fabric.Problem != nil {
			st.Unusable = append(st.Unusable, fabric.Problem)
		}
	}
	for _, u := range d.config().ULPs {
		if e := ulpProblem(u); e != nil {
			st.Unusable = append(st.Unusable, e)
		}
	}
	var err error
	if st.SAs, err = d.sas.SAs(ctx); err != nil {
		st.SAs = []api.SA{}
		if st.IKE != nil && st.IKE.Problem == nil {
			st.IKE.State, st.IKE.Problem = api.PeerProblem, apiError(err)
		}
	}
	return st
}

// sessionStates lists the block sessions that a caller may see, ours first.
func (d *Daemon) sessionStates(who local.Caller) []api.Session {
	now := time.Now()
	out := []api.Session{}
	for _, s := range d.disks.Sessions(func(by *local.Consumer, _ string) bool { return who.Privileged || by == who.Consumer }) {
		v := api.Session{ULP: s.By.Name, Peer: s.Peer, Role: "client", State: s.State.String(), Streams: len(s.Conns), Reconnects: s.Reconnects, InFlight: s.InFlight, AgeSeconds: now.Sub(s.Since).Seconds()}
		if s.IsPaused() {
			v.State = api.PeerPaused
		}
		if s.Failing {
			v.State = api.SessionFailing
		}
		v.Policy, v.FailAfterSeconds, v.ReconnectAttempts = s.Policy.String(), s.NoPath.After.Seconds(), s.Attempts
		v.NoPath, _ = config.NoPathWords(s.NoPath)
		var versions []rtrs.Protocol
		for _, t := range s.Paths {
			v.Paths, versions = append(v.Paths, pathState(s.Peer, t, now)), append(versions, t.Version)
		}
		v.RTRS, v.RNBD = lowestVersion(versions), s.RNBD.String()
		out = append(out, v)
	}
	if !who.Privileged {
		return out
	}
	for _, s := range d.sessions.Sessions() {
		v := api.Session{Peer: d.peers.nameOrIdentity(s.Peer), Role: "server", State: "connected", Streams: len(s.Conns), InFlight: s.Executing, AgeSeconds: now.Sub(s.Since).Seconds()}
		if isPaused(s.Conns) {
			v.State = api.PeerPaused
		}
		var versions []rtrs.Protocol
		for _, t := range s.Paths {
			v.OpenChunks, versions = v.OpenChunks || t.Open, append(versions, t.Version)
		}
		v.RTRS = lowestVersion(versions)
		out = append(out, v)
	}
	return out
}

// lowestVersion is the lowest version of paths, "" if none is up.
func lowestVersion(versions []rtrs.Protocol) string {
	versions = slices.DeleteFunc(versions, func(v rtrs.Protocol) bool { return v == 0 })
	if len(versions) == 0 {
		return ""
	}
	return slices.Min(versions).String()
}

// pathState describes a path of a session.
func pathState(peer string, t rtrs.PathInfo, now time.Time) api.SessionPath {
	v := api.SessionPath{Name: t.Name, Address: t.Remote.String(), State: t.State.String(), Paused: isPaused(t.Conns), Avoided: t.Avoided, AgeSeconds: now.Sub(t.Since).Seconds(),
		Streams: len(t.Conns), InFlight: t.InFlight, LatencySeconds: t.Latency.Seconds(), Reconnects: t.Reconnects, Failures: t.Failures, Failovers: t.Moved, Replays: t.Replays,
		Reads: t.Stats.Reads, Writes: t.Stats.Writes, ReadBytes: t.Stats.ReadBytes, WriteBytes: t.Stats.WriteBytes}
	for _, c := range t.Conns {
		v.LocalAddress, v.Transport = c.Flow.Local.Addr().String(), carrier.KindOf(c.Flow).String()
	}
	if t.LastError != nil && t.State != rtrs.PathConnected {
		v.Problem = apiError(t.LastError)
	}
	if t.State == rtrs.PathGivenUp && v.Problem != nil {
		v.Problem = &api.Error{Code: v.Problem.Code, Message: fmt.Sprintf("given up after %d attempts: %s", t.Tries, v.Problem.Message),
			Fix: fmt.Sprintf("when the cause is mended: `ironwarp path reconnect %s %s`", peer, t.Name)}
	}
	return v
}

// isPaused reports whether a stream waits for its SA.
func isPaused(conns []rtrs.ConnInfo) bool {
	return slices.ContainsFunc(conns, func(c rtrs.ConnInfo) bool { return c.Paused })
}
