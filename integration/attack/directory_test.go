package attack

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
	"github.com/ironwarp/ironwarp/internal/checks"
)

// directoryAttack is one thing that a host of the fabric tries at the directory.
type directoryAttack struct {
	name    string
	check   checks.Check
	options func(*sa.Options) // nil: the enhanced trust model, else as by default
	try     func(d *directory) (succeeded bool)
}

// runDirectory makes attacks, each on a directory of its own.
func runDirectory(t *testing.T, attacks ...directoryAttack) {
	t.Helper()
	for _, a := range attacks {
		t.Run(a.name, func(t *testing.T) {
			switchOff(t, a.check)
			switch succeeded := a.try(newDirectory(t, a.options)); {
			case succeeded && !checks.Weakened:
				t.Error("the attack succeeds")
			case !succeeded && checks.Weakened:
				t.Error("the attack fails without the check that it is about, too")
			}
		})
	}
}

// The ports of the attacks.
const (
	managerPort mad.GUID = 0x1000_0000_0000_0001
	attacker    mad.GUID = 0xa77a_0000_0000_0001
	itsVPort    mad.GUID = 0xa77a_0000_0000_0002
	host        mad.GUID = 0x4057_0000_0000_0001

	directoryKey mad.Key = 0x5ec4e7
)

var directoryGroup = mad.GID{0xff, 0x12, 15: 1}

// directory is a subnet administrator with the ports above, to which the attacks send raw MADs.
type directory struct {
	*testing.T
	*sa.Server
	now     time.Time
	lid     map[mad.GUID]mad.LID
	logged  []sa.Drop
	reports map[mad.GUID][]mad.Notice
	id      uint64
}

func newDirectory(t *testing.T, options func(*sa.Options)) *directory {
	t.Helper()
	d := &directory{T: t, now: time.Unix(1_800_000_000, 0), lid: make(map[mad.GUID]mad.LID), reports: make(map[mad.GUID][]mad.Notice)}
	o := sa.DefaultOptions()
	o.EnhancedTrustModel = true
	if options != nil {
		options(&o)
	}
	d.start(o, directoryKey)
	return d
}

// start begins with a directory that has a key.
func (d *directory) start(o sa.Options, key mad.Key) {
	d.Helper()
	d.Server = sa.New(sa.Config{Options: o, Key: key, GUID: managerPort, Log: func(x sa.Drop) { d.logged = append(d.logged, x) }})
	for _, p := range []sa.Port{
		{GUID: managerPort, Name: "manager"},
		{GUID: attacker, Name: "attacker", VPorts: []sa.VPort{{GUID: itsVPort, Name: "attacker/user"}}},
		{GUID: host, Name: "host"},
	} {
		d.up(p)
	}
}

func (d *directory) up(p sa.Port) {
	d.Helper()
	lid, out, err := d.PortUp(d.now, p)
	if err != nil {
		d.Fatal(err)
	}
	d.lid[p.GUID] = lid
	d.note(out)
}

func gid(g mad.GUID) mad.GID { return mad.MakeGID(mad.LinkLocalPrefix, g) }

// note keeps the notices that are reported.
func (d *directory) note(out []sa.Outgoing) (answers []mad.SA) {
	d.Helper()
	for _, o := range out {
		m, err := mad.ParseSA(&o.Packet.MAD)
		if err != nil {
			d.Fatal(err)
		}
		if m.Method != mad.MethodReport {
			answers = append(answers, m)
			continue
		}
		n, err := mad.ParseNotice(m.Data[:mad.NoticeLen])
		if err != nil {
			d.Fatal(err)
		}
		d.reports[o.To] = append(d.reports[o.To], n)
	}
	return answers
}

// mad is a request.
func (d *directory) mad(method mad.Method, attr mad.Attribute, mask mad.Mask, record mad.Record) mad.SA {
	d.id++
	m := mad.SA{
		Header:        mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: method, Attribute: attr, TransactionID: d.id},
		ComponentMask: mask,
	}
	if record != nil {
		record.Append(m.Data[:0])
	}
	return m
}

