package sa

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// seen returns what the reports that went to a port said: "64 beta", "vendor 1 alpha".
func (l *lab) seen(to mad.GUID) (list []string) {
	l.Helper()
	for _, n := range l.reports(to) {
		what := fmt.Sprint(n.TrapNumber)
		if !n.Generic {
			what = "vendor " + what
		}
		for _, e := range l.subjects(&n) {
			if p, _ := l.portOf(e.gid); p != nil && n.TrapNumber < mad.TrapMKey {
				what += " " + p.Name
			}
		}
		list = append(list, what)
	}
	l.sent = nil
	return list
}

func vendors(device uint16) mad.InformInfo {
	i := toAll(device)
	i.Generic, i.ProducerType = 0, mad.Vendor
	return i
}

// Each event reaches those who have subscribed to it, and nobody else.
func TestEventsReachTheirSubscribers(t *testing.T) {
	lidOf := func(l *lab, g mad.GUID) mad.LID { return l.ports[g].LID }
	for what, c := range map[string]struct {
		to   func(l *lab) mad.InformInfo
		want []string
	}{
		"all":              {func(*lab) mad.InformInfo { return toEverything() }, []string{"65 gamma", "64 gamma", "vendor 1 alpha", "vendor 3 alpha", "vendor 2 alpha", "66", "67", "vendor 4 alpha beta"}},
		"generic":          {func(*lab) mad.InformInfo { return toAll(mad.InformAllTraps) }, []string{"65 gamma", "64 gamma", "66", "67"}},
		"hosts that go":    {func(*lab) mad.InformInfo { return toAll(mad.TrapGIDOutOfService) }, []string{"65 gamma"}},
		"hosts that come":  {func(*lab) mad.InformInfo { return toAll(mad.TrapGIDInService) }, []string{"64 gamma"}},
		"exports that go":  {func(*lab) mad.InformInfo { return vendors(mad.VendorExportGone) }, []string{"vendor 2 alpha"}},
		"our vendor's":     {func(*lab) mad.InformInfo { return vendors(mad.InformAllTraps) }, []string{"vendor 1 alpha", "vendor 3 alpha", "vendor 2 alpha", "vendor 4 alpha beta"}},
		"another vendor's": {func(*lab) mad.InformInfo { i := vendors(mad.InformAllTraps); i.ProducerType = 0x1405; return i }, nil},
		"one host's by GID": {func(*lab) mad.InformInfo { i := toEverything(); i.GID = gidOf(alpha); return i },
			[]string{"vendor 1 alpha", "vendor 3 alpha", "vendor 2 alpha", "vendor 4 alpha beta"}},
		"one host's by LID": {func(l *lab) mad.InformInfo {
			i := toEverything()
			i.LIDBegin, i.LIDEnd = lidOf(l, gamma), 0
			return i
		}, []string{"65 gamma", "64 gamma"}},
		"a range of LIDs": {func(l *lab) mad.InformInfo {
			i := toEverything()
			i.LIDBegin, i.LIDEnd = lidOf(l, alpha), lidOf(l, beta)
			return i
		}, []string{"vendor 1 alpha", "vendor 3 alpha", "vendor 2 alpha", "vendor 4 alpha beta"}},
		"a range without them": {func(*lab) mad.InformInfo { i := toEverything(); i.LIDBegin, i.LIDEnd = 900, 999; return i }, nil},
		"of a type":            {func(*lab) mad.InformInfo { i := toEverything(); i.Type = uint16(mad.NoticeSM); return i }, []string{"65 gamma", "64 gamma", "66", "67"}},
	} {
		l := newLab(t)
		l.ok(by(beta).inform(c.to(l)))
		l.sent = nil
		l.down(gamma)
		l.wait(time.Second)
		l.up(Port{GUID: gamma, Name: "gamma"})
		v := serviceAt(1, alpha, "docs")
		set := by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, serviceMask|dataMask, v)
		l.ok(set)
		l.ok(set) // a renewal is no event
		v.Data64[0] = 1 << 30
		l.ok(by(alpha).to(mad.MethodSet, mad.AttrServiceRecord, serviceMask|dataMask, v))
		l.ok(by(alpha).deleteService(v))
		l.ok(by(alpha).join(mgid, alpha, mad.JoinFull))
		l.ok(by(alpha).leave(mgid, alpha, mad.JoinFull))
		n := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: mad.VendorPathGone}
		mad.PathDetails{SGID: gidOf(alpha), DGID: gidOf(beta)}.Set(&n)
		l.sent = append(l.sent, l.Announce(l.now, n)...)
		for _, other := range []mad.GUID{alpha, manager, gamma} {
			if got := l.reports(other); len(got) != 0 {
				t.Errorf("%s: %v went to another", what, got)
			}
		}
		if got := l.seen(beta); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

