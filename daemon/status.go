package daemon

import (
	"context"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/rtrs"
)

// Status describes everything.
func (d *Daemon) Status(ctx context.Context) api.Status {
	st := api.Status{
		Info: d.info(), IKE: d.sas.Component(), Listeners: d.listeners.States(), Peers: d.describePeers(),
		Streams: d.streams(), Sessions: d.sessionStates(d.local.AsRoot()), Exports: d.exports.List(), Attachments: d.disks.Describe(d.local.AsRoot()),
	}
	st.Refused, st.LastRefused, st.LastRefusedFix = d.refused.count()
	st.Guard = d.sas.Blocked()
	st.Blocks = d.blocks.All()
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
	for _, s := range d.disks.Sessions(func(by *local.Consumer, _ string) bool { return who.All || by == who.Consumer }) {
		v := api.Session{ULP: s.By.Name, Peer: s.Peer, Role: "client", State: s.State.String(), Streams: len(s.Conns), Reconnects: s.Reconnects, InFlight: s.InFlight, AgeSeconds: now.Sub(s.Since).Seconds()}
		if s.State == rtrs.Connected && isPaused(s.Conns) {
			v.State = api.PeerPaused
		}
		out = append(out, v)
	}
	if !who.All {
		return out
	}
	for _, s := range d.sessions.Sessions() {
		v := api.Session{Peer: d.peers.name(s.Peer), Role: "server", State: "connected", Streams: len(s.Conns), InFlight: s.Executing, AgeSeconds: now.Sub(s.Since).Seconds()}
		if isPaused(s.Conns) {
			v.State = api.PeerPaused
		}
		out = append(out, v)
	}
	return out
}

func isPaused(conns []rtrs.ConnInfo) bool {
	return slices.ContainsFunc(conns, func(c rtrs.ConnInfo) bool { return c.Paused })
}
