package ipsec

import (
	"bytes"
	"log/slog"
	"strconv"
	"strings"

	"github.com/strongswan/govici/vici"
)

// note tells subscribers and the log of an event.
func (m *Manager) note(e Event) {
	m.board.post(e)
	level := slog.LevelInfo
	switch e.Kind {
	case EventFailed, EventImpostor, EventFlowRefused, EventCharonDown, EventGuardRepair:
		level = slog.LevelWarn
	case EventFlowAdmitted:
		level = slog.LevelDebug
	}
	attrs := []any{"event", e.Kind}
	for _, a := range []struct{ key, value string }{{"peer", e.Peer}, {"child", e.Child}, {"reason", string(e.Reason)}, {"spi_in", e.SPIIn}, {"spi_out", e.SPIOut}, {"detail", e.Detail}} {
		if a.value != "" {
			attrs = append(attrs, a.key, a.value)
		}
	}
	if e.UniqueID != 0 {
		attrs = append(attrs, "id", e.UniqueID)
	}
	if e.Kind == EventChildDown {
		attrs = append(attrs, "bytes_in", e.BytesIn, "bytes_out", e.BytesOut)
	}
	m.cfg.Logger.Log(m.ctx, level, "IPsec", attrs...)
}

// viciEvent takes one event of charon: it is told to subscribers, and the
// peer's SAs are listed again.
func (m *Manager) viciEvent(ev vici.Event) {
	if ev.Name == "log" {
		m.charonSaid(str(ev.Message, "ikesa-name"), str(ev.Message, "msg"))
		return
	}
	up := str(ev.Message, "up") == "yes"
	for _, name := range ev.Message.Keys() {
		ike, ok := ev.Message.Get(name).(*vici.Message)
		if !ok {
			continue
		}
		p, err := m.peer(name)
		if err != nil {
			if m.concerns(ike) {
				m.seekStrangers()
			}
			continue
		}
		for _, e := range p.heard(ev, up, ike) {
			e.Peer, e.Time = name, ev.Timestamp
			m.note(e)
		}
		p.beginRefresh()
	}
}

// concerns tells whether an IKE SA of a connection that is nobody's here has
// children which overlap with a peer's link.
func (m *Manager) concerns(ike *vici.Message) bool {
	children := sub(ike, "child-sas")
	for _, key := range children.Keys() {
		for _, section := range []*vici.Message{sub(children, key), sub(sub(children, key), "new")} {
			f := foreign{child: Child{LocalTS: parseSelectors(list(section, "local-ts")), RemoteTS: parseSelectors(list(section, "remote-ts"))}}
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
	id := uint32(num(ike, "uniqueid"))
	children := sub(ike, "child-sas")
	switch ev.Name {
	case "ike-rekey":
		p.counters.IKERekeys++
		return []Event{{Kind: EventIKERekey, Reason: ReasonRekeyed, UniqueID: uint32(num(sub(ike, "new"), "uniqueid"))}}
	case "ike-updown":
		if up {
			return []Event{{Kind: EventIKEUp, UniqueID: id, Detail: "authenticated as " + strconv.Quote(str(ike, "remote-id"))}}
		}
		why := p.endings.whyIKE(id)
		for _, k := range p.endings.of(func(k knownChild) bool { return k.ike == id }) {
			out = p.childDown(out, k.ike, k.child)
		}
		return append(out, Event{Kind: EventIKEDown, UniqueID: id, Reason: why})
	}
	for _, key := range children.Keys() {
		section := sub(children, key)
		switch {
		case ev.Name == "child-rekey":
			was, is := parseChild(sub(section, "old"), "", ev.Timestamp), parseChild(sub(section, "new"), key, ev.Timestamp)
			p.endings.drop(was)
			p.endings.came(id, is)
			p.counters.Rekeys++
			out = append(out, childEvent(EventChildRekey, ReasonRekeyed, is))
		case up:
			c := parseChild(section, key, ev.Timestamp)
			p.endings.came(id, c)
			why := ReasonByPeer
			if l := p.laneNamed(c.Name); l != nil && l.trying && l.why != "" {
				why = l.why
			}
			e := childEvent(EventChildUp, why, c)
			e.Detail = c.Algorithms()
			out = append(out, e)
		default:
			out = p.childDown(out, id, parseChild(section, key, ev.Timestamp))
		}
	}
	return out
}

// childDown counts and appends the end of a child, unless it is known; p.mu is
// held.
func (p *peer) childDown(out []Event, ike uint32, c Child) []Event {
	why, news := p.endings.ended(ike, c)
	if !news {
		return out
	}
	k := &p.counters
	k.ChildDeletes++
	switch why {
	case ReasonPeer:
		k.DeletedByPeer++
	case ReasonHere, ReasonRemoved:
		k.DeletedHere++
	case ReasonExpired:
		k.Expired++
	case ReasonIdle:
		k.IdleReaps++
	}
	return append(out, childEvent(EventChildDown, why, c))
}

func childEvent(kind EventKind, why Reason, c Child) Event {
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
		e := childEvent(EventChildDown, why, k.child)
		e.Peer = p.name
		out = append(out, e)
	}
	// A new charon numbers its SAs from 1 again.
	p.endings = endings{latest: p.endings.latest}
	p.mu.Unlock()
	for _, e := range out {
		p.m.note(e)
	}
}

// doom notes why children are about to be ended here.
func (p *peer) doom(why Reason, match func(ike uint32, c Child) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endings.doom(why, match)
}

func (p *peer) doomIKE(why Reason) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range p.ikes {
		put(&p.endings.doomedIKE, id, why)
	}
}

// What charon logs of the ends of SAs.
var (
	saidChildDelete = []byte("received DELETE for ")
	saidGivingUp    = []byte("giving up after ")
)

// worthHearing picks the log lines that are followed, before they cost anything.
func worthHearing(frame []byte) bool {
	const name = "log"
	if len(frame) < 6+len(name) || frame[4] != viciEvent || string(frame[6:6+len(name)]) != name || int(frame[5]) != len(name) {
		return true
	}
	return bytes.Contains(frame, saidChildDelete) || bytes.Contains(frame, saidGivingUp)
}

// charonSaid takes a line of charon's log about a connection.
func (m *Manager) charonSaid(conn, line string) {
	p, err := m.peer(conn)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := &p.endings
	switch rest, told := strings.CutPrefix(line, string(saidChildDelete)); {
	case !told:
		if strings.HasPrefix(line, string(saidGivingUp)) {
			for _, id := range p.ikes {
				put(&e.toldIKE, id, ReasonStale)
			}
		}
	case strings.HasPrefix(rest, "IKE_SA "):
		_, id, _ := strings.Cut(strings.TrimSuffix(rest, "]"), "[")
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			put(&e.toldIKE, uint32(n), ReasonPeer)
		}
	default:
		if _, spi, ok := strings.Cut(rest, "CHILD_SA with SPI "); ok && !strings.Contains(rest, "unknown") {
			put(&e.told, spi, ReasonPeer)
		}
	}
}
