package sa

import (
	"cmp"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// How an event reaches its subscribers: publish puts it into the outbox of each port that has a subscription to it, flush
// sends what a port's window has room for, and reportAnswered takes the answer, which makes room for the next.
//
//	publish -> queue -> flush: sent -> ReportResp
//	                           ^  |
//	                           +--+ Tick: no answer in time
//
// All that waits for a port goes when the port is down; its subscriptions stay as long as its other records do.

// report is a notice on its way to a subscription.
type report struct {
	sub    *subscription
	notice *mad.Notice
	lost   bool   // it says that others were not reported
	id     uint64 // TransactionID
	due    time.Time
	wait   time.Duration
}

// outbox is what waits for one port.
type outbox struct {
	queue []report
	sent  []report // and not answered
}

// clear forgets all.
func (b *outbox) clear() {
	for _, r := range b.queue {
		r.sub.toldLost = false
	}
	*b = outbox{}
}

// forget removes the reports of a subscription that has ended.
func (b *outbox) forget(sub *subscription) {
	of := func(r report) bool { return r.sub == sub }
	b.queue, b.sent = slices.DeleteFunc(b.queue, of), slices.DeleteFunc(b.sent, of)
}

// meter bounds what one port may cause.
type meter struct {
	left float64
	at   time.Time
}

// refill adds what the time since the last call is worth, up to burst.
func (m *meter) refill(now time.Time, burst, perSecond float64) {
	if m.at.IsZero() {
		m.left = burst
	} else {
		m.left = min(burst, m.left+perSecond*max(0, now.Sub(m.at).Seconds()))
	}
	m.at = now
}

// Announce reports an event to those who have subscribed to it: host, path and export, as the daemon learns of them. The issuer of
// a notice without one is the directory.
func (s *Server) Announce(now time.Time, n mad.Notice) []Outgoing {
	s.publish(n)
	return s.flush(now)
}

// publish queues a notice for its subscribers.
func (s *Server) publish(n mad.Notice) {
	if n.IssuerLID == 0 && n.IssuerGID == (mad.GID{}) {
		n.IssuerGID, n.IssuerLID = s.gid(s.cfg.GUID), s.ownLID()
	}
	about := s.subjects(&n)
	for _, sub := range s.subs.of {
		p := s.ports[sub.owner.GUID]
		if p == nil || p.state != portUp || !sub.wants(&n, about) {
			continue
		}
		s.enqueue(p, report{sub: sub, notice: &n})
	}
}

// enqueue has a report wait for its port. If too many do, they give way to one for each subscription that says so.
func (s *Server) enqueue(p *port, r report) {
	b := &p.outbox
	if len(b.queue) >= maxReports {
		var subs []*subscription
		for _, x := range b.queue {
			x.sub.lost++
			x.sub.toldLost = false
			if !slices.Contains(subs, x.sub) {
				subs = append(subs, x.sub)
			}
		}
		b.queue = nil
		for _, sub := range subs {
			s.enqueueLost(p, sub)
		}
	}
	b.queue = append(b.queue, r)
	s.waiting[p] = true
}

// enqueueLost has a subscriber know that it was not told of some events: it reads the records that it needs anew.
func (s *Server) enqueueLost(p *port, sub *subscription) {
	if sub.toldLost {
		return
	}
	sub.toldLost = true
	n := &mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: mad.VendorEventsLost, IssuerGID: s.gid(s.cfg.GUID), IssuerLID: s.ownLID()}
	s.enqueue(p, report{sub: sub, notice: n, lost: true})
}

// subjects returns the ports that a notice is about.
func (s *Server) subjects(n *mad.Notice) []end {
	byGID := func(gids ...mad.GID) (list []end) {
		for _, g := range gids {
			e := end{gid: g}
			if p, _ := s.portOf(g); p != nil {
				e.lid = p.LID
			}
			list = append(list, e)
		}
		return list
	}
	byLID := func(l mad.LID) []end {
		if p := s.lids[l]; p != nil {
			return []end{{p.gid, l}}
		}
		return []end{{lid: l}}
	}
	if d, err := n.GID(); err == nil {
		return byGID(d.GID)
	}
	if d, err := n.Export(); err == nil {
		return byGID(s.gid(d.Port))
	}
	if d, err := n.Path(); err == nil {
		return byGID(d.SGID, d.DGID)
	}
	if d, err := n.Capability(); err == nil {
		return byLID(d.LID)
	}
	if d, err := n.MKey(); err == nil {
		return byLID(d.LID)
	}
	if d, err := n.WrongKey(); err == nil {
		return byLID(d.LID1)
	}
	if n.IssuerLID != 0 {
		return byLID(n.IssuerLID)
	}
	return byGID(n.IssuerGID)
}