func TestSubscriptionEnds(t *testing.T) {
	l := newLab(t)
	i := toAll(mad.TrapGIDOutOfService)
	l.ok(by(beta).inform(i))
	l.ok(by(alpha).inform(i))
	i.Subscribe = 0
	l.ok(by(beta).inform(i))
	l.want("a second time", by(beta).inform(i), false, mad.StatusReqInvalid)
	l.want("what nobody has", by(beta).inform(func() mad.InformInfo { i := i; i.TrapNumber = 1; return i }()), false, mad.StatusReqInvalid)
	l.want("neither", by(beta).inform(func() mad.InformInfo { i := i; i.Subscribe = 2; return i }()), false, mad.StatusReqInvalid)
	l.down(gamma)
	if len(l.reports(beta)) != 0 || len(l.reports(alpha)) != 1 {
		t.Errorf("beta %v, alpha %v", l.reports(beta), l.reports(alpha))
	}
}

// Nobody unsubscribes another, and a vport's subscription is not its host's.
func TestSubscriptionIsItsRequesters(t *testing.T) {
	l := newLab(t)
	l.ok(by(beta).inform(toAll(64)))
	l.ok(byVPort(vport).inform(toAll(64)))
	i := toAll(64)
	i.Subscribe = 0
	l.want("another host", by(gamma).inform(i), false, mad.StatusReqInvalid)
	l.want("another vport", byVPort(vport2).inform(i), false, mad.StatusReqInvalid)
	if s := l.Subscriptions(); len(s) != 2 || s[1].OwnerName != "beta" || s[0].Owner.VPort != vport {
		t.Errorf("%+v", s)
	}
	l.sent = nil
	l.down(gamma)
	l.wait(time.Second)
	l.up(Port{GUID: gamma, Name: "gamma"})
	out := l.take(alpha)
	if len(out) != 1 || out[0].Packet.GRH.DGID != gidOf(vport) || out[0].Packet.GRH.SGID != gidOf(manager) {
		t.Errorf("%+v", out)
	}
}

// The untrusted see their own subscriptions, the trusted all.
func TestSubscriptionsAreListed(t *testing.T) {
	l := newLab(t)
	l.ok(by(beta).inform(toAll(64)))
	l.ok(by(gamma).inform(toAll(65)))
	l.ok(by(gamma).inform(toAll(66)))
	count := func(a ask) int {
		return len(l.rows(l.do(a.table(mad.AttrInformInfoRecord, 0, nil)), mad.InformInfoRecordLen))
	}
	if b, g, a, all := count(by(beta)), count(by(gamma)), count(by(alpha)), count(by(alpha).trusted()); b != 1 || g != 2 || a != 0 || all != 3 {
		t.Errorf("beta sees %d, gamma %d, alpha %d, who is trusted %d", b, g, a, all)
	}
	rows := l.rows(l.do(by(alpha).trusted().table(mad.AttrInformInfoRecord, mad.InformMaskSubscriberGID|mad.InformMaskTrapNumber,
		mad.InformInfoRecord{SubscriberGID: gidOf(gamma), InformInfo: mad.InformInfo{TrapNumber: 66}})), mad.InformInfoRecordLen)
	if len(rows) != 1 {
		t.Errorf("%d are gamma's to trap 66", len(rows))
	}
}

