package sa

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/internal/printable"
)

// query answers Get and GetTable.
func (s *Server) query(r *request) answer {
	if r.Attribute == mad.AttrClassPortInfo {
		if r.Method != mad.MethodGet {
			return fail(mad.StatusUnsupportedAttribute)
		}
		return one(s.classPortInfo(), mad.ClassPortInfoLen)
	}
	length, ok := recordLen[r.Attribute]
	if !ok {
		return fail(mad.StatusUnsupportedAttribute)
	}
	if !r.mayLookAt(s.searched(r)) {
		return fail(mad.StatusBusy)
	}
	row := 8 * int(mad.Offset(length))
	limit := maxTable
	if r.Method == mad.MethodGet {
		limit = row
	}
	rows := s.rows(r, limit)
	switch {
	case r.Method == mad.MethodGet && len(rows) == 0:
		return fail(mad.StatusNoRecords)
	case r.Method == mad.MethodGet && len(rows) > limit:
		return fail(mad.StatusTooManyRecords)
	case len(rows) > limit:
		return fail(mad.StatusNoResources)
	}
	return answer{records: rows, length: length}
}

// mayLookAt charges the requester's port with a request that has so many services looked at. It reports whether the port had not used up
// what it may ask for. Its vports, which are its users, leave it a part.
func (r *request) mayLookAt(services int) bool {
	m := &r.port.searches
	m.refill(r.now, searchBurst, searchRate)
	left := m.left
	if r.who.VPort != 0 {
		left -= searchKept
	}
	if left <= 0 {
		return false
	}
	m.left -= float64(services)
	return true
}

// recordLen has the attributes that may be asked for, and the lengths of their records.
var recordLen = map[mad.Attribute]int{
	mad.AttrServiceRecord:    mad.ServiceRecordLen,
	mad.AttrPathRecord:       mad.PathRecordLen,
	mad.AttrMCMemberRecord:   mad.MCMemberRecordLen,
	mad.AttrGUIDInfoRecord:   mad.GUIDInfoRecordLen,
	mad.AttrInformInfoRecord: mad.InformInfoRecordLen,
	mad.AttrNodeRecord:       mad.NodeRecordLen,
	mad.AttrPortInfoRecord:   mad.PortInfoRecordLen,
	mad.AttrSMInfoRecord:     mad.SMInfoRecordLen,
}

// searched returns what a request costs, in services that are looked at: a record that has to be written first costs as much as
// twenty of those.
func (s *Server) searched(r *request) int {
	const writing = 20
	switch r.Attribute {
	case mad.AttrServiceRecord:
		return len(s.services.of)
	case mad.AttrPathRecord:
		n := 1
		if r.ComponentMask&(mad.PathMaskDGID|mad.PathMaskDLID) == 0 {
			n = len(s.ports)
		}
		if r.ComponentMask&(mad.PathMaskSGID|mad.PathMaskSLID) == 0 && r.Method != mad.MethodGet {
			n *= len(s.ports)
		}
		return n
	case mad.AttrMCMemberRecord:
		return writing * (len(s.groups.of) + s.groups.members)
	case mad.AttrGUIDInfoRecord:
		return writing * blocks * len(s.guidPorts(r))
	case mad.AttrInformInfoRecord:
		return writing * len(s.subs.of)
	}
	return writing * len(s.ports)
}

// rows returns the records that a request asks for, until they are longer than limit.
func (s *Server) rows(r *request, limit int) []byte {
	switch r.Attribute {
	case mad.AttrServiceRecord:
		return s.serviceRows(r, limit)
	case mad.AttrPathRecord:
		return s.pathRows(r, limit)
	case mad.AttrMCMemberRecord:
		return s.memberRows(r, limit)
	case mad.AttrGUIDInfoRecord:
		t := newTable(r, guidInfoLayout, mad.GUIDInfoRecordLen, limit)
		for _, p := range s.guidPorts(r) {
			for n := range blocks {
				if row := p.block(n); row.GUIDs != [mad.GUIDsPerBlock]mad.GUID{} {
					t.add(row)
				}
			}
		}
		return t.rows
	case mad.AttrInformInfoRecord:
		t := newTable(r, informLayout, mad.InformInfoRecordLen, limit)
		for _, sub := range s.subs.list() {
			if r.trusted || r.speaksFor(sub.owner) { // others' interests are not the untrusted's business
				t.add(s.informRow(sub))
			}
		}
		return t.rows
	case mad.AttrNodeRecord:
		t := newTable(r, nodeLayout, mad.NodeRecordLen, limit)
		for _, p := range s.sortedPorts() {
			t.add(p.nodeRecord())
		}
		return t.rows
	case mad.AttrPortInfoRecord:
		t := newTable(r, portLayout, mad.PortInfoRecordLen, limit)
		for _, p := range s.sortedPorts() {
			t.add(s.portInfoRecord(p))
		}
		return t.rows
	case mad.AttrSMInfoRecord:
		t := newTable(r, smInfoLayout, mad.SMInfoRecordLen, limit)
		info := mad.SMInfo{GUID: s.cfg.GUID, Priority: s.cfg.Priority, State: mad.SMMaster} // SM_Key is shown to nobody
		t.add(mad.SMInfoRecord{LID: s.ownLID(), SMInfo: info})
		return t.rows
	}
	return nil
}