// send sends a request in a port's stream with some SGID, and returns the answer, and whether there is one.
func (d *directory) send(from mad.GUID, sgid mad.GID, m mad.SA) (mad.SA, bool) {
	d.Helper()
	answers := d.note(d.Handle(d.now, sa.Requester{GUID: from}, mad.Packet{GRH: mad.GRH{SGID: sgid, DGID: gid(managerPort)}, MAD: m.MAD()}))
	if len(answers) == 0 {
		return mad.SA{}, false
	}
	return answers[0], true
}

// by sends a request of a port, and reports whether it succeeded.
func (d *directory) by(from mad.GUID, m mad.SA) bool {
	d.Helper()
	a, ok := d.send(from, gid(from), m)
	return ok && a.Status == mad.StatusOK
}

// byVPort is by for the attacker's vport.
func (d *directory) byVPort(m mad.SA) bool {
	d.Helper()
	a, ok := d.send(attacker, gid(itsVPort), m)
	return ok && a.Status == mad.StatusOK
}

// prepare sends a request that has to succeed.
func (d *directory) prepare(from mad.GUID, m mad.SA) {
	d.Helper()
	if !d.by(from, m) {
		d.Fatalf("%s %s failed", m.Method, m.Attribute.Name(mad.ClassSubnAdm))
	}
}

func (d *directory) set(id uint64, at mad.GUID, name string) mad.SA {
	v := mad.ServiceRecord{ID: id, GID: gid(at), Lease: mad.ServiceLeaseInfinite, Key: mad.ServiceKey{1, 2, 3}}
	copy(v.Name[:], name)
	return d.mad(mad.MethodSet, mad.AttrServiceRecord, mad.ServiceMaskID|mad.ServiceMaskGID|mad.ServiceMaskLease|mad.ServiceMaskKey|mad.ServiceMaskName, v)
}

func (d *directory) remove(id uint64, at mad.GUID) mad.SA {
	return d.mad(mad.MethodDelete, mad.AttrServiceRecord, mad.ServiceMaskID|mad.ServiceMaskGID, mad.ServiceRecord{ID: id, GID: gid(at)})
}

func (d *directory) membership(method mad.Method, last byte, port mad.GUID) mad.SA {
	r := mad.MCMemberRecord{MGID: directoryGroup, PortGID: gid(port), JoinState: mad.JoinFull, PKey: 0xffff}
	r.MGID[14] = last
	return d.mad(method, mad.AttrMCMemberRecord, 1<<18-1&^(mad.MemberMaskMLID|mad.MemberMaskMTU|mad.MemberMaskRate|mad.MemberMaskLifeTime|mad.MemberMaskScope), r)
}

func (d *directory) guids(method mad.Method, of mad.GUID, block uint8, first mad.GUID) mad.SA {
	r := mad.GUIDInfoRecord{LID: d.lid[of], BlockNum: block, GUIDs: [mad.GUIDsPerBlock]mad.GUID{first}}
	return d.mad(method, mad.AttrGUIDInfoRecord, mad.GUIDInfoMaskLID|mad.GUIDInfoMaskBlockNum|mad.GUIDInfoMaskGUID(0), r)
}

func (d *directory) inform(trap uint16) mad.SA {
	return d.mad(mad.MethodSet, mad.AttrInformInfo, 0, mad.InformInfo{
		LIDBegin: mad.InformAllLIDs, Generic: 0xff, Subscribe: 1, Type: mad.InformAllTypes, TrapNumber: trap, ProducerType: mad.InformAllProducers,
	})
}

// A request with a SA_Key that is not the directory's, or with the claim to be trusted that an empty one is.
func TestDirectorysKey(t *testing.T) {
	runDirectory(t,
		directoryAttack{"a wrong SA_Key is answered", checks.SAKey, nil, func(d *directory) bool {
			m := d.mad(mad.MethodGet, mad.AttrClassPortInfo, 0, nil)
			m.Key = directoryKey + 1
			return d.by(attacker, m)
		}},
		directoryAttack{"no SA_Key is as good as the right one", checks.SATrust, nil, func(d *directory) bool {
			return d.by(attacker, d.mad(mad.MethodGet, mad.AttrSMInfoRecord, 0, nil))
		}},
		directoryAttack{"key 0 is right in a directory without a key", checks.SATrust, nil, func(d *directory) bool {
			o := sa.DefaultOptions()
			o.EnhancedTrustModel = true
			d.start(o, 0)
			return d.by(attacker, d.mad(mad.MethodGet, mad.AttrSMInfoRecord, 0, nil))
		}},
	)
}

