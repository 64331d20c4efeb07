package sas

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// SAs lists the child SAs of all peers. It fails where strongSwan does not answer.
func (k *Control) SAs(ctx context.Context) ([]api.SA, error) {
	list, err := k.IKESAs(ctx, "")
	if err != nil {
		return nil, err
	}
	out := []api.SA{}
	for _, s := range list {
		out = append(out, s.Children...)
	}
	return out, nil
}

// IKESAs lists the IKE SAs of a peer with their children, of all peers if its name is
// empty. It fails for an unknown peer, and where strongSwan does not answer.
func (k *Control) IKESAs(ctx context.Context, name string) ([]api.IKESA, error) {
	if name != "" {
		if _, err := k.peer(name); err != nil {
			return nil, err
		}
	}
	out := []api.IKESA{}
	m := k.Current()
	if m == nil {
		return out, nil
	}
	ctx, cancel := context.WithTimeout(ctx, ikeTime)
	defer cancel()
	list, err := m.SAs(ctx)
	if err != nil {
		return nil, sasError(err)
	}
	now := time.Now()
	for _, s := range list {
		if s.Peer = k.cfg.Owner(s.Peer); name == "" || s.Peer == name {
			out = append(out, ikeSA(s, now))
		}
	}
	return out, nil
}

// sasError explains an error about the SAs of all peers.
func sasError(err error) error {
	e := Problem("", err)
	if e.Reason != api.ReasonStrongSwan {
		return err
	}
	e.Fix = "`ironwarp doctor` says what is missing"
	return e
}

func ikeSA(s charon.SA, now time.Time) api.IKESA {
	v := api.IKESA{
		Peer: s.Peer, UniqueID: fmt.Sprint(s.UniqueID), Version: s.Version, State: s.State, Initiator: s.Initiator,
		LocalHost: s.LocalHost.String(), RemoteHost: s.RemoteHost.String(), LocalID: s.LocalID, RemoteID: s.RemoteID,
		SPIs: s.SPI[0] + " " + s.SPI[1], Algorithms: s.Algorithms(), Gateway: s.Gateway,
		RekeyInSeconds: secondsTo(s.Rekey, now), ReauthInSeconds: secondsTo(s.Reauth, now), Children: []api.SA{},
	}
	if !s.Established.IsZero() {
		v.AgeSeconds = now.Sub(s.Established).Seconds()
	}
	for _, c := range s.Children {
		v.Children = append(v.Children, api.SA{
			Peer: s.Peer, IKE: fmt.Sprintf("IKEv%d %s", s.Version, s.State), IKEID: v.UniqueID,
			Child: c.Name, ChildID: fmt.Sprint(c.UniqueID), State: c.State, Protocol: espText(c), Mode: strings.ToLower(c.Mode), Encap: c.Encap,
			SPIIn: c.SPIIn, SPIOut: c.SPIOut, Algorithms: c.Algorithms(), Encryption: c.Encryption, KeyBits: c.KeyBits, Integrity: c.Integrity,
			DHGroup: c.DHGroup, ESN: c.ESN, BytesIn: c.BytesIn, BytesOut: c.BytesOut, PacketsIn: c.PacketsIn, PacketsOut: c.PacketsOut,
			AgeSeconds: now.Sub(c.Installed).Seconds(), RekeyInSeconds: secondsTo(c.Rekey, now), ExpiresInSeconds: secondsTo(c.Expires, now),
			LocalTS: selectors(c.LocalTS), RemoteTS: selectors(c.RemoteTS), LocalID: s.LocalID, RemoteID: s.RemoteID, Streams: c.Flows, Label: printable.Text(c.Label),
		})
	}
	slices.SortFunc(v.Children, func(a, b api.SA) int {
		return cmp.Or(cmp.Compare(a.Child, b.Child), cmp.Compare(b.AgeSeconds, a.AgeSeconds), cmp.Compare(a.ChildID, b.ChildID))
	})
	return v
}

