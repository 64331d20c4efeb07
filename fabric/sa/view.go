package sa

import (
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// PortView is a port for people.
type PortView struct {
	Port
	GID           mad.GID
	Up            bool
	Since         time.Time // up or down
	Services      int       // registered by the port and its vports, as are the next two
	Memberships   int
	Subscriptions int
	Waiting       int // reports that it has not been sent or has not answered
}

// Ports returns the known ports by LID.
func (s *Server) Ports() []PortView {
	list := make([]PortView, 0, len(s.ports))
	for _, p := range s.sortedPorts() {
		list = append(list, PortView{
			Port: p.Port, GID: p.gid, Up: p.state == portUp, Since: p.since,
			Services: p.used.services, Memberships: p.used.memberships, Subscriptions: p.used.subscriptions,
			Waiting: len(p.outbox.queue) + len(p.outbox.sent),
		})
	}
	return list
}

// ServiceView is a ServiceRecord for people, without its key.
type ServiceView struct {
	Record    mad.ServiceRecord
	Owner     Requester // by whom it was registered
	OwnerName string
	Keyed     bool // it has a ServiceKey
}

// Services returns the ServiceRecords by identifier.
func (s *Server) Services(now time.Time) []ServiceView {
	list := make([]ServiceView, 0, len(s.services.of))
	for _, v := range s.services.list() {
		list = append(list, ServiceView{v.record(now), v.owner, s.name(v.owner), v.key != mad.ServiceKey{}})
	}
	return list
}

// SubscriptionView is an event subscription for people.
type SubscriptionView struct {
	Owner     Requester
	OwnerName string
	Filter    mad.InformInfo
	Trusted   bool
	Reported  uint64 // events, sent
	Lost      uint64 // events of which the subscriber was not told
}

// Subscriptions returns the event subscriptions by requester.
func (s *Server) Subscriptions() []SubscriptionView {
	list := make([]SubscriptionView, 0, len(s.subs.of))
	for _, x := range s.subs.list() {
		list = append(list, SubscriptionView{x.owner, s.name(x.owner), mad.InformInfo(x.filter), x.trusted, x.reported, x.lost})
	}
	return list
}

// GUIDView is one GUID of a port.
type GUIDView struct {
	Port       mad.GUID
	LID        mad.LID
	Index      int // in the port's blocks of 8
	GUID       mad.GUID
	Name       string
	Configured bool // no request changes it
}

// GUIDs returns the GUIDs of the known ports by LID and index.
func (s *Server) GUIDs() (list []GUIDView) {
	for _, p := range s.sortedPorts() {
		for i, a := range p.aliases {
			if a.guid != 0 {
				list = append(list, GUIDView{p.GUID, p.LID, i, a.guid, a.name, a.base})
			}
		}
	}
	return list
}

// GroupView is a multicast group for people: its record has no PortGID and JoinState.
type GroupView struct {
	Record  mad.MCMemberRecord
	Members []mad.MCMemberRecord
}

// Groups returns the multicast groups by MGID.
func (s *Server) Groups() []GroupView {
	list := make([]GroupView, 0, len(s.groups.of))
	for _, g := range s.groups.list() {
		v := GroupView{Record: g.record}
		for _, gid := range g.gids() {
			v.Members = append(v.Members, g.row(gid, g.members[gid]))
		}
		list = append(list, v)
	}
	return list
}

// Totals is how much a directory has, for metrics.
type Totals struct {
	Hosts    int // ports that are up
	Services int
	Dropped  uint64 // requests, since New
}

// Totals counts what the directory has.
func (s *Server) Totals() Totals {
	t := Totals{Services: len(s.services.of), Dropped: s.drops.all}
	for _, p := range s.ports {
		if p.state == portUp {
			t.Hosts++
		}
	}
	return t
}