// What is not in the set of untrusted requests: each method of each attribute.
func TestRequestsOutsideTheUntrustedsSet(t *testing.T) {
	ends := mad.PathRecord{SGID: gid(attacker), DGID: gid(host)}
	for name, f := range map[string]func(d *directory) mad.SA{
		"the table of services": func(d *directory) mad.SA { return d.mad(mad.MethodGetTable, mad.AttrServiceRecord, 0, nil) },
		"the table of paths":    func(d *directory) mad.SA { return d.mad(mad.MethodGetTable, mad.AttrPathRecord, 0, nil) },
		"all paths from a port": func(d *directory) mad.SA {
			return d.mad(mad.MethodGetTable, mad.AttrPathRecord, mad.PathMaskSGID, ends)
		},
		"all paths to a port": func(d *directory) mad.SA {
			return d.mad(mad.MethodGetTable, mad.AttrPathRecord, mad.PathMaskDGID, ends)
		},
		"the table of groups": func(d *directory) mad.SA { return d.mad(mad.MethodGetTable, mad.AttrMCMemberRecord, 0, nil) },
		"a block of GUIDs": func(d *directory) mad.SA {
			return d.mad(mad.MethodGet, mad.AttrGUIDInfoRecord, mad.GUIDInfoMaskLID|mad.GUIDInfoMaskBlockNum, mad.GUIDInfoRecord{LID: d.lid[host]})
		},
		"the table of GUIDs":         func(d *directory) mad.SA { return d.mad(mad.MethodGetTable, mad.AttrGUIDInfoRecord, 0, nil) },
		"the table of nodes":         func(d *directory) mad.SA { return d.mad(mad.MethodGetTable, mad.AttrNodeRecord, 0, nil) },
		"the table of ports":         func(d *directory) mad.SA { return d.mad(mad.MethodGetTable, mad.AttrPortInfoRecord, 0, nil) },
		"the managers":               func(d *directory) mad.SA { return d.mad(mad.MethodGet, mad.AttrSMInfoRecord, 0, nil) },
		"the table of subscriptions": func(d *directory) mad.SA { return d.mad(mad.MethodGetTable, mad.AttrInformInfoRecord, 0, nil) },
	} {
		runDirectory(t, directoryAttack{name, checks.SARequestSet, nil, func(d *directory) bool { return d.by(attacker, f(d)) }})
	}
}

func TestGUIDInfoRecordsOfTheUntrusted(t *testing.T) {
	untrusted := func(o *sa.Options) { o.AllowUntrustedGUIDInfoRec = false }
	byVF := func(o *sa.Options) { o.AllowGUIDInfoRecByVF = false }
	runDirectory(t,
		directoryAttack{"an untrusted Set", checks.SAGUIDInfo, untrusted, func(d *directory) bool {
			return d.by(attacker, d.guids(mad.MethodSet, attacker, 1, 0))
		}},
		directoryAttack{"an untrusted Delete", checks.SAGUIDInfo, untrusted, func(d *directory) bool {
			return d.by(attacker, d.guids(mad.MethodDelete, attacker, 1, 0))
		}},
		directoryAttack{"a vport's Set", checks.SAGUIDInfoVPort, byVF, func(d *directory) bool {
			return d.byVPort(d.guids(mad.MethodSet, attacker, 1, 0))
		}},
		directoryAttack{"a vport's Delete", checks.SAGUIDInfoVPort, byVF, func(d *directory) bool {
			return d.byVPort(d.guids(mad.MethodDelete, attacker, 1, 0))
		}},
		directoryAttack{"a trusted vport's Set", checks.SAGUIDInfoVPort, byVF, func(d *directory) bool {
			m := d.guids(mad.MethodSet, attacker, 1, 0)
			m.Key = directoryKey
			return d.byVPort(m)
		}},
		directoryAttack{"the GUID of another host as an alias", checks.SAForeignGUID, nil, func(d *directory) bool {
			a, ok := d.send(attacker, gid(attacker), d.guids(mad.MethodSet, attacker, 1, host))
			r, err := mad.ParseGUIDInfoRecord(a.Data[:mad.GUIDInfoRecordLen])
			return ok && err == nil && r.GUIDs[0] == host
		}},
		directoryAttack{"another host's alias taken away", checks.SAAliasOwner, nil, func(d *directory) bool {
			d.prepare(host, d.guids(mad.MethodSet, host, 1, 0))
			before := len(d.GUIDs())
			d.by(attacker, d.guids(mad.MethodDelete, host, 1, 0))
			return len(d.GUIDs()) < before
		}},
	)
}

