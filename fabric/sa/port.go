package sa

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/printable"
)

// Port is a host, by the GUID of its authenticated identity.
type Port struct {
	GUID   mad.GUID
	LID    mad.LID // 0: the server chooses one, the same each time
	Name   string
	VPorts []VPort // of its alias GUIDs, those that the configuration gives it
	Router bool    // a relay: it may pass on requests of ports that it has behind it
}

// VPort is a part of a host that is a requester of its own, such as a local user.
type VPort struct {
	GUID mad.GUID
	Name string
}

// The reasons for which PortUp refuses a port.
var (
	ErrPort      = errors.New("sa: not a port")
	ErrPortLimit = errors.New("sa: too many ports")
)

// A port is up while its host has a stream with the manager. One that is down keeps its records, its LID and its place for a
// while (deadAfter), so that a reconnect neither loses nor gains anything.
//
//	           PortUp                PortDown
//	unknown ------------->  up  ------------------> lost
//	   ^                     ^                       |  |
//	   |                     +-------- PortUp -------+  |
//	   +------------------- deadAfter ------------------+
type port struct {
	Port
	gid   mad.GID
	state portState
	since time.Time // in this state

	aliases   [MaxAliases]alias // its GUIDInfo blocks; 0 is the port's own GUID
	used      use               // by the port and its vports
	uses      map[mad.GUID]*use // by each of them; 0 is the physical port
	outbox    outbox
	transfers []*transfer // answers under way
	events    meter       // that it causes
	searches  meter       // that it asks for
	lines     meter       // about what was dropped of it
}

type portState uint8

const (
	portUp portState = iota
	portLost
)

type alias struct {
	guid mad.GUID
	name string
	base bool      // by configuration: no request changes it
	by   Requester // who has asked for it, otherwise
}

// use is what one requester has registered.
type use struct{ services, memberships, subscriptions int }

// PortUp declares that a host has a stream with the manager, and returns its LID and the reports that others get. It is also
// called when the port's vports have changed. It fails with ErrPort for a port that can't be (GUID 0 or another's, a LID that is
// multicast or another's), and with ErrPortLimit when there are MaxPorts.
func (s *Server) PortUp(now time.Time, p Port) (mad.LID, []Outgoing, error) {
	known := s.ports[p.GUID]
	if err := s.checkPort(p, known); err != nil {
		return 0, nil, err
	}
	if known == nil {
		if len(s.ports) >= MaxPorts {
			return 0, nil, fmt.Errorf("port %s (%s): %d are known: %w", p.GUID, p.Name, len(s.ports), ErrPortLimit)
		}
		s.evictRange(now, p.GUID)
		if p.LID == 0 {
			p.LID = s.freeLID(p.GUID)
		}
		s.ranges[rangeOf(p.GUID)]++
		known = &port{gid: s.gid(p.GUID), state: portLost, uses: make(map[mad.GUID]*use)}
		s.ports[p.GUID] = known
	} else if p.LID == 0 {
		p.LID = known.LID
	}
	if known.LID != p.LID {
		delete(s.lids, known.LID)
		s.lids[p.LID] = known
	}
	s.lidOf[p.GUID] = p.LID
	p.Name = printable.Text(p.Name)
	known.Port = p
	s.setAliases(now, known, p.VPorts)
	if known.state != portUp {
		known.state, known.since = portUp, now
		s.causes(now, known, s.gidNotice(mad.TrapGIDInService, known.gid))
	}
	return p.LID, s.flush(now), nil
}

