package sa

import (
	"fmt"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

var mgid = mad.GID{0xff, 0x12, 15: 1}

// requests is one request of each kind, and whether it is in the set of what the untrusted may ask.
func (l *lab) requests(a ask) map[string]struct {
	ask
	inSet bool
} {
	type entry = struct {
		ask
		inSet bool
	}
	at := a.from.GUID
	path := mad.PathRecord{SGID: gidOf(alpha), SLID: 2, DGID: gidOf(beta), DLID: 3}
	from, to := mad.PathMaskSGID, mad.PathMaskDGID
	lid := l.ports[at].LID
	all := map[string]entry{
		"MCMemberRecord Get":      {a.to(mad.MethodGet, mad.AttrMCMemberRecord, mad.MemberMaskMGID, mad.MCMemberRecord{MGID: mgid}), true},
		"MCMemberRecord Set":      {a.join(mgid, at, mad.JoinFull), true},
		"MCMemberRecord Delete":   {a.leave(mgid, at, mad.JoinFull), true},
		"MCMemberRecord GetTable": {a.table(mad.AttrMCMemberRecord, 0, nil), false},

		"PathRecord Get":                                          {a.to(mad.MethodGet, mad.AttrPathRecord, from|to, path), true},
		"PathRecord Get without source":                           {a.to(mad.MethodGet, mad.AttrPathRecord, to, path), true},
		"PathRecord GetTable, GID to GID":                         {a.table(mad.AttrPathRecord, from|to, path), true},
		"PathRecord GetTable, LID to LID":                         {a.table(mad.AttrPathRecord, mad.PathMaskSLID|mad.PathMaskDLID, path), true},
		"PathRecord GetTable, GID to LID":                         {a.table(mad.AttrPathRecord, from|mad.PathMaskDLID, path), true},
		"PathRecord GetTable, LID to GID":                         {a.table(mad.AttrPathRecord, mad.PathMaskSLID|to, path), true},
		"PathRecord GetTable without source":                      {a.table(mad.AttrPathRecord, to, path), false},
		"PathRecord GetTable without destination":                 {a.table(mad.AttrPathRecord, from, path), false},
		"PathRecord GetTable with two sources and no destination": {a.table(mad.AttrPathRecord, from|mad.PathMaskSLID, path), false},
		"PathRecord GetTable of all":                              {a.table(mad.AttrPathRecord, 0, nil), false},
		"PathRecord Set":                                          {a.to(mad.MethodSet, mad.AttrPathRecord, from|to, path), false},

		"ServiceRecord Get":      {a.to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, serviceAt(1, at, "")), true},
		"ServiceRecord Set":      {a.setService(serviceAt(1, at, "docs")), true},
		"ServiceRecord Delete":   {a.deleteService(serviceAt(1, at, "")), true},
		"ServiceRecord GetTable": {a.table(mad.AttrServiceRecord, 0, nil), false},

		"ClassPortInfo Get": {a.to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil), true},
		"ClassPortInfo Set": {a.to(mad.MethodSet, mad.AttrClassPortInfo, 0, nil), false},

		"InformInfo Set":              {a.inform(toAll(mad.TrapGIDInService)), true},
		"InformInfo Set of all traps": {a.inform(toEverything()), true},
		"InformInfo Get":              {a.to(mad.MethodGet, mad.AttrInformInfo, 0, toAll(64)), false},
		"InformInfo Delete":           {a.to(mad.MethodDelete, mad.AttrInformInfo, 0, toAll(64)), false},
		"InformInfoRecord Get":        {a.to(mad.MethodGet, mad.AttrInformInfoRecord, 0, nil), false},
		"InformInfoRecord GetTable":   {a.table(mad.AttrInformInfoRecord, 0, nil), false},

		"GUIDInfoRecord Set":      {a.guids(mad.MethodSet, lid, 1, mad.GUIDInfoMaskGUID(3)), true},
		"GUIDInfoRecord Delete":   {a.guids(mad.MethodDelete, lid, 1, mad.GUIDInfoMaskGUID(3)), true},
		"GUIDInfoRecord Get":      {a.guids(mad.MethodGet, lid, 0, 0), false},
		"GUIDInfoRecord GetTable": {a.guids(mad.MethodGetTable, lid, 0, 0), false},

		"NodeRecord Get":          {a.to(mad.MethodGet, mad.AttrNodeRecord, mad.NodeMaskLID, mad.NodeRecord{LID: lid}), false},
		"NodeRecord GetTable":     {a.table(mad.AttrNodeRecord, 0, nil), false},
		"PortInfoRecord Get":      {a.to(mad.MethodGet, mad.AttrPortInfoRecord, mad.PortMaskEndportLID, mad.PortInfoRecord{EndportLID: lid}), false},
		"PortInfoRecord GetTable": {a.table(mad.AttrPortInfoRecord, 0, nil), false},
		"SMInfoRecord Get":        {a.to(mad.MethodGet, mad.AttrSMInfoRecord, 0, nil), false},
		"SMInfoRecord GetTable":   {a.table(mad.AttrSMInfoRecord, 0, nil), false},
		"Notice Get":              {a.to(mad.MethodGet, mad.AttrNotice, 0, nil), false},
		"Notice Report":           {a.to(mad.MethodReport, mad.AttrNotice, 0, nil), false},
		"Notice Trap":             {a.to(mad.MethodTrap, mad.AttrNotice, 0, nil), false},
		"an unknown attribute":    {a.to(mad.MethodGet, 0x99, 0, nil), false},
		"an unknown method":       {a.to(0x44, mad.AttrServiceRecord, 0, nil), false},
		"method 0":                {a.to(0, mad.AttrServiceRecord, 0, nil), false},
	}
	for trap := mad.TrapMKey; trap <= mad.TrapSwitchPKey; trap++ {
		all[fmt.Sprintf("InformInfo Set of trap %d", trap)] = entry{a.inform(toAll(trap)), false}
		any := toAll(trap)
		any.Generic = 0xff
		all[fmt.Sprintf("InformInfo Set of trap %d, generic or not", trap)] = entry{a.inform(any), false}
	}
	security := toEverything()
	security.Type = uint16(mad.NoticeSecurity)
	all["InformInfo Set of all security notices"] = entry{a.inform(security), false}
	return all
}

