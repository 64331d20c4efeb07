package sa

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// The hosts of the tests.
const (
	manager mad.GUID = 0x1000_0000_0000_0001
	alpha   mad.GUID = 0xa1fa_0000_0000_0001
	beta    mad.GUID = 0xbe7a_0000_0000_0001
	gamma   mad.GUID = 0x9a33_0000_0000_0001
	vport   mad.GUID = 0xa1fa_0000_0000_0002 // alpha's
	vport2  mad.GUID = 0xa1fa_0000_0000_0003
	relay   mad.GUID = 0x4e1a_0000_0000_0001

	theKey mad.Key = 0x5ec4e7
)

// lab is a directory with its ports up, and the time.
type lab struct {
	*testing.T
	*Server
	now      time.Time
	tid      uint64
	log      []Drop
	activity []Drop
	sent     []Outgoing // reports
}

func newLab(t *testing.T, change ...func(*Options)) *lab {
	l := &lab{T: t, now: time.Unix(1_800_000_000, 0)}
	o := DefaultOptions()
	for _, f := range change {
		f(&o)
	}
	l.Server = New(Config{
		Options: o, Key: theKey, GUID: manager,
		Log:      func(d Drop) { l.log = append(l.log, d) },
		Activity: func(d Drop) { l.activity = append(l.activity, d) },
	})
	for _, p := range []Port{
		{GUID: manager, Name: "manager"},
		{GUID: alpha, Name: "alpha", VPorts: []VPort{{vport, "alpha/alice"}, {vport2, "alpha/bob"}}},
		{GUID: beta, Name: "beta"}, {GUID: gamma, Name: "gamma"}, {GUID: relay, Name: "relay", Router: true},
	} {
		l.up(p)
	}
	return l
}

func model(o *Options) { o.EnhancedTrustModel = true }

func (l *lab) up(p Port) mad.LID {
	l.Helper()
	lid, out, err := l.PortUp(l.now, p)
	if err != nil {
		l.Fatal(err)
	}
	l.sent = append(l.sent, out...)
	return lid
}

func (l *lab) down(guid mad.GUID) { l.sent = append(l.sent, l.PortDown(l.now, guid)...) }

// wait has time pass, a second at a time, as a daemon's ticker does.
func (l *lab) wait(d time.Duration) {
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(min(time.Second, end.Sub(l.now)))
		l.sent = append(l.sent, l.Tick(l.now)...)
	}
}

func gidOf(g mad.GUID) mad.GID { return mad.MakeGID(mad.LinkLocalPrefix, g) }

// ask is a request in the making.
type ask struct {
	from   Requester
	sgid   mad.GID
	key    mad.Key
	method mad.Method
	attr   mad.Attribute
	mask   mad.Mask
	record mad.Record
}

func by(g mad.GUID) ask { return ask{from: Requester{GUID: g}, sgid: gidOf(g)} }

// byVPort is a vport of alpha.
func byVPort(v mad.GUID) ask { return ask{from: Requester{GUID: alpha}, sgid: gidOf(v)} }

func (a ask) trusted() ask { a.key = theKey; return a }

func (a ask) to(m mad.Method, attr mad.Attribute, mask mad.Mask, r mad.Record) ask {
	a.method, a.attr, a.mask, a.record = m, attr, mask, r
	return a
}

func (a ask) packet(tid uint64) mad.Packet {
	sa := mad.SA{
		Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: a.method, Attribute: a.attr, TransactionID: tid},
		Key:    a.key, ComponentMask: a.mask,
	}
	if a.record != nil {
		a.record.Append(sa.Data[:0])
	}
	p := mad.Packet{MAD: sa.MAD()}
	if a.sgid != (mad.GID{}) {
		p.GRH = mad.GRH{SGID: a.sgid, DGID: gidOf(manager)}
	}
	return p
}

// result is what came back: nothing, or an answer.
type result struct {
	dropped bool
	status  mad.Status
	sa      *mad.SA
	table   []byte
}

// do makes a request, and receives a whole table.
func (l *lab) do(a ask) result {
	l.Helper()
	l.tid++
	out := l.Handle(l.now, a.from, a.packet(l.tid))
	receiver := mad.NewReceiver(l.tid, maxTable, mad.MaxWindow)
	for len(out) > 0 {
		o := out[0]
		out = out[1:]
		sa, err := mad.ParseSA(&o.Packet.MAD)
		if err != nil {
			l.Fatal(err)
		}
		if sa.Method == mad.MethodReport || sa.TransactionID != l.tid {
			l.sent = append(l.sent, o)
			continue
		}
		if o.To != a.from.GUID || a.sgid != (mad.GID{}) && o.Packet.GRH.DGID != a.sgid {
			l.Fatalf("the answer to %v goes to %s, %s", a.from, o.To, o.Packet.GRH.DGID)
		}
		if sa.Key != 0 {
			l.Fatal("an answer has the SA_Key")
		}
		ack, send, err := receiver.Receive(&sa)
		if err != nil {
			l.Fatal(err)
		}
		if send {
			out = append(out, l.Handle(l.now, a.from, mad.Packet{GRH: mad.GRH{SGID: a.sgid}, MAD: ack})...)
		}
	}
	if !receiver.Done() {
		return result{dropped: true}
	}
	head, table := receiver.Answer()
	return result{status: head.Status, sa: &head, table: table}
}

// services are the records of an answer to GetTable.
func (l *lab) records(r result) (list []mad.ServiceRecord) {
	l.Helper()
	for _, b := range l.rows(r, mad.ServiceRecordLen) {
		v, err := mad.ParseServiceRecord(b)
		if err != nil {
			l.Fatal(err)
		}
		list = append(list, v)
	}
	return list
}