// gidNotice is the notice of a port or group that has come or gone.
func (s *Server) gidNotice(trap uint16, gid mad.GID) mad.Notice {
	n := mad.Notice{Generic: true, Type: mad.NoticeSM, ProducerType: mad.ProducerManager, TrapNumber: trap}
	mad.GIDDetails{GID: gid}.Set(&n)
	return n
}

// serviceNotice tells of a service that has come, gone or changed its size.
func (s *Server) serviceNotice(now time.Time, kind uint16, v *service) {
	n := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: kind}
	mad.ExportDetails{ServiceID: v.id, Port: v.gid.GUID(), Size: v.size}.Set(&n)
	s.causes(now, s.ports[v.owner.GUID], n)
}

// causes publishes a notice of what a port has done, unless it has done too much.
func (s *Server) causes(now time.Time, p *port, n mad.Notice) {
	if p != nil {
		p.events.refill(now, noticeBurst, noticeRate)
		if p.events.left < 1 {
			s.missed = true // by all: Tick tells them
			return
		}
		p.events.left--
	}
	s.publish(n)
}

// tellLost has all subscribers know that they have missed events, if they have.
func (s *Server) tellLost() {
	if !s.missed {
		return
	}
	s.missed = false
	for _, sub := range s.subs.of {
		if p := s.ports[sub.owner.GUID]; p != nil && p.state == portUp {
			sub.lost++
			s.enqueueLost(p, sub)
		}
	}
}

// flush sends the reports that have room in their ports' windows.
func (s *Server) flush(now time.Time) (out []Outgoing) {
	if len(s.waiting) == 0 {
		return nil
	}
	ports := make([]*port, 0, len(s.waiting))
	for p := range s.waiting {
		ports = append(ports, p)
	}
	slices.SortFunc(ports, func(a, b *port) int { return cmp.Compare(a.LID, b.LID) })
	for _, p := range ports {
		b := &p.outbox
		n := min(len(b.queue), reportWindow-len(b.sent))
		for _, r := range b.queue[:n] {
			s.reports++
			r.id, r.wait = s.reports, reportTimeout
			r.due = now.Add(r.wait)
			r.sub.reported++
			if r.lost {
				r.sub.toldLost = false
			}
			b.sent = append(b.sent, r)
			out = append(out, s.reportPacket(p, &r))
		}
		if b.queue = b.queue[n:]; len(b.queue) == 0 {
			b.queue = nil
		}
		delete(s.waiting, p) // what is left waits for answers
	}
	return out
}

// reportPacket returns the SubnAdmReport of a notice (section 13.4.9).
func (s *Server) reportPacket(p *port, r *report) Outgoing {
	sa := mad.SA{Header: mad.Header{
		Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodReport,
		TransactionID: r.id, Attribute: mad.AttrNotice,
	}}
	r.notice.Append(sa.Data[:0])
	return s.packet(p, s.gid(cmp.Or(r.sub.owner.VPort, p.GUID)), sa.MAD())
}

// packet returns a MAD that the directory sends to an address of a port.
func (s *Server) packet(p *port, to mad.GID, m mad.MAD) Outgoing {
	return Outgoing{To: p.GUID, Packet: mad.Packet{GRH: mad.GRH{SGID: s.gid(s.cfg.GUID), DGID: to, HopLimit: 1}, MAD: m}}
}

// reportAnswered takes a ReportResp.
func (s *Server) reportAnswered(r *request) []Outgoing {
	b := &r.port.outbox
	b.sent = slices.DeleteFunc(b.sent, func(x report) bool { return x.id == r.TransactionID })
	if len(b.queue) > 0 {
		s.waiting[r.port] = true
	}
	return s.flush(r.now)
}

// retryReports sends again what was not answered in time.
func (s *Server) retryReports(now time.Time) (out []Outgoing) {
	for _, p := range s.ports {
		for i := range p.outbox.sent {
			if r := &p.outbox.sent[i]; !now.Before(r.due) {
				r.wait = min(2*r.wait, maxReportTimeout)
				r.due = now.Add(r.wait)
				out = append(out, s.reportPacket(p, r))
			}
		}
	}
	return out
}
