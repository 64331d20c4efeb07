package daemon

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
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// SAs lists the child SAs of all peers. It fails where strongSwan does not answer.
func (d *Daemon) SAs(ctx context.Context) ([]api.SA, error) {
	list, err := d.IKESAs(ctx, "")
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
func (d *Daemon) IKESAs(ctx context.Context, name string) ([]api.IKESA, error) {
	if name != "" {
		if _, err := d.ipsecPeer(name); err != nil {
			return nil, err
		}
	}
	out := []api.IKESA{}
	m := d.ike.current()
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
		if s.Peer = d.ownerOf(s.Peer); name == "" || s.Peer == name {
			out = append(out, ikeSA(s, now))
		}
	}
	return out, nil
}

// sasError is one about all SAs, not those of a peer.
func sasError(err error) error {
	e := ikeProblem("", err)
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
			LocalTS: selectors(c.LocalTS), RemoteTS: selectors(c.RemoteTS), LocalID: s.LocalID, RemoteID: s.RemoteID, Streams: c.Flows,
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

// ipsecPeer finds a peer that has SAs, for a request.
func (d *Daemon) ipsecPeer(name string) (*peer, error) {
	p, err := d.findPeer(name)
	if err == nil && p.cfg.Protection != config.ProtectIPsec {
		err = &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has no SAs: its protection is %s", name, p.cfg.Protection)}
	}
	return p, err
}

// ownerOf is the peer that an IKE connection is of: the manager has one for each
// address of a peer.
func (d *Daemon) ownerOf(connection string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p := d.index.connections[connection]; p != nil {
		return p.cfg.Name
	}
	return connection
}

// ikeAction runs an order about a peer's SAs: of child alone, if there is one, else
// on each path.
func (d *Daemon) ikeAction(ctx context.Context, name, child string, do func(ctx context.Context, m *ipsec.Manager, connection string) (int, error)) (int, error) {
	p, err := d.ipsecPeer(name)
	if err != nil {
		return 0, err
	}
	m := d.ike.current()
	if m == nil {
		if _, _, problem := p.state(); problem != nil {
			return 0, problem
		}
		return 0, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s is not set up yet", name), Fix: "try again in a moment"}
	}
	ctx, cancel := context.WithTimeout(ctx, orderTime)
	defer cancel()
	n := 0
	var errs []error
	for _, connection := range connectionsOf(p.cfg, child) {
		k, err := do(ctx, m, connection)
		n, errs = n+k, append(errs, err)
	}
	err = errors.Join(errs...)
	var refused *charon.CommandError
	if err == nil || n > 0 && errors.As(err, &refused) {
		return n, nil // one path may have no SA now
	}
	if _, _, problem := p.state(); problem != nil && errors.Is(err, ipsec.ErrUnknownPeer) {
		// The manager does not have it since it could not be set up.
		return n, problem
	}
	return n, orderFailed(name, err)
}

// connectionsOf are the IKE connections of a peer which an order about a child, or
// about all, concerns.
func connectionsOf(c config.Peer, child string) []string {
	names := c.PathNames()
	for _, name := range names[1:] {
		if strings.HasPrefix(child, name+"-") {
			return []string{name}
		}
	}
	if child != "" {
		return names[:1]
	}
	return names
}

// orderFailed explains an order that strongSwan or the manager refused.
func orderFailed(name string, err error) error {
	e := ikeProblem(name, err)
	if e.Reason == "" {
		e.Code, e.Message, e.Fix = api.CodeInvalid, err.Error(), "`ironwarp sa show "+name+"` shows what there is"
	}
	return e
}

// DeleteSAs deletes child SAs of a peer, all or those of one name. Streams pause and go
// on when traffic has brought new ones up. It fails as IKESAs does, and where
// strongSwan refuses.
func (d *Daemon) DeleteSAs(ctx context.Context, name, child string) (int, error) {
	return d.ikeAction(ctx, name, child, func(ctx context.Context, m *ipsec.Manager, c string) (int, error) {
		return m.DeleteChild(ctx, c, child)
	})
}

// DeleteIKE deletes the IKE SAs of a peer with their children. Streams pause until the
// hosts have authenticated each other anew. It fails as DeleteSAs does.
func (d *Daemon) DeleteIKE(ctx context.Context, name string) (int, error) {
	return d.ikeAction(ctx, name, "", func(ctx context.Context, m *ipsec.Manager, c string) (int, error) { return m.DeleteIKE(ctx, c) })
}

// RekeyIKE makes new keys for the IKE SAs of a peer. It fails as DeleteSAs does.
func (d *Daemon) RekeyIKE(ctx context.Context, name string) (int, error) {
	return d.ikeAction(ctx, name, "", func(ctx context.Context, m *ipsec.Manager, c string) (int, error) { return m.RekeyIKE(ctx, c) })
}

// RekeySAs makes new keys for the child SAs of a peer, all or those of one name. It
// fails as DeleteSAs does.
func (d *Daemon) RekeySAs(ctx context.Context, name, child string) (int, error) {
	return d.ikeAction(ctx, name, child, func(ctx context.Context, m *ipsec.Manager, c string) (int, error) { return m.Rekey(ctx, c, child) })
}

// WatchSAs reports what happens to the SAs of a peer, or of all, until ctx or the
// daemon ends, and fails then. A reader that does not keep up misses the oldest events.
// It fails at once for an unknown peer.
func (d *Daemon) WatchSAs(ctx context.Context, req api.SARequest, emit func(api.Event)) (struct{}, error) {
	if req.Peer != "" {
		if _, err := d.ipsecPeer(req.Peer); err != nil {
			return struct{}{}, err
		}
	}
	emit(api.Event{Progress: "watching"})
	// The manager exists from the first peer that needs it; a watcher may come
	// before.
	select {
	case <-d.ike.made:
	case <-ctx.Done():
		return struct{}{}, ctx.Err()
	}
	events, stop := d.ike.current().Events()
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return struct{}{}, ctx.Err()
		case ev, ok := <-events:
			if !ok {
				return struct{}{}, &api.Error{Code: api.CodeUnavailable, Message: "the daemon is ending"}
			}
			if ev.Peer = d.ownerOf(ev.Peer); req.Peer != "" && ev.Peer != "" && ev.Peer != req.Peer {
				continue
			}
			emit(api.Event{SA: &api.SAEvent{
				Time: ev.Time, Kind: string(ev.Kind), Peer: ev.Peer, Child: ev.Child, Reason: string(ev.Reason), Detail: ev.Detail,
				UniqueID: ev.UniqueID, SPIIn: ev.SPIIn, SPIOut: ev.SPIOut, BytesIn: ev.BytesIn, BytesOut: ev.BytesOut,
			}})
		}
	}
}