// A report is sent until it is answered, its port is down, or the subscription ends.
func TestReportsAreRepeatedUntilTheyAreAnswered(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(l *lab)
		more bool
	}{
		"no answer": {func(*lab) {}, true},
		"answered":  {func(l *lab) { l.answer(beta) }, false},
		"answered by another": {func(l *lab) {
			for _, o := range l.sent {
				m, _ := mad.ParseSA(&o.Packet.MAD)
				m.Method = mad.MethodReportResp
				l.Handle(l.now, Requester{GUID: alpha}, mad.Packet{MAD: m.MAD()})
			}
		}, true},
		"port down": {func(l *lab) { l.down(beta) }, false},
		"unsubscribed": {func(l *lab) {
			i := toAll(mad.TrapGIDOutOfService)
			i.Subscribe = 0
			l.ok(by(beta).inform(i))
		}, false},
	} {
		l := newLab(t)
		l.ok(by(beta).inform(toAll(mad.TrapGIDOutOfService)))
		l.down(gamma)
		l.wait(5 * time.Second)
		if n := len(l.reports(beta)); n != 2 {
			t.Errorf("%s: %d reports in 5 s", what, n)
		}
		first := l.take(beta)
		if first[0] != first[1] {
			t.Errorf("%s: repeated as another transaction", what)
		}
		l.sent = first[1:]
		c.end(l)
		l.take(beta)
		l.wait(time.Hour)
		n := len(l.reports(beta))
		if (n > 0) != c.more || n > 60 {
			t.Errorf("%s: %d more in an hour", what, n)
		}
	}
}

// A port that does not answer is sent a window of reports, and then one that says that events are lost.
func TestPortThatDoesNotKeepUp(t *testing.T) {
	l := newLab(t)
	l.ok(by(beta).inform(toEverything()))
	l.sent = nil
	flap := func(n int) {
		for range n {
			l.down(gamma)
			l.up(Port{GUID: gamma, Name: "gamma"})
		}
	}
	flap(50)
	if n := len(l.take(beta)); n != reportWindow {
		t.Errorf("%d reports without an answer", n)
	}
	flap(2 * maxReports)
	for _, p := range l.Ports() {
		if p.Waiting > maxReports+reportWindow+1 {
			t.Errorf("%d wait for %s", p.Waiting, p.Name)
		}
	}
	l.wait(10 * time.Second)
	lost := false
	for range 2 * maxReports {
		list := l.reports(beta)
		if len(list) == 0 {
			break
		}
		for _, n := range list {
			lost = lost || n.TrapNumber == mad.VendorEventsLost && !n.Generic
		}
		packets := l.take(beta)
		l.sent = nil
		for _, o := range packets {
			m, _ := mad.ParseSA(&o.Packet.MAD)
			m.Method = mad.MethodReportResp
			l.sent = append(l.sent, l.Handle(l.now, Requester{GUID: beta}, mad.Packet{MAD: m.MAD()})...)
		}
	}
	if !lost || l.Subscriptions()[0].Lost == 0 {
		t.Errorf("told of the loss: %v, %+v", lost, l.Subscriptions())
	}
	if n := l.Ports()[2].Waiting; n != 0 {
		t.Errorf("%d still wait", n)
	}
}

// A host that changes its services without end costs others a report a second.
func TestFloodOfEvents(t *testing.T) {
	l := newLab(t)
	l.ok(by(beta).inform(toEverything()))
	l.sent = nil
	v := serviceAt(1, alpha, "docs")
	for range 1000 {
		l.ok(by(alpha).setService(v))
		l.ok(by(alpha).deleteService(v))
		l.answer(beta)
	}
	if n := l.Subscriptions()[0].Reported; n != noticeBurst-1 { // and one for its coming up
		t.Errorf("%d of 2000 events are reported at once", n)
	}
	l.wait(time.Second)
	got := l.reports(beta)
	if len(got) != 1 || got[0].TrapNumber != mad.VendorEventsLost {
		t.Errorf("then %+v", got)
	}
	l.answer(beta)
	for range 3 * noticeRate {
		l.ok(by(alpha).setService(v))
		l.ok(by(alpha).deleteService(v))
		l.answer(beta)
	}
	l.wait(time.Second)
	if got = l.reports(beta); len(got) != 1 || got[0].TrapNumber != mad.VendorEventsLost {
		t.Errorf("when it goes on %+v", got)
	}
	l.answer(beta)
	l.ok(by(gamma).setService(serviceAt(1, gamma, "films")))
	if got := l.seen(beta); !slices.Equal(got, []string{"vendor 1 gamma"}) {
		t.Errorf("of another host: %q", got)
	}
}