// With the model on, what is not in the set gets no answer from the untrusted, and everything gets one from the trusted and with the
// model off.
func TestSetOfUntrustedRequests(t *testing.T) {
	for what := range newLab(t).requests(by(alpha)) {
		l := newLab(t, model)
		c := l.requests(by(alpha))[what]
		l.ok(by(alpha).join(mgid, alpha, mad.JoinFull))
		l.ok(by(alpha).setService(serviceAt(1, alpha, "docs")))
		if r := l.do(c.ask); r.dropped == c.inSet {
			t.Errorf("%s, untrusted: dropped: %v", what, r.dropped)
		} else if n := len(l.log); r.dropped && (n != 1 || l.log[0].Reason != NotAllowed || l.log[0].From.GUID != alpha || l.log[0].Name != "alpha") {
			t.Errorf("%s is logged as %v", what, l.log)
		}
		if r := l.do(l.requests(by(alpha).trusted())[what].ask); r.dropped {
			t.Errorf("%s, trusted: dropped", what)
		}
		l = newLab(t)
		if r := l.do(l.requests(by(alpha))[what].ask); r.dropped {
			t.Errorf("%s, model off: dropped", what)
		}
	}
}

// An SA_Key that is not 0 and not right is dropped and reported, with the model and without; so is each key where the directory
// has none.
func TestKeys(t *testing.T) {
	for _, f := range []func(*Options){func(*Options) {}, model} {
		for _, ours := range []mad.Key{theKey, 0} {
			for _, key := range []mad.Key{0, 1, theKey, theKey + 1, theKey << 8, 1<<64 - 1} {
				l := newLab(t, f)
				l.cfg.Key = ours
				a := by(alpha).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil)
				a.key = key
				wrong := key != 0 && key != ours
				if r := l.do(a); r.dropped != wrong {
					t.Errorf("key %#x, ours %#x: dropped: %v", uint64(key), uint64(ours), r.dropped)
				}
				if reported := len(l.log) == 1 && len(l.activity) == 1 && l.log[0].Reason == WrongKey; reported != wrong {
					t.Errorf("key %#x, ours %#x: log %v, events %v", uint64(key), uint64(ours), l.log, l.activity)
				}
				v := serviceAt(1, alpha, "docs")
				v.Key = mad.ServiceKey{1}
				l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, serviceMask|mad.ServiceMaskKey, v))
				a = by(beta).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, v)
				a.key = key
				if r := l.do(a); !r.dropped {
					got, err := mad.ParseServiceRecord(r.sa.Data[:mad.ServiceRecordLen])
					if trusted := got.Key != (mad.ServiceKey{}); err != nil || trusted != (key != 0 && key == ours) {
						t.Errorf("key %#x, ours %#x: trusted: %v, %v", uint64(key), uint64(ours), trusted, err)
					}
				}
			}
		}
	}
}