// guidPorts returns the ports that a request for GUIDInfoRecords can be about.
func (s *Server) guidPorts(r *request) []*port {
	if !r.ComponentMask.Has(mad.GUIDInfoMaskLID) {
		return s.sortedPorts()
	}
	asked, err := mad.ParseGUIDInfoRecord(r.Data[:mad.GUIDInfoRecordLen])
	if p := s.lids[asked.LID]; err == nil && p != nil {
		return []*port{p}
	}
	return nil
}

// table collects the records that match a request.
type table struct {
	want  pattern
	limit int
	rows  []byte
	one   []byte
}

func newTable(r *request, l layout, length, limit int) *table {
	return &table{want: l.pattern(r.ComponentMask, r.Data[:length]), limit: limit}
}

func (t *table) add(r mad.Record) {
	t.one = r.Append(t.one[:0])
	if len(t.rows) <= t.limit && t.want.matches(t.one) {
		t.rows = mad.AppendRow(t.rows, r)
	}
}

func (s *Server) serviceRows(r *request, limit int) (rows []byte) {
	const changing = mad.ServiceMaskLease | mad.ServiceMaskKey // not in v.row as the requester reads them
	want := serviceLayout.pattern(r.ComponentMask, r.Data[:mad.ServiceRecordLen])
	first := serviceLayout.pattern(r.ComponentMask&^changing, r.Data[:mad.ServiceRecordLen])
	for _, v := range s.services.list() {
		start := len(rows)
		if !first.matches(v.row[:]) {
			continue
		}
		rows = v.append(rows, r.now, r.trusted)
		if !want.matches(rows[start:]) {
			rows = rows[:start]
		}
		if len(rows) > limit {
			break
		}
	}
	return rows
}

// memberRows returns groups. The untrusted see of members their own alone.
func (s *Server) memberRows(r *request, limit int) []byte {
	asked, err := mad.ParseMCMemberRecord(r.Data[:mad.MCMemberRecordLen])
	if err != nil {
		return nil
	}
	const choices = mad.MemberMaskMTUSelector | mad.MemberMaskMTU | mad.MemberMaskRateSelector | mad.MemberMaskRate |
		mad.MemberMaskLifeTimeSelector | mad.MemberMaskLifeTime
	t := &table{want: memberLayout.pattern(r.ComponentMask&^choices, r.Data[:mad.MCMemberRecordLen]), limit: limit}
	own := r.ComponentMask.Has(mad.MemberMaskPortGID) && r.owns(asked.PortGID)
	for _, g := range s.groups.list() {
		switch {
		case !g.chosen(r.ComponentMask, &asked):
		case r.trusted:
			for _, gid := range g.gids() {
				t.add(g.row(gid, g.members[gid]))
			}
		case own:
			if m := g.members[asked.PortGID]; m != nil {
				t.add(g.row(asked.PortGID, m))
			}
		default:
			t.add(g.row(mad.GID{}, nil))
		}
	}
	return t.rows
}

func (s *Server) informRow(sub *subscription) mad.InformInfoRecord {
	guid := sub.owner.VPort
	if guid == 0 {
		guid = sub.owner.GUID
	}
	i := mad.InformInfo(sub.filter)
	i.Subscribe = subscribe
	return mad.InformInfoRecord{SubscriberGID: s.gid(guid), Enum: sub.enum, InformInfo: i}
}

// nodeRecord describes the host of a port.
func (p *port) nodeRecord() mad.NodeRecord {
	kind := mad.NodeCA
	if p.Router {
		kind = mad.NodeRouter
	}
	r := mad.NodeRecord{LID: p.LID, NodeInfo: mad.NodeInfo{
		BaseVersion: mad.BaseVersion, ClassVersion: mad.SMPClassVersion, Type: kind, Ports: 1,
		SystemImageGUID: p.GUID, NodeGUID: p.GUID, PortGUID: p.GUID, PartitionCap: mad.PKeysPerBlock, LocalPort: 1,
	}}
	copy(r.Description[:mad.NameLen-1], printable.Cut(printable.Text(p.Name), mad.NameLen-1))
	return r
}

// portInfoRecord says whether a port is up. The directory has no M_Keys.
func (s *Server) portInfoRecord(p *port) mad.PortInfoRecord {
	state := mad.PortActive
	if p.state != portUp {
		state = mad.PortDown
	}
	return mad.PortInfoRecord{EndportLID: p.LID, PortNum: 1, PortInfo: mad.PortInfo{
		GIDPrefix: s.cfg.Prefix, LID: p.LID, MasterSMLID: s.ownLID(), LocalPort: 1, State: state, PhysicalState: mad.PortLinkUp,
		NeighborMTU: mad.MTU4096, MTUCap: mad.MTU4096, GUIDCap: MaxAliases, LinkWidthActive: 2, LinkSpeedActive: 4,
	}}
}

// ownLID is the manager's LID, 0 as long as its own port is not up.
func (s *Server) ownLID() mad.LID {
	if p := s.ports[s.cfg.GUID]; p != nil {
		return p.LID
	}
	return 0
}

// What the directory can do besides what each one has to (sections 13.4.8.1 and 15.2.4): multicast; alias GUIDs.
const (
	capUDMulticast = 1 << 10
	cap2AliasGUIDs = 1 << 5
)

// responseTime says that an answer takes about a second at most: 4.096 µs times 2 to this.
const responseTime = 18

func (s *Server) classPortInfo() mad.ClassPortInfo {
	return mad.ClassPortInfo{
		BaseVersion: mad.BaseVersion, ClassVersion: mad.SAClassVersion, RespTime: responseTime,
		CapabilityMask: capUDMulticast, CapabilityMask2: cap2AliasGUIDs,
	}
}