func TestProxiesOfTheUntrusted(t *testing.T) {
	none := func(o *sa.Options) { o.AllowUntrustedProxyRequests = false }
	runDirectory(t,
		directoryAttack{"a service at another port", checks.SAProxy, none, func(d *directory) bool {
			return d.by(attacker, d.set(1, host, "docs"))
		}},
		directoryAttack{"another port in a group", checks.SAProxy, none, func(d *directory) bool {
			return d.by(attacker, d.membership(mad.MethodSet, 0, host))
		}},
		directoryAttack{"an alias of another port", checks.SAProxy, none, func(d *directory) bool {
			return d.by(attacker, d.guids(mad.MethodSet, host, 1, 0))
		}},
		directoryAttack{"a service at its host, of a vport", checks.SAProxy, none, func(d *directory) bool {
			return d.byVPort(d.set(1, attacker, "docs"))
		}},
		directoryAttack{"the LID in a record passes for the requester's", checks.SARequester, none, func(d *directory) bool {
			return d.by(attacker, d.guids(mad.MethodSet, host, 1, 0))
		}},
	)
}

func TestLimitsOfTheDirectory(t *testing.T) {
	one := func(o *sa.Options) { o.MaxNumSrvcs, o.MaxNumMCGs, o.MaxNumEventSubs = 1, 1, 1 }
	runDirectory(t,
		directoryAttack{"a service too many", checks.SALimit, one, func(d *directory) bool {
			d.prepare(attacker, d.set(1, attacker, "docs"))
			return d.by(attacker, d.set(2, attacker, "films"))
		}},
		directoryAttack{"a service too many, for another port", checks.SALimit, one, func(d *directory) bool {
			d.prepare(attacker, d.set(1, attacker, "docs"))
			return d.by(attacker, d.set(2, host, "films"))
		}},
		directoryAttack{"a group too many", checks.SALimit, one, func(d *directory) bool {
			d.prepare(attacker, d.membership(mad.MethodSet, 0, attacker))
			return d.by(attacker, d.membership(mad.MethodSet, 1, attacker))
		}},
		directoryAttack{"a subscription too many", checks.SALimit, one, func(d *directory) bool {
			d.prepare(attacker, d.inform(mad.TrapGIDInService))
			return d.by(attacker, d.inform(mad.TrapGIDOutOfService))
		}},
		directoryAttack{"a reconnect for a new allowance", checks.SAReconnect, one, func(d *directory) bool {
			d.prepare(attacker, d.set(1, attacker, "docs"))
			d.note(d.PortDown(d.now, attacker))
			d.up(sa.Port{GUID: attacker, Name: "attacker"})
			return d.by(attacker, d.set(2, attacker, "films"))
		}},
		directoryAttack{"a service that outlives its lease", checks.SALease, nil, func(d *directory) bool {
			m := d.set(1, attacker, "docs")
			v, _ := mad.ParseServiceRecord(m.Data[:mad.ServiceRecordLen])
			v.Lease = 10
			v.Append(m.Data[:0])
			d.prepare(attacker, m)
			d.now = d.now.Add(time.Hour)
			d.note(d.Tick(d.now))
			return len(d.Services(d.now)) > 0
		}},
		directoryAttack{"an endless service of a host that has cut itself off", checks.SALease, nil, func(d *directory) bool {
			d.prepare(attacker, d.set(1, attacker, "docs"))
			d.note(d.PortDown(d.now, attacker))
			d.now = d.now.Add(time.Hour)
			d.note(d.Tick(d.now))
			return len(d.Services(d.now)) > 0
		}},
		directoryAttack{"lines of the log without end", checks.SADropLog, nil, func(d *directory) bool {
			for range 1000 {
				d.by(attacker, d.mad(mad.MethodGetTable, mad.AttrServiceRecord, 0, nil))
				d.by(attacker, d.mad(mad.MethodGet, mad.AttrClassPortInfo, 0, nil)) // which does not end the row
			}
			return len(d.logged) > 20
		}},
	)
}

