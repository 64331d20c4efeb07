package sa

import (
	"bytes"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// group is a multicast group (section 15.2.5.17). It is made by its first full member and goes with its last.
type group struct {
	record  mad.MCMemberRecord // what is the group's: no PortGID, JoinState, ProxyJoin
	members map[mad.GID]*member
}

// member is one port's membership in a group.
type member struct {
	owner Requester // by whom it was asked for and against whose limit it counts
	join  uint8     // JoinState
	proxy bool      // asked for by another port
}

type groups struct {
	of      map[mad.GID]*group
	byMLID  map[mad.LID]*group
	next    mad.LID
	members int // of all
	made    uint64
}

func (g *groups) init() {
	g.of, g.byMLID = make(map[mad.GID]*group), make(map[mad.LID]*group)
	g.next = mad.FirstMulticastLID
}

// list returns the groups by MGID.
func (g *groups) list() []*group {
	list := make([]*group, 0, len(g.of))
	for _, x := range g.of {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *group) int { return bytes.Compare(a.record.MGID[:], b.record.MGID[:]) })
	return list
}

func (g *group) gids() []mad.GID {
	list := make([]mad.GID, 0, len(g.members))
	for x := range g.members {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b mad.GID) int { return bytes.Compare(a[:], b[:]) })
	return list
}

// row returns the record of a member, or of the group if m is nil.
func (g *group) row(gid mad.GID, m *member) mad.MCMemberRecord {
	r := g.record
	if m != nil {
		r.PortGID, r.JoinState, r.ProxyJoin = gid, m.join, m.proxy
	}
	return r
}

// The components that name a membership, and those that a group needs besides when it is made (section 15.2.5.17).
const (
	joinMask  = mad.MemberMaskPortGID | mad.MemberMaskJoinState
	leaveMask = joinMask | mad.MemberMaskMGID
	makeMask  = mad.MemberMaskQKey | mad.MemberMaskTClass | mad.MemberMaskPKey | mad.MemberMaskSL | mad.MemberMaskFlowLabel
)

// full are the kinds of membership that keep a group.
const full = mad.JoinFull | mad.JoinSendOnlyFull

// changeMembership has a port join a group or leave it.
func (s *Server) changeMembership(r *request) answer {
	asked, err := mad.ParseMCMemberRecord(r.Data[:mad.MCMemberRecordLen])
	if err != nil {
		return fail(mad.StatusInvalidField)
	}
	mask := r.ComponentMask
	if !mask.Has(mad.MemberMaskMGID) {
		asked.MGID = mad.GID{}
	}
	of, _ := s.portOf(asked.PortGID)
	g := s.groups.of[asked.MGID]
	var m *member
	if g != nil {
		m = g.members[asked.PortGID]
	}
	switch {
	case !mask.Has(joinMask):
		return fail(mad.StatusInsufficientComponents)
	case of == nil && !r.owns(asked.PortGID):
		return fail(mad.StatusInvalidGID)
	case asked.JoinState == 0, asked.MGID != mad.GID{} && !asked.MGID.Multicast():
		return fail(mad.StatusReqInvalid)
	case m != nil && !mayChangeMember(r.trusted || r.speaksFor(m.owner) || r.owns(asked.PortGID)):
		return fail(mad.StatusDenied)
	case r.Method == mad.MethodSet:
		return s.join(r, g, m, &asked)
	case !mask.Has(leaveMask):
		return fail(mad.StatusInsufficientComponents)
	case m == nil || m.join&asked.JoinState == 0:
		return fail(mad.StatusReqInvalid)
	}
	row := g.row(asked.PortGID, m)
	row.JoinState &= asked.JoinState
	m.join &^= asked.JoinState
	s.settle(r.now, g, asked.PortGID)
	return one(row, mad.MCMemberRecordLen)
}

// join makes a port a member of g, which is nil if there is no such group, or adds to how it is one already.
func (s *Server) join(r *request, g *group, m *member, asked *mad.MCMemberRecord) answer {
	switch {
	case g != nil && !g.suits(r.ComponentMask, asked):
		return fail(mad.StatusReqInvalid)
	case g == nil && asked.JoinState&full == 0:
		return fail(mad.StatusReqInvalid)
	case g == nil && !r.ComponentMask.Has(makeMask):
		return fail(mad.StatusInsufficientComponents)
	}
	owner := r.who
	if m != nil && (!r.owns(asked.PortGID) || r.speaksFor(m.owner)) {
		owner = m.owner
	}
	if m == nil || m.owner != owner {
		p := s.ports[owner.GUID]
		switch {
		case r.overLimit(p.has(owner.VPort).memberships, r.opts.MaxNumMCGs):
			return drop(TooManyGroups)
		case p.used.memberships >= MaxMembershipsPerPort,
			m == nil && s.groups.members >= MaxMemberships,
			g == nil && len(s.groups.of) >= MaxGroups:
			return fail(mad.StatusNoResources)
		}
	}
	if g == nil {
		g = s.makeGroup(r, *asked)
	}
	switch {
	case m == nil:
		m = &member{owner: owner}
		g.members[asked.PortGID] = m
		s.groups.members++
		s.charge(owner, 0, 1, 0)
	case m.owner != owner:
		s.charge(m.owner, 0, -1, 0)
		s.charge(owner, 0, 1, 0)
		m.owner = owner
	}
	m.join |= asked.JoinState
	if m.owner == r.who {
		m.proxy = !r.owns(asked.PortGID)
	}
	return one(g.row(asked.PortGID, m), mad.MCMemberRecordLen)
}