func secondsTo(t, now time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return t.Sub(now).Seconds()
}

func espText(c charon.Child) string {
	s := c.Protocol + " " + strings.ToLower(c.Mode)
	if c.Encap {
		s += " in UDP"
	}
	return s
}

func selectors(list []charon.Selector) string {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = fmt.Sprint(s)
	}
	return strings.Join(texts, " ")
}

// peer finds a peer that has SAs, for a request.
func (k *Control) peer(name string) (Peer, error) {
	p, err := k.cfg.Peer(name)
	if err != nil {
		return nil, err
	}
	if by := p.Declared().Protection; by != config.ProtectIPsec {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has no SAs: its protection is %s", name, by)}
	}
	return p, nil
}

// Order is a command about an IKE connection: about the child SAs of one name, or about all. It returns
// how many SAs it concerned.
type Order func(m *ipsec.Manager, ctx context.Context, connection, child string) (int, error)

// The orders. To delete SAs has streams pause, which go on when traffic has brought new ones
// up; after DeleteIKE the hosts authenticate each other anew. To rekey makes new keys.
var (
	Delete    Order = (*ipsec.Manager).DeleteChild
	Rekey     Order = (*ipsec.Manager).Rekey
	DeleteIKE Order = func(m *ipsec.Manager, ctx context.Context, c, _ string) (int, error) { return m.DeleteIKE(ctx, c) }
	RekeyIKE  Order = func(m *ipsec.Manager, ctx context.Context, c, _ string) (int, error) { return m.RekeyIKE(ctx, c) }
)