func TestAddressesOfAnother(t *testing.T) {
	runDirectory(t,
		directoryAttack{"a request with another's SGID", checks.SGIDSpoofing, nil, func(d *directory) bool {
			a, ok := d.send(attacker, gid(host), d.mad(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
			return ok && a.Status == mad.StatusOK
		}},
		directoryAttack{"the same without the model", checks.SGIDSpoofing, func(o *sa.Options) { o.EnhancedTrustModel = false }, func(d *directory) bool {
			a, ok := d.send(attacker, gid(host), d.mad(mad.MethodGet, mad.AttrClassPortInfo, 0, nil))
			return ok && a.Status == mad.StatusOK
		}},
	)
}

func TestRecordsOfAnother(t *testing.T) {
	runDirectory(t,
		directoryAttack{"a service deleted", checks.SAServiceOwner, nil, func(d *directory) bool {
			d.prepare(host, d.set(1, host, "docs"))
			d.by(attacker, d.remove(1, host))
			return len(d.Services(d.now)) == 0
		}},
		directoryAttack{"a service deleted with a guessed key", checks.SAServiceOwner, nil, func(d *directory) bool {
			d.prepare(host, d.set(1, host, "docs"))
			m := d.remove(1, host)
			m.ComponentMask |= mad.ServiceMaskKey
			d.by(attacker, m)
			return len(d.Services(d.now)) == 0
		}},
		directoryAttack{"a service led elsewhere", checks.SAServiceOwner, nil, func(d *directory) bool {
			d.prepare(host, d.set(1, host, "docs"))
			m := d.set(1, host, "films")
			m.ComponentMask &^= mad.ServiceMaskKey
			d.by(attacker, m)
			return d.Services(d.now)[0].Record.Name.String() == "films"
		}},
		directoryAttack{"a ServiceKey read", checks.SAServiceKey, nil, func(d *directory) bool {
			d.prepare(host, d.set(1, host, "docs"))
			a, ok := d.send(attacker, gid(attacker), d.mad(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, mad.ServiceRecord{ID: 1}))
			v, err := mad.ParseServiceRecord(a.Data[:mad.ServiceRecordLen])
			return ok && err == nil && v.Key != mad.ServiceKey{}
		}},
		directoryAttack{"a host put out of its group", checks.SAMemberOwner, nil, func(d *directory) bool {
			d.prepare(host, d.membership(mad.MethodSet, 0, host))
			d.by(attacker, d.membership(mad.MethodDelete, 0, host))
			return len(d.Groups()) == 0
		}},
		directoryAttack{"a name that steers a terminal", checks.SAName, nil, func(d *directory) bool {
			return d.by(attacker, d.set(1, attacker, "a\x1b[2J"))
		}},
		directoryAttack{"a name that reads backwards", checks.SAName, nil, func(d *directory) bool {
			return d.by(attacker, d.set(1, attacker, "txt.\u202egpj"))
		}},
	)
}

func TestSecurityTraps(t *testing.T) {
	for trap := mad.TrapMKey; trap <= mad.TrapSwitchPKey; trap++ {
		notice := mad.Notice{Generic: true, Type: mad.NoticeSecurity, ProducerType: 1, TrapNumber: trap}
		sees := func(d *directory) bool {
			d.note(d.Announce(d.now, notice))
			for _, n := range d.reports[attacker] {
				if n.TrapNumber == trap {
					return true
				}
			}
			return false
		}
		runDirectory(t,
			directoryAttack{"a subscription", checks.SASecurityTraps, nil, func(d *directory) bool {
				return d.by(attacker, d.inform(trap)) && sees(d)
			}},
			directoryAttack{"a subscription without the model", checks.SASecurityTraps, func(o *sa.Options) { o.EnhancedTrustModel = false }, func(d *directory) bool {
				return d.by(attacker, d.inform(trap)) && sees(d)
			}},
			directoryAttack{"a subscription to all traps", checks.SASecurityTraps, nil, func(d *directory) bool {
				d.prepare(attacker, d.inform(mad.InformAllTraps))
				return sees(d)
			}},
		)
	}
}