func (l *lab) rows(r result, length int) [][]byte {
	l.Helper()
	if r.dropped || r.status != mad.StatusOK {
		l.Fatalf("dropped: %v, status %v", r.dropped, r.status)
	}
	rows, err := mad.Rows(r.table, r.sa.AttributeOffset, length)
	if err != nil {
		l.Fatal(err)
	}
	return rows
}

// ok does what has to succeed.
func (l *lab) ok(a ask) result {
	l.Helper()
	r := l.do(a)
	if r.dropped || r.status != mad.StatusOK {
		l.Fatalf("%s %s: dropped: %v, status %v", a.method, a.attr.Name(mad.ClassSubnAdm), r.dropped, r.status)
	}
	return r
}

// want does what has to have one result: a status, or silence.
func (l *lab) want(what string, a ask, silent bool, status mad.Status) {
	l.Helper()
	r := l.do(a)
	if r.dropped != silent || !silent && r.status != status {
		l.Errorf("%s: dropped: %v, status %v; want %v, %v", what, r.dropped, r.status, silent, status)
	}
}

// serviceAt is a service at a port.
func serviceAt(id uint64, at mad.GUID, name string) mad.ServiceRecord {
	v := mad.ServiceRecord{ID: id, GID: gidOf(at), Lease: mad.ServiceLeaseInfinite}
	copy(v.Name[:], name)
	return v
}

const (
	serviceRID  = mad.ServiceMaskID | mad.ServiceMaskGID
	serviceMask = serviceRID | mad.ServiceMaskLease | mad.ServiceMaskName
	dataMask    = mad.ServiceMaskData8 | mad.ServiceMaskData16 | mad.ServiceMaskData32 | mad.ServiceMaskData64
)

func (a ask) setService(v mad.ServiceRecord) ask {
	return a.to(mad.MethodSet, mad.AttrServiceRecord, serviceMask, v)
}

func (a ask) deleteService(v mad.ServiceRecord) ask {
	return a.to(mad.MethodDelete, mad.AttrServiceRecord, serviceRID, v)
}

func (a ask) table(attr mad.Attribute, mask mad.Mask, r mad.Record) ask {
	return a.to(mad.MethodGetTable, attr, mask, r)
}

func (a ask) join(mgid mad.GID, port mad.GUID, state uint8) ask {
	m := mad.MCMemberRecord{MGID: mgid, PortGID: gidOf(port), JoinState: state, QKey: 0x1b, PKey: 0xffff}
	return a.to(mad.MethodSet, mad.AttrMCMemberRecord, leaveMask|makeMask, m)
}

func (a ask) leave(mgid mad.GID, port mad.GUID, state uint8) ask {
	m := mad.MCMemberRecord{MGID: mgid, PortGID: gidOf(port), JoinState: state}
	return a.to(mad.MethodDelete, mad.AttrMCMemberRecord, leaveMask, m)
}

// toAll is a subscription to a trap of all ports.
func toAll(trap uint16) mad.InformInfo {
	return mad.InformInfo{LIDBegin: mad.InformAllLIDs, Generic: 1, Subscribe: 1, Type: mad.InformAllTypes, TrapNumber: trap, ProducerType: mad.InformAllProducers}
}

// toEverything is a subscription to all notices.
func toEverything() mad.InformInfo {
	i := toAll(mad.InformAllTraps)
	i.Generic = 0xff
	return i
}

func (a ask) inform(i mad.InformInfo) ask { return a.to(mad.MethodSet, mad.AttrInformInfo, 0, i) }

func (a ask) guids(m mad.Method, lid mad.LID, block uint8, mask mad.Mask, guids ...mad.GUID) ask {
	r := mad.GUIDInfoRecord{LID: lid, BlockNum: block}
	copy(r.GUIDs[:], guids)
	return a.to(m, mad.AttrGUIDInfoRecord, mad.GUIDInfoMaskLID|mad.GUIDInfoMaskBlockNum|mask, r)
}

// notices returns the reports that went to a port, and forgets all.
func (l *lab) reports(to mad.GUID) (list []mad.Notice) {
	l.Helper()
	for _, o := range l.sent {
		if o.To != to {
			continue
		}
		sa, err := mad.ParseSA(&o.Packet.MAD)
		if err != nil || sa.Method != mad.MethodReport || sa.Attribute != mad.AttrNotice {
			l.Fatalf("%s %v: %v", sa.Method, sa.Attribute, err)
		}
		n, err := mad.ParseNotice(sa.Data[:mad.NoticeLen])
		if err != nil {
			l.Fatal(err)
		}
		list = append(list, n)
	}
	return list
}

// answer answers the reports that went to a port.
func (l *lab) answer(to mad.GUID) {
	l.Helper()
	for list := l.take(to); len(list) > 0; list = l.take(to) {
		for _, o := range list {
			sa, err := mad.ParseSA(&o.Packet.MAD)
			if err != nil {
				l.Fatal(err)
			}
			sa.Method = mad.MethodReportResp
			l.sent = append(l.sent, l.Handle(l.now, Requester{GUID: to}, mad.Packet{GRH: mad.GRH{SGID: gidOf(to)}, MAD: sa.MAD()})...)
		}
	}
}

// take returns the packets to a port, and forgets them.
func (l *lab) take(to mad.GUID) (list []Outgoing) {
	rest := l.sent[:0:0]
	for _, o := range l.sent {
		if o.To == to {
			list = append(list, o)
		} else {
			rest = append(rest, o)
		}
	}
	l.sent = rest
	return list
}