// Execute executes an order about a peer's SAs, of the child SAs named child only if that is not "", on
// each path. It returns how many SAs it concerned. It fails for an unknown peer, and where strongSwan
// does not answer or refuses.
func (k *Control) Execute(ctx context.Context, order Order, name, child string) (int, error) {
	p, err := k.peer(name)
	if err != nil {
		return 0, err
	}
	m, problem := k.Current(), p.Problem()
	if m == nil {
		return 0, cmp.Or(problem, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s is not set up yet", name), Fix: "try again in a moment"})
	}
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	n := 0
	var errs []error
	for _, connection := range connectionsOf(p.Declared(), child) {
		done, err := order(m, ctx, connection, child)
		n, errs = n+done, append(errs, err)
	}
	err = errors.Join(errs...)
	var refused *charon.CommandError
	if err == nil || n > 0 && errors.As(err, &refused) {
		return n, nil // one path may have no SA now
	}
	if problem := p.Problem(); problem != nil && errors.Is(err, ipsec.ErrUnknownPeer) {
		// The manager does not have it since it could not be set up.
		return n, problem
	}
	return n, orderFailed(name, err)
}

// connectionsOf are the IKE connections of a peer which an order about a child, or
// about all, concerns.
func connectionsOf(c config.Peer, child string) []string {
	names := c.IKEConnections()
	if child == "" {
		return names
	}
	of := names[0]
	for _, name := range names[1:] {
		if strings.HasPrefix(child, name+"-") && len(name) > len(of) {
			of = name // a path's name may begin with another's
		}
	}
	return []string{of}
}

// orderFailed explains an order that strongSwan or the manager refused.
func orderFailed(name string, err error) error {
	e := Problem(name, err)
	if e.Reason == "" {
		e.Code, e.Message, e.Fix = api.CodeInvalid, err.Error(), "`ironwarp sa show "+name+"` shows what there is"
	}
	return e
}

// Watch reports what happens to the SAs of a peer, or of all, until ctx or the
// daemon ends, and fails then. A reader that does not keep up misses the oldest events.
// It fails at once for an unknown peer.
func (k *Control) Watch(ctx context.Context, req api.SARequest, emit func(api.Event)) (struct{}, error) {
	if req.Peer != "" {
		if _, err := k.peer(req.Peer); err != nil {
			return struct{}{}, err
		}
	}
	var events <-chan ipsec.Event
	if m := k.Current(); m != nil { // who hears that it is watched misses nothing from then on
		var stop func()
		events, stop = m.Events()
		defer stop()
	}
	emit(api.Event{Progress: "watching"})
	if events == nil {
		// The manager exists from the first peer that needs it; a watcher may come
		// before.
		select {
		case <-k.made:
		case <-ctx.Done():
			return struct{}{}, ctx.Err()
		}
		var stop func()
		events, stop = k.Current().Events()
		defer stop()
	}
	for {
		select {
		case <-ctx.Done():
			return struct{}{}, ctx.Err()
		case ev, ok := <-events:
			if !ok {
				return struct{}{}, &api.Error{Code: api.CodeUnavailable, Message: "the daemon is ending"}
			}
			if ev.Peer = k.cfg.Owner(ev.Peer); req.Peer != "" && ev.Peer != "" && ev.Peer != req.Peer {
				continue
			}
			emit(api.Event{SA: &api.SAEvent{
				Time: ev.Time, Kind: string(ev.Kind), Peer: ev.Peer, Child: ev.Child, Reason: string(ev.Reason), Detail: ev.Detail,
				UniqueID: ev.UniqueID, SPIIn: ev.SPIIn, SPIOut: ev.SPIOut, BytesIn: ev.BytesIn, BytesOut: ev.BytesOut,
			}})
		}
	}
}

// StateOf is the state of the SAs of one address of a peer.
func (k *Control) StateOf(connection string) string {
	if m := k.Current(); m != nil {
		if st, err := m.PeerStatus(connection); err == nil {
			return State(st)
		}
	}
	return api.PeerProblem
}

// State is a state of the IPsec manager as one of a peer.
func State(st ipsec.Status) string {
	switch st.State {
	case ipsec.StateUp:
		return api.PeerUp
	case ipsec.StatePaused:
		return api.PeerPaused
	}
	return api.PeerIdle
}

// Blocked counts the packets that the kernel has blocked; nil where it blocks none, or the count is not
// known.
func (k *Control) Blocked() *api.Guard {
	if m := k.Current(); m != nil {
		if b, err := m.Blocked(); err == nil {
			return &api.Guard{BlockedIn: b.In, BlockedOut: b.Out}
		}
	}
	return nil
}

// Describe returns what the IPsec manager knows of a peer.
func Describe(st ipsec.Status) *api.IPsec {
	c, now := st.Counters, time.Now()
	v := &api.IPsec{
		Guarded: st.Guarded, StateSeconds: now.Sub(st.Since).Seconds(), ChildDeletes: c.ChildDeletes, DeletedByPeer: c.DeletedByPeer,
		DeletedHere: c.DeletedHere, Expired: c.Expired, IdleReaps: c.IdleReaps, LostByStrongSwan: c.LostByCharon, Initiations: c.Initiations,
		Reinitiations: c.Reinitiations, Failures: c.Failures, Rekeys: c.Rekeys, IKERekeys: c.IKERekeys, Refused: c.Refused,
		Refusals: api.Refused(c.Refusals), Impostors: c.Impostors, Outages: c.Outages, OutageSeconds: c.Outage.Seconds(),
		LongestOutageSeconds: c.LongestOutage.Seconds(), GuardRepairs: c.GuardRepairs, Reloads: c.Reloads, ReloadedAt: st.ReloadedAt,
	}
	if l := st.Live; l != nil {
		v.Live = &api.LiveSA{
			IKEVersion: l.IKEVersion, LocalID: l.LocalID, RemoteID: l.RemoteID, Gateway: l.Gateway, IKE: l.IKE, ESP: l.ESP,
			Mode: strings.ToLower(l.Mode), ESN: l.ESN, Encap: l.Encap, AgeSeconds: now.Sub(l.Established).Seconds(),
		}
	}
	return v
}