func TestOptionsOfGUIDInfoRecord(t *testing.T) {
	for _, c := range []struct {
		model, untrusted, byVF bool // the options
		vport, trusted         bool // the requester
		why                    Reason
	}{
		{model: true, untrusted: true, byVF: true},
		{model: true, untrusted: true, byVF: true, vport: true},
		{model: true, untrusted: false, byVF: true, why: UntrustedGUIDInfo},
		{model: true, untrusted: false, byVF: true, vport: true, why: UntrustedGUIDInfo},
		{model: true, untrusted: false, byVF: true, trusted: true},
		{model: true, untrusted: false, byVF: true, trusted: true, vport: true},
		{model: true, untrusted: true, byVF: false},
		{model: true, untrusted: true, byVF: false, trusted: true},
		{model: true, untrusted: true, byVF: false, vport: true, why: GUIDInfoByVPort},
		{model: true, untrusted: true, byVF: false, vport: true, trusted: true, why: GUIDInfoByVPort},
		{model: true, untrusted: false, byVF: false, why: UntrustedGUIDInfo},
		{model: true, untrusted: false, byVF: false, vport: true, why: GUIDInfoByVPort},
		{model: true, untrusted: false, byVF: false, trusted: true},
		{untrusted: false, byVF: false},
		{untrusted: false, byVF: false, vport: true},
	} {
		for _, m := range []mad.Method{mad.MethodSet, mad.MethodDelete} {
			l := newLab(t, func(o *Options) {
				o.EnhancedTrustModel, o.AllowUntrustedGUIDInfoRec, o.AllowGUIDInfoRecByVF = c.model, c.untrusted, c.byVF
			})
			a := by(alpha)
			if c.vport {
				a = byVPort(vport)
			}
			if c.trusted {
				a = a.trusted()
			}
			r := l.do(a.guids(m, l.ports[alpha].LID, 2, mad.GUIDInfoMaskGUID(0)))
			if r.dropped != (c.why != 0) || r.dropped && l.log[0].Reason != c.why {
				t.Errorf("%s, %+v: dropped: %v, %v", m, c, r.dropped, l.log)
			}
			if !c.vport {
				continue
			}
			a.from.VPort, a.sgid = vport, mad.GID{} // named by its host's daemon, without a GRH
			if r := l.do(a.guids(m, l.ports[alpha].LID, 2, mad.GUIDInfoMaskGUID(0))); r.dropped != (c.why != 0) {
				t.Errorf("%s, %+v, without GRH: dropped: %v", m, c, r.dropped)
			}
		}
	}
}