func (s *Server) checkPort(p Port, known *port) error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("port %s (%s): %s: %w", p.GUID, printable.Text(p.Name), fmt.Sprintf(format, args...), ErrPort)
	}
	switch of := s.lids[p.LID]; {
	case p.GUID == 0:
		return refuse("0 is no GUID")
	case p.LID != 0 && !p.LID.Unicast():
		return refuse("LID %#04x is not one of a port", uint16(p.LID))
	case of != nil && of != known:
		return refuse("LID %#04x is that of %s", uint16(p.LID), of.GUID)
	case len(p.VPorts) >= MaxAliases:
		return refuse("it has %d vports, and may have %d", len(p.VPorts), MaxAliases-1)
	}
	for i, v := range p.VPorts {
		switch of := s.aliases[v.GUID]; {
		case slices.ContainsFunc(p.VPorts[:i], func(w VPort) bool { return w.GUID == v.GUID }):
			return refuse("vport %s is there twice", v.GUID)
		case v.GUID == 0 || v.GUID == p.GUID:
			return refuse("%s is no alias GUID", v.GUID)
		case s.ports[v.GUID] != nil || of != nil && of.GUID != p.GUID && of.aliases[of.place(v.GUID)].base:
			return refuse("vport %s is known elsewhere", v.GUID)
		}
	}
	return nil
}

// setAliases puts the configured vports into the port's blocks, beside those that it has asked for itself.
func (s *Server) setAliases(now time.Time, p *port, vports []VPort) {
	for i := range p.aliases {
		a := &p.aliases[i]
		if a.base && !slices.ContainsFunc(vports, func(v VPort) bool { return v.GUID == a.guid }) {
			s.dropAlias(now, p, i)
		}
	}
	p.aliases[0] = alias{guid: p.GUID, name: p.Name, base: true}
	for _, v := range vports {
		if of := s.aliases[v.GUID]; of != p {
			s.evict(now, v.GUID) // another port had asked for it
		}
		at := p.place(v.GUID)
		if at < 0 {
			at = p.place(0)
		}
		if at < 0 { // the port itself has asked for the rest
			at = slices.IndexFunc(p.aliases[:], func(a alias) bool { return !a.base })
			s.dropAlias(now, p, at)
		}
		p.aliases[at] = alias{guid: v.GUID, name: printable.Text(v.Name), base: true}
		s.aliases[v.GUID] = p
	}
}

// place returns where in the port's blocks a GUID is, or -1.
func (p *port) place(guid mad.GUID) int {
	return slices.IndexFunc(p.aliases[:], func(a alias) bool { return a.guid == guid })
}

// dropAlias takes an alias GUID away, with all that its vport has registered.
func (s *Server) dropAlias(now time.Time, p *port, at int) {
	guid := p.aliases[at].guid
	p.aliases[at] = alias{}
	if guid == 0 || guid == p.GUID {
		return
	}
	delete(s.aliases, guid)
	s.forget(now, Requester{p.GUID, guid})
	s.forgetAbout(now, s.gid(guid))
}

// evict takes a GUID from the port that has it as an alias.
func (s *Server) evict(now time.Time, guid mad.GUID) {
	if p := s.aliases[guid]; p != nil {
		s.dropAlias(now, p, p.place(guid))
	}
}

// evictRange takes the GUIDs of a host that has come from others that have asked for them.
func (s *Server) evictRange(now time.Time, guid mad.GUID) {
	s.evict(now, guid)
	if s.ranges[rangeOf(guid)] > 0 {
		return // nobody else can have one
	}
	for g, p := range s.aliases {
		at := p.place(g)
		if rangeOf(g) == rangeOf(guid) && !p.aliases[at].base {
			s.dropAlias(now, p, at)
		}
	}
}

// freeLID returns the LID that the port had before, if it is still free, or the one that was free for longest.
func (s *Server) freeLID(guid mad.GUID) mad.LID {
	if l := s.lidOf[guid]; l != 0 && s.lids[l] == nil {
		return l
	}
	if len(s.lidOf) > 4*MaxPorts {
		clear(s.lidOf)
		for l, p := range s.lids {
			s.lidOf[p.GUID] = l
		}
	}
	for {
		s.nextLID++
		if !s.nextLID.Unicast() {
			s.nextLID = 1
		}
		if s.lids[s.nextLID] == nil {
			return s.nextLID
		}
	}
}

