package ipsec

import (
	"strconv"
	"strings"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/ike"
	"github.com/ironwarp/ironwarp/ipsec/lanestate"
)

// viciEvent takes one event of charon: subscribers get it, and the
// peer's SAs are listed again.
func (m *Manager) viciEvent(ev vici.Event) {
	if ev.Name == "log" {
		line := charon.Str(ev.Message, "msg")
		if strings.HasPrefix(line, ike.SaidUnloaded) {
			m.seekLosses()
		}
		m.charonSaid(charon.Str(ev.Message, "ikesa-name"), line)
		return
	}
	up := charon.Str(ev.Message, "up") == "yes"
	for _, name := range ev.Message.Keys() {
		ike, ok := ev.Message.Get(name).(*vici.Message)
		if !ok {
			continue
		}
		p, err := m.peer(name)
		if err != nil {
			if m.concerns(ike) {
				m.compareAll()
			}
			continue
		}
		p.report(p.heard(ev, up, ike))
		p.beginRefresh()
	}
}

// concerns reports whether an IKE SA of a connection that is nobody's here has
// children which overlap with a peer's link.
func (m *Manager) concerns(ike *vici.Message) bool {
	children := charon.Sub(ike, "child-sas")
	for _, key := range children.Keys() {
		for _, section := range []*vici.Message{charon.Sub(children, key), charon.Sub(charon.Sub(children, key), "new")} {
			f := impostor{child: charon.Child{LocalTS: charon.ParseSelectors(charon.List(section, "local-ts")), RemoteTS: charon.ParseSelectors(charon.List(section, "remote-ts"))}}
			for _, p := range m.allPeers() {
				for _, l := range p.lanes {
					if f.covers(l) {
						return true
					}
				}
			}
		}
	}
	return false
}

// heard turns one of charon's events about the peer into our own.
func (p *peer) heard(ev vici.Event, up bool, ike *vici.Message) (out []Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	id := uint32(charon.Num(ike, "uniqueid"))
	children := charon.Sub(ike, "child-sas")
	switch ev.Name {
	case "ike-rekey":
		p.counters.IKERekeys++
		return []Event{{Kind: EventIKERekey, Reason: ReasonRekeyed, UniqueID: uint32(charon.Num(charon.Sub(ike, "new"), "uniqueid"))}}
	case "ike-updown":
		if up {
			put(&p.came, id, true)
			return []Event{{Kind: EventIKEUp, UniqueID: id, Detail: "authenticated as " + strconv.Quote(charon.Str(ike, "remote-id"))}}
		}
		delete(p.came, id)
		for _, k := range p.endings.of(func(k knownChild) bool { return k.ike == id }) {
			p.endings.ended(ev.Timestamp, k.ike, k.child)
		}
		p.endings.open = append(p.endings.open, ending{at: ev.Timestamp, ike: id, isIKE: true})
		return p.settledLocked(ev.Timestamp)
	}
	for _, key := range children.Keys() {
		section := charon.Sub(children, key)
		switch {
		case ev.Name == "child-rekey":
			was, is := charon.ParseChild(charon.Sub(section, "old"), "", ev.Timestamp), charon.ParseChild(charon.Sub(section, "new"), key, ev.Timestamp)
			p.endings.drop(was)
			p.endings.came(id, is)
			p.counters.Rekeys++
			out = append(out, childEvent(EventChildRekey, ReasonRekeyed, is))
		case up:
			c := charon.ParseChild(section, key, ev.Timestamp)
			p.endings.came(id, c)
			why := ReasonByPeer
			if l := p.laneNamed(c.Name); l != nil && l.life.Trying() && l.life.Why() != lanestate.NoNeed {
				why = needs[l.life.Why()]
			}
			e := childEvent(EventChildUp, why, c)
			e.Detail = c.Algorithms()
			out = append(out, e)
		default:
			c := charon.ParseChild(section, key, ev.Timestamp)
			p.endings.ended(ev.Timestamp, id, c)
			if l := p.laneNamed(c.Name); l != nil {
				p.happenLocked(l, lanestate.Passed{})
			}
		}
	}
	return append(out, p.settledLocked(ev.Timestamp)...)
}