func TestProxies(t *testing.T) {
	foreign := by(relay)
	foreign.sgid = gidOf(0x777) // of a port behind the relay
	alphaFor := func(at mad.GUID) map[string]ask {
		l := newLab(t)
		return map[string]ask{
			"ServiceRecord Set":     by(alpha).setService(serviceAt(1, at, "docs")),
			"ServiceRecord Delete":  by(alpha).deleteService(serviceAt(1, at, "")),
			"MCMemberRecord Set":    by(alpha).join(mgid, at, mad.JoinFull),
			"MCMemberRecord Delete": by(alpha).leave(mgid, at, mad.JoinFull),
			"GUIDInfoRecord Set":    by(alpha).guids(mad.MethodSet, l.ports[at].LID, 3, mad.GUIDInfoMaskGUID(0)),
			"GUIDInfoRecord Delete": by(alpha).guids(mad.MethodDelete, l.ports[at].LID, 3, mad.GUIDInfoMaskGUID(0)),
		}
	}
	others := map[string]struct {
		ask
		proxy bool
	}{
		"a host for its vport":             {by(alpha).setService(serviceAt(1, vport, "docs")), false},
		"a vport for itself":               {byVPort(vport).setService(serviceAt(1, vport, "docs")), false},
		"a vport for its host":             {byVPort(vport).setService(serviceAt(1, alpha, "docs")), true},
		"a vport for another of its host":  {byVPort(vport).setService(serviceAt(1, vport2, "docs")), true},
		"another host for a vport":         {by(beta).setService(serviceAt(1, vport, "docs")), true},
		"a relay for a port behind it":     {foreign.setService(serviceAt(1, 0x777, "docs")), false},
		"a relay for a port of the fabric": {foreign.setService(serviceAt(1, beta, "docs")), true},
		"Get of another's":                 {by(alpha).to(mad.MethodGet, mad.AttrServiceRecord, serviceRID, serviceAt(1, beta, "")), false},
	}
	for what, a := range alphaFor(alpha) {
		others["own "+what] = struct {
			ask
			proxy bool
		}{a, false}
	}
	for what, a := range alphaFor(beta) {
		others["another's "+what] = struct {
			ask
			proxy bool
		}{a, true}
	}
	for what, c := range others {
		for _, o := range []struct{ model, allowed, trusted bool }{
			{true, false, false}, {true, false, true}, {true, true, false}, {false, false, false},
		} {
			l := newLab(t, func(x *Options) { x.EnhancedTrustModel, x.AllowUntrustedProxyRequests = o.model, o.allowed })
			a := c.ask
			if o.trusted {
				a = a.trusted()
			}
			want := c.proxy && o.model && !o.allowed && !o.trusted
			r := l.do(a)
			if r.dropped != want || want && l.log[0].Reason != UntrustedProxy {
				t.Errorf("%s, %+v: dropped: %v, %v", what, o, r.dropped, l.log)
			}
		}
	}
}

// kinds are what is limited: how a requester has the nth, for a port, and how it gives it up.
var kinds = map[string]struct {
	limit    func(*Options, int)
	have     func(a ask, n int, at mad.GUID) ask
	giveUp   func(a ask, n int, at mad.GUID) ask
	why      Reason
	proxies  bool
	countsOf func(PortView) int
}{
	"services": {
		func(o *Options, n int) { o.MaxNumSrvcs = n },
		func(a ask, n int, at mad.GUID) ask { return a.setService(serviceAt(uint64(n), at, "docs")) },
		func(a ask, n int, at mad.GUID) ask { return a.deleteService(serviceAt(uint64(n), at, "")) },
		TooManyServices, true, func(v PortView) int { return v.Services },
	},
	"groups": {
		func(o *Options, n int) { o.MaxNumMCGs = n },
		func(a ask, n int, at mad.GUID) ask { return a.join(mad.GID{0xff, 0x12, 15: byte(n)}, at, mad.JoinFull) },
		func(a ask, n int, at mad.GUID) ask {
			return a.leave(mad.GID{0xff, 0x12, 15: byte(n)}, at, mad.JoinFull)
		},
		TooManyGroups, true, func(v PortView) int { return v.Memberships },
	},
	"subscriptions": {
		func(o *Options, n int) { o.MaxNumEventSubs = n },
		func(a ask, n int, _ mad.GUID) ask { return a.inform(toAll(uint16(60 + n))) },
		func(a ask, n int, _ mad.GUID) ask {
			i := toAll(uint16(60 + n))
			i.Subscribe = 0
			return a.inform(i)
		},
		TooManySubscriptions, false, func(v PortView) int { return v.Subscriptions },
	},
}

