package ipsec

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// impostor is an installed child that covers flows of a peer and is not the
// peer's: IKE has authenticated somebody else, or its ESP ends elsewhere (RFC
// 5042 5.4.5). A stream does not go on under it: it is paused, the child is
// ended, and the peer has to come back as itself.
type impostor struct {
	conn     string // its connection in charon
	ike      uint32
	host     netip.Addr // where its ESP ends
	remoteID string
	child    charon.Child
}

func newImpostor(sa *charon.SA, c charon.Child) impostor {
	return impostor{conn: sa.Peer, ike: sa.UniqueID, host: sa.RemoteHost, remoteID: sa.RemoteID, child: c}
}

func (f impostor) covers(l *lane) bool {
	return charon.Overlap(f.child.LocalTS, l.Local) && charon.Overlap(f.child.RemoteTS, l.Remote)
}

func (f impostor) String() string {
	return fmt.Sprintf("child %s of connection %s, whose peer at %v is %q", f.child.Name, f.conn, f.host, f.remoteID)
}

// compareAll has all SAs listed and compared with the peers' links. Calls that
// come faster share.
func (m *Manager) compareAll() { m.comparisons.join() }

func (m *Manager) readAndCompare() (struct{}, error) {
	all, err := m.listAll(m.ctx)
	if err != nil {
		return struct{}{}, err
	}
	plane := m.DaemonStatus().DataPlane
	for _, p := range m.allPeers() {
		p.compare(all, plane)
	}
	return struct{}{}, nil
}

// compare takes over from a list of all SAs what concerns the peer.
func (p *peer) compare(all []charon.SA, plane esp.Plane) {
	var found []impostor
	var own []uint32
	p.mu.Lock()
	for i := range all {
		sa := &all[i]
		for _, c := range sa.Children {
			switch {
			case !c.IsInstalled():
			case sa.Peer == p.name:
				own = append(own, c.UniqueID)
			case plane.Offers().HoldsSAs && sa.RemoteHost != p.cfg.Remote:
				// The guard's policies come before those of a tunnel to elsewhere.
			default:
				f := newImpostor(sa, c)
				if slices.ContainsFunc(p.lanes, f.covers) {
					found = append(found, f)
				}
			}
		}
	}
	stale := !sameImpostors(found, p.ofOthers)
	p.ofOthers = found
	var have []uint32
	for _, sa := range p.live {
		for _, c := range sa.Children {
			if c.IsInstalled() {
				have = append(have, c.UniqueID)
			}
		}
	}
	p.mu.Unlock()
	slices.Sort(own)
	slices.Sort(have)
	if stale || !slices.Equal(own, have) {
		p.beginRefresh()
	}
}

func sameImpostors(a, b []impostor) bool {
	return slices.EqualFunc(a, b, func(x, y impostor) bool { return x.ike == y.ike && x.child.UniqueID == y.child.UniqueID })
}

// impostorEventsLocked returns an event for each impostor that the lane had not before.
func (p *peer) impostorEventsLocked(l *lane, now []impostor) (events []Event) {
	for _, f := range now {
		if !slices.ContainsFunc(l.impostors, func(o impostor) bool { return o.child.UniqueID == f.child.UniqueID }) {
			events = append(events, Event{Kind: EventImpostor, Peer: p.name, Child: l.Name, Reason: ReasonIdentity, UniqueID: f.child.UniqueID,
				SPIIn: f.child.SPIIn, SPIOut: f.child.SPIOut, Detail: f.String() + " covers the peer's streams; the peer is " + p.cfg.RemoteID})
		}
	}
	return events
}

// evict ends the impostors of a lane. At the peer's own address the whole
// IKE SA goes, without waiting for an answer that an impostor need not give.
func (p *peer) evict(ctx context.Context, l *ike.Session, ln *lane) {
	p.mu.Lock()
	all, cfg := slices.Clone(ln.impostors), p.cfg
	p.counters.Impostors += uint64(len(all))
	p.mu.Unlock()
	for _, f := range all {
		which, force := charon.Section("child-id", charon.Uint(f.child.UniqueID)), false
		if f.host == cfg.Remote || f.conn == cfg.Name {
			which, force = charon.Section("ike-id", charon.Uint(f.ike)), true
		}
		p.expectEnd(ReasonIdentity, func(_ uint32, c charon.Child) bool { return c.UniqueID == f.child.UniqueID })
		_, err := l.Terminate(ctx, f.conn, which, force)
		if f.conn == cfg.Name && err == nil {
			err = l.Load(ctx, &cfg) // somebody has changed the connection
		}
		if err != nil && ctx.Err() == nil {
			p.m.note(Event{Kind: EventFailed, Peer: p.name, Child: ln.Name, Reason: ReasonIdentity, Detail: "could not end " + f.String() + ": " + err.Error()})
		}
	}
	p.m.compareAll()
	_ = p.refresh(ctx)
}

// impostorErrorLocked says which impostor stands in a lane's way.
func (p *peer) impostorErrorLocked(l *lane) error {
	kind := pad.ErrWrongIdentity
	f := l.impostors[0]
	if auth.SameIdentity(f.remoteID, p.cfg.RemoteID) {
		kind = pad.ErrGateway
	}
	return fmt.Errorf("the IPsec SA with peer %s: %w: %v covers its flows; narrow its traffic selectors, or end it", p.name, kind, f)
}

// kindOf returns which of these errors err wraps.
func kindOf(err error, kinds ...error) error {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return k
		}
	}
	return nil
}
