package sa

import (
	"fmt"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Server is a subnet administrator without I/O and clock: who drives it passes requests, events and the time, and sends what it
// returns. It is not safe for concurrent use.
type Server struct {
	cfg Config

	ports   map[mad.GUID]*port
	aliases map[mad.GUID]*port // by alias GUID
	ranges  map[mad.GUID]int   // how many ports are in a range of GUIDs
	lids    map[mad.LID]*port
	lidOf   map[mad.GUID]mad.LID // also of ports that are not known any more
	nextLID mad.LID

	services services
	groups   groups
	subs     subscriptions

	drops   dropLog
	waiting map[*port]bool // ports with reports that may have room
	reports uint64         // sent
	missed  bool           // some port has caused more events than are reported

	transferBytes int          // of all answers under way
	lastTable     *sharedTable // the last long one
	lastTableID   tableID
}

// New returns a directory without ports.
func New(cfg Config) *Server {
	if cfg.Prefix == 0 {
		cfg.Prefix = mad.LinkLocalPrefix
	}
	s := &Server{
		cfg:     cfg,
		ports:   make(map[mad.GUID]*port),
		aliases: make(map[mad.GUID]*port),
		ranges:  make(map[mad.GUID]int),
		lids:    make(map[mad.LID]*port),
		lidOf:   make(map[mad.GUID]mad.LID),
		waiting: make(map[*port]bool),
		drops:   dropLog{of: make(map[Requester]*dropper)},
	}
	s.services.init()
	s.groups.init()
	s.subs.init()
	return s
}

// Configure replaces the options, the SA_Key and the priority, as when fabric.conf is read anew. What is registered stays, also where it is more than
// a new limit. Another SA_Key ends the trust in those who had the old one: their subscriptions see nothing of security until they renew them by
// the new one.
func (s *Server) Configure(o Options, key mad.Key, priority uint8) {
	if !key.Equal(s.cfg.Key) {
		s.distrust()
	}
	s.cfg.Options, s.cfg.Key, s.cfg.Priority = o, key, priority
}

// request is one MAD of a requester, as it was authenticated and understood.
type request struct {
	mad.SA
	now     time.Time
	who     Requester
	port    *port
	grh     mad.GRH
	own     []mad.GID // the requester's addresses
	trusted bool
	opts    Options
}

// String says what is asked: "Set ServiceRecord".
func (r *request) String() string {
	return r.Method.String() + " " + r.Attribute.Name(mad.ClassSubnAdm)
}

// An answer is what a request gets: a status, and records.
type answer struct {
	status  mad.Status
	records []byte // rows
	length  int    // of one record
	drop    Reason // 0: it is answered
}

func fail(status mad.Status) answer { return answer{status: status} }
func drop(why Reason) answer        { return answer{drop: why} }

// one is an answer of one record.
func one(r mad.Record, length int) answer {
	return answer{records: r.Append(nil), length: length}
}

// Handle takes a packet that a port has sent, and returns what is to be sent to it and others. A request that is dropped has no
// answer. How a request goes:
//
//	port known? -> a request of SubnAdm? -> SGID its own? -> SA_Key 0 or right? -> in the untrusted's set? -> its record
func (s *Server) Handle(now time.Time, from Requester, packet mad.Packet) []Outgoing {
	p := s.ports[from.GUID]
	if p == nil || p.state != portUp {
		s.drop(now, from, "MAD", UnknownPort)
		return nil
	}
	r := &request{now: now, who: from, port: p, grh: packet.GRH, opts: s.cfg.Options}
	var err error
	if r.SA, err = mad.ParseSA(&packet.MAD); err != nil {
		s.drop(now, from, "MAD", BadMAD)
		return nil
	}
	spoofed := s.identify(r)
	switch {
	case spoofed:
		s.drop(now, r.who, r.String(), SpoofedSGID)
		return nil
	case r.RMPP.Active() && r.RMPP.Type != mad.RMPPData:
		return s.transferEvent(r)
	case r.Method == mad.MethodReportResp:
		return s.reportAnswered(r)
	case r.Method.Response():
		s.drop(now, r.who, r.String(), BadMAD)
		return nil
	}
	if isForged(r.Key, s.cfg.Key) {
		s.drop(now, r.who, r.String(), WrongKey)
		return nil
	}
	r.trusted = isTrusted(r.Key, s.cfg.Key)
	if why := r.refusal(); why != 0 {
		s.drop(now, r.who, r.String(), why)
		return nil
	}
	s.expire(now)
	a := s.serve(r)
	if a.drop != 0 {
		s.drop(now, r.who, r.String(), a.drop)
		return s.flush(now)
	}
	return append(s.send(r, a), s.flush(now)...)
}

// serve carries a request out.
func (s *Server) serve(r *request) answer {
	if r.ClassVersion != mad.SAClassVersion {
		return fail(mad.StatusBadVersion)
	}
	switch r.Method {
	case mad.MethodGet, mad.MethodGetTable:
		return s.query(r)
	case mad.MethodSet, mad.MethodDelete:
		switch r.Attribute {
		case mad.AttrServiceRecord:
			return s.changeService(r)
		case mad.AttrMCMemberRecord:
			return s.changeMembership(r)
		case mad.AttrGUIDInfoRecord:
			return s.changeGUIDs(r)
		case mad.AttrInformInfo:
			if r.Method == mad.MethodSet {
				return s.subscribe(r)
			}
		}
		return fail(mad.StatusUnsupportedAttribute)
	}
	return fail(mad.StatusUnsupportedMethod)
}

// drop records that a request got no answer.
func (s *Server) drop(now time.Time, who Requester, what string, why Reason) {
	d := Drop{Time: now, From: who, Name: s.name(who), Request: what, Reason: why}
	number, log := s.drops.note(now, d)
	if !log || !s.mayHaveLine(now, who.GUID) {
		return
	}
	d.Number = number
	if s.cfg.Log != nil {
		s.cfg.Log(d)
	}
	if s.cfg.Activity != nil && why.isActivity() {
		s.cfg.Activity(d)
	}
}

// mayHaveLine reports whether one more drop of a port and its vports is worth a line: each vport has rows of its own, and a port can have
// ever new ones.
func (s *Server) mayHaveLine(now time.Time, port mad.GUID) bool {
	p := s.ports[port]
	if p == nil {
		return true
	}
	p.lines.refill(now, lineBurst, lineRate)
	if p.lines.left < 1 {
		return false
	}
	p.lines.left--
	return true
}

// isActivity reports whether an administrator should see a drop as an event.
func (r Reason) isActivity() bool {
	switch r {
	case SpoofedSGID, WrongKey, TooManyGroups, TooManyServices, TooManySubscriptions:
		return true
	}
	return false
}

// String returns the drop as a line of a log, without its time.
func (d Drop) String() string {
	who := fmt.Sprintf("port %s", d.From.GUID)
	if d.From.VPort != 0 {
		who += fmt.Sprintf(" vport %s", d.From.VPort)
	}
	if d.Name != "" {
		who += fmt.Sprintf(" (%s)", d.Name)
	}
	return fmt.Sprintf("dropped %s of %s: %s (number %d in a row)", d.Request, who, d.Reason, d.Number)
}

// Tick has time pass: leases end, ports that have been down are forgotten, and what was not answered is sent again. It is to be
// called about once in a second.
func (s *Server) Tick(now time.Time) []Outgoing {
	s.bury(now)
	s.expire(now)
	s.endSilent(now)
	s.tellLost()
	return append(s.retryReports(now), s.flush(now)...)
}