func TestLimits(t *testing.T) {
	for what, k := range kinds {
		limited := func() *lab { return newLab(t, model, func(o *Options) { k.limit(o, 3) }) }
		fill := func(l *lab, a ask, at mad.GUID) {
			t.Helper()
			for n := range 3 {
				l.ok(k.have(a, n, at))
			}
			l.want(what+" beyond the limit", k.have(a, 3, at), true, 0)
		}

		l := limited()
		fill(l, by(alpha), alpha)
		if len(l.log) != 1 || len(l.activity) != 1 || l.activity[0].Reason != k.why || l.activity[0].From.GUID != alpha || l.activity[0].Request == "" {
			t.Errorf("%s: log %v, events %v", what, l.log, l.activity)
		}
		l.want(what+": a renewal", k.have(by(alpha), 1, alpha), false, mad.StatusOK)
		l.want(what+": the trusted have limits, too", k.have(by(alpha).trusted(), 3, alpha), true, 0)
		l.want(what+": another host", k.have(by(beta), 3, beta), false, mad.StatusOK)
		fill(l, byVPort(vport), vport) // of its own
		l.ok(k.giveUp(by(alpha), 0, alpha))
		l.want(what+": in a freed place", k.have(by(alpha), 3, alpha), false, mad.StatusOK)
		l.want(what+": and no second one", k.have(by(alpha), 4, alpha), true, 0)

		// A reconnect resets nothing; a host that stays away frees its places.
		l = limited()
		fill(l, by(alpha), alpha)
		l.down(alpha)
		l.wait(deadAfter - time.Second)
		l.up(Port{GUID: alpha, Name: "alpha"})
		l.want(what+": after a reconnect", k.have(by(alpha), 3, alpha), true, 0)
		l.down(alpha)
		l.wait(deadAfter)
		l.up(Port{GUID: alpha, Name: "alpha"})
		fill(l, by(alpha), alpha)

		// Nor does another LID, or a change of its vports.
		l.up(Port{GUID: alpha, Name: "alpha", LID: 999})
		l.want(what+": with another LID", k.have(by(alpha), 3, alpha), true, 0)

		if k.proxies { // charged to the requester
			l = limited()
			fill(l, by(alpha), beta)
			l.want(what+": of the proxy itself", k.have(by(alpha), 9, alpha), true, 0)
			fill(l, by(gamma), gamma)
			l.want(what+": of whom the proxy acts for", k.have(by(beta), 9, beta), false, mad.StatusOK)
			for _, v := range l.Ports() {
				if v.GUID == alpha && k.countsOf(v) != 3 || v.GUID == beta && k.countsOf(v) != 1 {
					t.Errorf("%s: %s has %d", what, v.Name, k.countsOf(v))
				}
			}
		}

		l = newLab(t, func(o *Options) { k.limit(o, 1) }) // without the model
		l.ok(k.have(by(alpha), 0, alpha))
		l.ok(k.have(by(alpha), 1, alpha))
		l = newLab(t, model) // 0: unlimited
		for n := range 100 {
			l.ok(k.have(by(alpha), n, alpha))
		}
	}
}

// A service whose lease has ended frees its place.
func TestLeaseFreesAPlace(t *testing.T) {
	l := newLab(t, model, func(o *Options) { o.MaxNumSrvcs = 1 })
	v := serviceAt(1, alpha, "docs")
	v.Lease = 5
	l.ok(by(alpha).setService(v))
	l.want("beside it", by(alpha).setService(serviceAt(2, alpha, "films")), true, 0)
	l.now = l.now.Add(5 * time.Second)
	l.want("after it", by(alpha).setService(serviceAt(2, alpha, "films")), false, mad.StatusOK)
}

// The port that a proxied record is about takes it over, and it is charged to that port from then on.
func TestPortTakesOverWhatAProxyRegistered(t *testing.T) {
	l := newLab(t, model, func(o *Options) { o.MaxNumSrvcs, o.MaxNumMCGs = 1, 1 })
	l.ok(by(alpha).setService(serviceAt(1, beta, "squatted")))
	l.ok(by(alpha).join(mgid, beta, mad.JoinFull))
	l.ok(by(beta).setService(serviceAt(1, beta, "docs")))
	l.ok(by(beta).join(mgid, beta, mad.JoinFull))
	l.want("alpha changes what was its own", by(alpha).setService(serviceAt(1, beta, "squatted")), false, mad.StatusDenied)
	l.want("alpha ends what was its own", by(alpha).leave(mgid, beta, mad.JoinFull), false, mad.StatusDenied)
	l.want("alpha's freed place", by(alpha).setService(serviceAt(2, alpha, "films")), false, mad.StatusOK)
	l.want("beta's place", by(beta).setService(serviceAt(2, beta, "films")), true, 0)
	l.want("beta's place in groups", by(beta).join(mad.GID{0xff, 9}, beta, mad.JoinFull), true, 0)
}