// What the trusted alone may see does not reach a subscription that was made without the key, or renewed without it.
func TestSecurityNoticesReachTheTrusted(t *testing.T) {
	l := newLab(t)
	l.ok(by(alpha).trusted().inform(toEverything()))
	l.ok(by(beta).inform(toEverything()))
	l.sent = nil
	bad := mad.Notice{Generic: true, Type: mad.NoticeSecurity, TrapNumber: mad.TrapMKey}
	mistyped := mad.Notice{Generic: true, Type: mad.NoticeInfo, TrapNumber: mad.TrapPKey}
	vendors := mad.Notice{Type: mad.NoticeSecurity, ProducerType: mad.Vendor, TrapNumber: 9}
	for _, n := range []mad.Notice{bad, mistyped, vendors} {
		l.sent = append(l.sent, l.Announce(l.now, n)...)
	}
	if a, b := len(l.reports(alpha)), len(l.reports(beta)); a != 3 || b != 0 {
		t.Errorf("who is trusted sees %d, who is not %d", a, b)
	}
	l.sent = nil
	l.ok(by(alpha).inform(toEverything()))
	l.sent = append(l.sent, l.Announce(l.now, bad)...)
	if n := len(l.reports(alpha)); n != 0 {
		t.Errorf("who was trusted sees %d", n)
	}
}

// Another SA_Key: who had the old one is shown nothing more of security, of what waits for an answer either, and all else as before.
func TestAnotherKeyEndsTrust(t *testing.T) {
	l := newLab(t)
	l.ok(by(alpha).trusted().inform(toEverything()))
	l.sent = nil
	bad := mad.Notice{Generic: true, Type: mad.NoticeSecurity, TrapNumber: mad.TrapMKey}
	for range reportWindow + 5 {
		l.sent = append(l.sent, l.Announce(l.now, bad)...)
	}
	if n := len(l.reports(alpha)); n != reportWindow {
		t.Fatalf("%d reports are sent at first", n)
	}
	l.sent = nil
	l.sent = append(l.sent, l.Announce(l.now, l.gidNotice(mad.TrapGIDInService, gidOf(beta)))...) // waits
	l.Configure(DefaultOptions(), theKey, 7)
	l.wait(time.Second)
	if n := len(l.reports(alpha)); n != 0 {
		t.Errorf("with the same key %d reports are sent without an answer", n)
	}
	l.Configure(DefaultOptions(), theKey+1, 7)
	l.sent = append(l.sent, l.Announce(l.now, bad)...)
	l.wait(5 * maxReportTimeout)
	got := l.reports(alpha)
	for _, n := range got {
		if n.Security() {
			t.Fatalf("a host without the new key is shown %+v", n)
		}
	}
	if len(got) == 0 {
		t.Error("what is none of security does not come any more")
	}
	a := by(alpha).to(mad.MethodGet, mad.AttrSMInfoRecord, 0, nil)
	r := l.do(a)
	if info, err := mad.ParseSMInfoRecord(r.sa.Data[:mad.SMInfoRecordLen]); err != nil || info.SMInfo.Priority != 7 || info.SMInfo.SMKey != 0 {
		t.Errorf("SMInfoRecord %+v, %v", info, err)
	}
}

// The same of hosts and groups that come and go; and who never answers has one report more waiting, not one each second.
func TestFloodsOfOtherEvents(t *testing.T) {
	for what, f := range map[string]func(l *lab){
		"groups": func(l *lab) {
			l.ok(by(alpha).join(mgid, alpha, mad.JoinFull))
			l.ok(by(alpha).leave(mgid, alpha, mad.JoinFull))
		},
		"reconnects": func(l *lab) {
			l.down(alpha)
			l.up(Port{GUID: alpha, Name: "alpha"})
		},
	} {
		l := newLab(t)
		l.ok(by(beta).inform(toEverything()))
		for range 3 * noticeBurst {
			f(l)
		}
		waiting := l.Ports()[2].Waiting
		if waiting > noticeBurst {
			t.Errorf("%s: %d reports wait", what, waiting)
		}
		for range 100 {
			for range 2 * noticeRate {
				f(l)
			}
			l.wait(time.Second)
		}
		if n := l.Ports()[2].Waiting; n > maxReports+reportWindow+1 {
			t.Errorf("%s: %d reports wait", what, n)
		}
		lost := 0
		for _, r := range l.ports[beta].outbox.queue {
			if r.lost {
				lost++
			}
		}
		if lost > 1 {
			t.Errorf("%s: %d reports wait that say that others are lost", what, lost)
		}
	}
}