// settledLocked counts ends of SAs whose reason is known by now, returns their events, and
// sees to the others later.
func (p *peer) settledLocked(now time.Time) (out []Event) {
	ended, why := p.endings.settle(now, p.m.reasonWait)
	for i, x := range ended {
		if x.isIKE {
			out = append(out, Event{Kind: EventIKEDown, Time: x.at, UniqueID: x.ike, Reason: why[i]})
			continue
		}
		k := &p.counters
		k.ChildDeletes++
		switch why[i] {
		case ReasonPeer:
			k.DeletedByPeer++
		case ReasonHere, ReasonRemoved:
			k.DeletedHere++
		case ReasonExpired:
			k.Expired++
		case ReasonIdle:
			k.IdleReaps++
		}
		e := childEvent(EventChildDown, why[i], x.child)
		e.Time = x.at
		out = append(out, e)
	}
	if len(p.endings.open) > 0 && !p.settling {
		p.settling = p.m.goWork(p.settleLater)
	}
	return out
}

// settleLater reports the ends whose reason does not come.
func (p *peer) settleLater() {
	for more := true; more; {
		sleep(p.m.ctx, p.m.reasonWait)
		p.mu.Lock()
		events := p.settledLocked(time.Now())
		more = len(p.endings.open) > 0 && p.m.ctx.Err() == nil
		p.settling = more
		p.mu.Unlock()
		p.report(events)
	}
}

func (p *peer) report(events []Event) {
	for _, e := range events {
		e.Peer = p.name
		p.m.note(e)
	}
}

func childEvent(kind EventKind, why Reason, c charon.Child) Event {
	return Event{Kind: kind, Child: c.Name, Reason: why, UniqueID: c.UniqueID, SPIIn: c.SPIIn, SPIOut: c.SPIOut, BytesIn: c.BytesIn, BytesOut: c.BytesOut}
}

// allDown reports the end of every child, as when charon is gone; p.mu is not
// held.
func (p *peer) allDown(why Reason) {
	p.mu.Lock()
	var out []Event
	for _, k := range p.endings.known {
		put(&p.endings.latest, k.child.Name, why)
		if why == ReasonCharon {
			p.counters.LostByCharon++
		}
		out = append(out, childEvent(EventChildDown, why, k.child))
	}
	// A new charon numbers its SAs from 1 again.
	out = append(p.settledLocked(time.Now().Add(p.m.reasonWait)), out...)
	p.endings = endings{latest: p.endings.latest}
	p.mu.Unlock()
	p.report(out)
}

// expectEnd notes why children are about to be ended here.
func (p *peer) expectEnd(why Reason, match func(ike uint32, c charon.Child) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endings.expect(why, match)
}

func (p *peer) expectEndOfIKE(why Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.ikes {
		put(&p.endings.expectedIKE, id, why)
	}
}

// charonSaid takes a line of charon's log about a connection.
func (m *Manager) charonSaid(conn, line string) {
	p, err := m.peer(conn)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.endings.said(line, p.ikes)
	events := p.settledLocked(time.Now())
	p.mu.Unlock()
	p.report(events)
	if strings.HasPrefix(line, ike.SaidUnknownDelete) || line == ike.SaidIgnoredDelete { // the child may be listed already
		p.beginRefresh()
	}
}

// said takes a line of charon's log about a connection that has these IKE SAs.
func (e *endings) said(line string, ikes []uint32) {
	switch rest, told := strings.CutPrefix(line, ike.SaidChildDelete); {
	case !told:
		if strings.HasPrefix(line, ike.SaidGivingUp) {
			for _, id := range ikes {
				put(&e.loggedIKE, id, ReasonStale)
			}
		}
	case strings.HasPrefix(rest, "IKE_SA "):
		_, id, _ := strings.Cut(strings.TrimSuffix(rest, "]"), "[")
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			put(&e.loggedIKE, uint32(n), ReasonPeer)
		}
	default:
		if _, spi, ok := strings.Cut(rest, "CHILD_SA with SPI "); ok {
			e.deletes++
			put(&e.logged, spi, e.deletes)
		}
	}
}