func TestSGIDSpoofing(t *testing.T) {
	get := func(from, sgid mad.GUID) ask {
		a := by(from).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil)
		a.sgid = gidOf(sgid)
		return a
	}
	noGRH := get(alpha, 0)
	noGRH.sgid = mad.GID{}
	otherNet := get(alpha, alpha)
	otherNet.sgid = mad.MakeGID(0xfec0<<48, alpha)
	for what, c := range map[string]struct {
		ask
		spoofed bool
	}{
		"its own":                             {get(alpha, alpha), false},
		"its vport's":                         {get(alpha, vport), false},
		"none":                                {noGRH, false},
		"another host's":                      {get(alpha, beta), true},
		"the manager's":                       {get(alpha, manager), true},
		"another host's vport's":              {get(beta, vport), true},
		"nobody's":                            {get(alpha, 0x777), true},
		"its own in another subnet":           {otherNet, true},
		"GUID 0":                              {get(alpha, 0), true},
		"a relay's own":                       {get(relay, relay), false},
		"a relay's of a port behind it":       {get(relay, 0x777), false},
		"a relay's of another in the fabric":  {get(relay, beta), false},
		"another host's, of which it says so": {get(alpha, relay), true},
	} {
		for _, o := range []func(*Options){func(*Options) {}, model} {
			l := newLab(t, o)
			if r := l.do(c.ask); r.dropped != c.spoofed || c.spoofed && l.log[0].Reason != SpoofedSGID {
				t.Errorf("%s: dropped: %v, %v", what, r.dropped, l.log)
			}
			if c.spoofed != (len(l.activity) == 1) {
				t.Errorf("%s: events %v", what, l.activity)
			}
			l = newLab(t, o, func(o *Options) { o.CheckSGIDSpoofing = false })
			if r := l.do(c.ask); r.dropped {
				t.Errorf("%s, unchecked: dropped", what)
			}
		}
	}
	// With the check off, a claimed SGID still makes nobody another.
	l := newLab(t, model, func(o *Options) { o.CheckSGIDSpoofing, o.AllowUntrustedProxyRequests = false, false })
	a := get(alpha, beta).setService(serviceAt(1, beta, "docs"))
	l.want("a service at the claimed address", a, true, 0)
	// Nor does a relay's claim of a port that is here.
	l = newLab(t, model)
	l.ok(by(beta).setService(serviceAt(1, beta, "docs")))
	l.want("a relay in another's name", get(relay, beta).deleteService(serviceAt(1, beta, "")), false, mad.StatusDenied)
}

// Without the model its base rules hold: keys, ServiceKey, security traps, SGIDs.
func TestBaseRules(t *testing.T) {
	l := newLab(t)
	for trap := mad.TrapMKey; trap <= mad.TrapSwitchPKey; trap++ {
		l.want(fmt.Sprintf("untrusted, trap %d", trap), by(alpha).inform(toAll(trap)), false, mad.StatusDenied)
		l.want(fmt.Sprintf("trusted, trap %d", trap), by(alpha).trusted().inform(toAll(trap)), false, mad.StatusOK)
	}
	l.want("security as a type", by(alpha).inform(func() mad.InformInfo { i := toEverything(); i.Type = 2; return i }()), false, mad.StatusDenied)
	l.want("another class version", func() ask { return by(alpha).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil) }(), false, mad.StatusOK)
}

// What is no request to a subnet administrator gets no answer.
func TestWhatIsNoRequest(t *testing.T) {
	l := newLab(t)
	for what, f := range map[string]func(*mad.MAD){
		"another class":   func(m *mad.MAD) { m[1] = byte(mad.ClassSubn) },
		"a response":      func(m *mad.MAD) { m[3] = byte(mad.MethodGetResp) },
		"a table's":       func(m *mad.MAD) { m[3] = byte(mad.MethodGetTableResp) },
		"an answer of 0":  func(m *mad.MAD) { m[3] = 0x80 },
		"a strange ACK":   func(m *mad.MAD) { m[24], m[25], m[26] = 1, byte(mad.RMPPAck), 1 },
		"a strange ABORT": func(m *mad.MAD) { m[24], m[25], m[26] = 1, byte(mad.RMPPAbort), 1 },
	} {
		p := by(alpha).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil).packet(1)
		f(&p.MAD)
		if out := l.Handle(l.now, Requester{GUID: alpha}, p); len(out) != 0 {
			t.Errorf("%s is answered", what)
		}
	}
	p := by(alpha).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil).packet(1)
	p.MAD[2] = 9
	out := l.Handle(l.now, Requester{GUID: alpha}, p)
	if len(out) != 1 || out[0].Packet.MAD.Header().Status != mad.StatusBadVersion {
		t.Errorf("another class version: %v", out)
	}
	l.want("a port that is not known", by(0x777).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil), true, 0)
	l.down(beta)
	l.want("a port that is down", by(beta).to(mad.MethodGet, mad.AttrClassPortInfo, 0, nil), true, 0)
}