// suits reports whether a group is as a port that joins it wants it.
func (g *group) suits(mask mad.Mask, asked *mad.MCMemberRecord) bool {
	const exactly = mad.MemberMaskQKey | mad.MemberMaskMLID | mad.MemberMaskTClass | mad.MemberMaskPKey | mad.MemberMaskSL |
		mad.MemberMaskFlowLabel | mad.MemberMaskHopLimit | mad.MemberMaskScope
	return memberLayout.pattern(mask&exactly, asked.Append(nil)).matches(g.record.Append(nil)) && g.chosen(mask, asked)
}

// chosen reports whether MTU, rate and lifetime are as asked.
func (g *group) chosen(mask mad.Mask, asked *mad.MCMemberRecord) bool {
	return chosen(mask,
		choice{mad.MemberMaskMTUSelector, mad.MemberMaskMTU, asked.MTUSelector, asked.MTU, g.record.MTU},
		choice{mad.MemberMaskRateSelector, mad.MemberMaskRate, asked.RateSelector, asked.Rate, g.record.Rate},
		choice{mad.MemberMaskLifeTimeSelector, mad.MemberMaskLifeTime, asked.LifeTimeSelector, asked.LifeTime, g.record.LifeTime})
}

// makeGroup makes a group of what its first member has asked for, with an MLID and, if it gave none, an MGID.
func (s *Server) makeGroup(by *request, asked mad.MCMemberRecord) *group {
	mask := by.ComponentMask
	g := &group{record: asked, members: make(map[mad.GID]*member)}
	r := &g.record
	r.PortGID, r.JoinState, r.ProxyJoin = mad.GID{}, 0, false
	r.MTUSelector, r.RateSelector, r.LifeTimeSelector = mad.SelectExactly, mad.SelectExactly, mad.SelectExactly
	if !mask.Has(mad.MemberMaskMTU) || asked.MTUSelector != mad.SelectExactly {
		r.MTU = mad.MTU4096
	}
	if !mask.Has(mad.MemberMaskRate) || asked.RateSelector != mad.SelectExactly {
		r.Rate = mad.Rate100G
	}
	if !mask.Has(mad.MemberMaskLifeTime) || asked.LifeTimeSelector != mad.SelectExactly {
		r.LifeTime = pathLifeTime
	}
	if !mask.Has(mad.MemberMaskHopLimit) {
		r.HopLimit = 0
	}
	if !mask.Has(mad.MemberMaskScope) {
		r.Scope = linkLocalScope
	}
	for r.MGID == (mad.GID{}) || s.groups.of[r.MGID] != nil {
		s.groups.made++
		// A transient group (flag 1) of the signature that is the SA's to give (section 15.2.5.17).
		r.MGID = mad.MakeGID(uint64(0xff10|uint64(r.Scope))<<48|0xa01b<<32, mad.GUID(s.groups.made))
	}
	for s.groups.byMLID[s.groups.next] != nil {
		s.groups.step()
	}
	r.MLID = s.groups.next
	s.groups.step()
	s.groups.of[r.MGID], s.groups.byMLID[r.MLID] = g, g
	s.causes(by.now, by.port, s.gidNotice(mad.TrapGroupCreated, r.MGID))
	return g
}

// linkLocalScope is the scope of a group within the subnet (section 4.1.1).
const linkLocalScope = 2

// step passes on to the next MLID.
func (g *groups) step() {
	if g.next++; g.next > mad.LastMulticastLID {
		g.next = mad.FirstMulticastLID
	}
}

// settle removes a member that is none any more, and a group without full members, with those that it still has.
func (s *Server) settle(now time.Time, g *group, gid mad.GID) {
	last := s.ports[g.members[gid].owner.GUID]
	if g.members[gid].join == 0 {
		s.removeMember(g, gid)
	}
	for _, m := range g.members {
		if m.join&full != 0 {
			return
		}
	}
	for _, x := range g.gids() {
		s.removeMember(g, x)
	}
	delete(s.groups.of, g.record.MGID)
	delete(s.groups.byMLID, g.record.MLID)
	s.causes(now, last, s.gidNotice(mad.TrapGroupDeleted, g.record.MGID))
}

func (s *Server) removeMember(g *group, gid mad.GID) {
	s.charge(g.members[gid].owner, 0, -1, 0)
	delete(g.members, gid)
	s.groups.members--
}

// forgetMemberships removes those that a requester has asked for.
func (s *Server) forgetMemberships(now time.Time, who Requester) {
	p := s.ports[who.GUID]
	if p == nil || p.uses[who.VPort] == nil || p.uses[who.VPort].memberships == 0 {
		return
	}
	for _, g := range s.groups.of {
		for _, gid := range g.gids() {
			if m := g.members[gid]; m != nil && m.owner == who {
				m.join = 0
				s.settle(now, g, gid)
			}
		}
	}
}