// PortDown declares that a host has no stream any more, and returns the reports that others get. What it has registered goes
// when it has been down for 30 seconds.
func (s *Server) PortDown(now time.Time, guid mad.GUID) []Outgoing {
	p := s.ports[guid]
	if p == nil || p.state != portUp {
		return nil
	}
	p.state, p.since = portLost, now
	p.outbox.clear()
	s.endTransfers(p)
	if !keepsCount() {
		p.used, p.uses = use{}, make(map[mad.GUID]*use)
	}
	s.causes(now, p, s.gidNotice(mad.TrapGIDOutOfService, p.gid))
	return s.flush(now)
}

// bury forgets the ports that have been down for too long, and what they had registered.
func (s *Server) bury(now time.Time) {
	for guid, p := range s.ports {
		if p.state != portLost || !isOver(p.since.Add(deadAfter).Sub(now)) {
			continue
		}
		for i := range p.aliases {
			s.dropAlias(now, p, i)
		}
		for vport := range p.uses {
			s.forget(now, Requester{guid, vport})
		}
		s.forgetAbout(now, p.gid)
		if s.ranges[rangeOf(guid)]--; s.ranges[rangeOf(guid)] == 0 {
			delete(s.ranges, rangeOf(guid))
		}
		delete(s.lids, p.LID)
		delete(s.ports, guid)
	}
}

// forget removes what a requester has registered.
func (s *Server) forget(now time.Time, who Requester) {
	s.forgetServices(now, who)
	s.forgetMemberships(now, who)
	s.forgetSubscriptions(who)
}

// has returns the count of what a requester has registered.
func (p *port) has(vport mad.GUID) *use {
	u := p.uses[vport]
	if u == nil {
		u = &use{}
		p.uses[vport] = u
	}
	return u
}

// forgetAbout removes what others have registered for an address that is gone.
func (s *Server) forgetAbout(now time.Time, gid mad.GID) {
	for _, v := range s.services.of {
		if v.gid == gid {
			s.removeService(now, v)
		}
	}
	for _, g := range s.groups.of {
		if m := g.members[gid]; m != nil {
			m.join = 0
			s.settle(now, g, gid)
		}
	}
}

// charge adds to what a requester has registered, and to what its port has.
func (s *Server) charge(who Requester, services, memberships, subscriptions int) {
	p := s.ports[who.GUID]
	if p == nil {
		return
	}
	u := p.has(who.VPort)
	for _, u := range []*use{u, &p.used} {
		u.services += services
		u.memberships += memberships
		u.subscriptions += subscriptions
	}
	if *u == (use{}) {
		delete(p.uses, who.VPort)
	}
}

// name returns the name of a requester.
func (s *Server) name(who Requester) string {
	p := s.ports[who.GUID]
	switch {
	case p == nil:
		return ""
	case who.VPort == 0:
		return p.Name
	}
	for _, a := range p.aliases {
		if a.guid == who.VPort {
			return cmp.Or(a.name, p.Name+"/"+a.guid.String())
		}
	}
	return p.Name
}

// gid returns the GID of a GUID.
func (s *Server) gid(guid mad.GUID) mad.GID { return mad.MakeGID(s.cfg.Prefix, guid) }

// portOf returns the port that has a GID, as its own or as a vport's, and that vport.
func (s *Server) portOf(g mad.GID) (p *port, vport mad.GUID) {
	if g.Prefix() != s.cfg.Prefix {
		return nil, 0
	}
	guid := g.GUID()
	if p := s.ports[guid]; p != nil {
		return p, 0
	}
	if p := s.aliases[guid]; p != nil {
		return p, guid
	}
	return nil, 0
}

// sortedPorts returns the ports by LID.
func (s *Server) sortedPorts() []*port {
	list := make([]*port, 0, len(s.ports))
	for _, p := range s.ports {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *port) int { return cmp.Compare(a.LID, b.LID) })
	return list
}
