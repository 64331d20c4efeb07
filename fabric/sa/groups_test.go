package sa

import (
	"testing"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

func (l *lab) member(r result) mad.MCMemberRecord {
	l.Helper()
	m, err := mad.ParseMCMemberRecord(r.sa.Data[:mad.MCMemberRecordLen])
	if err != nil {
		l.Fatal(err)
	}
	return m
}

func TestGroupLivesWithItsFullMembers(t *testing.T) {
	l := newLab(t)
	l.want("a first member that is not full", by(alpha).join(mgid, alpha, mad.JoinSendOnly), false, mad.StatusReqInvalid)
	first := l.member(l.ok(by(alpha).join(mgid, alpha, mad.JoinFull)))
	if first.MLID < mad.FirstMulticastLID || first.MLID > mad.LastMulticastLID || first.QKey != 0x1b || first.JoinState != mad.JoinFull {
		t.Errorf("%+v", first)
	}
	if m := l.member(l.ok(by(beta).join(mgid, beta, mad.JoinNonMember))); m.MLID != first.MLID || m.JoinState != mad.JoinNonMember {
		t.Errorf("%+v", m)
	}
	l.ok(by(gamma).join(mgid, gamma, mad.JoinSendOnly))
	if m := l.member(l.ok(by(gamma).join(mgid, gamma, mad.JoinFull))); m.JoinState != mad.JoinFull|mad.JoinSendOnly {
		t.Errorf("joined twice: state %d", m.JoinState)
	}
	l.ok(by(alpha).leave(mgid, alpha, mad.JoinFull))
	l.want("what it is not", by(alpha).leave(mgid, alpha, mad.JoinFull), false, mad.StatusReqInvalid)
	if g := l.Groups(); len(g) != 1 || len(g[0].Members) != 2 {
		t.Errorf("%+v", g)
	}
	l.ok(by(gamma).leave(mgid, gamma, mad.JoinFull)) // the last full member
	if g := l.Groups(); len(g) != 0 {
		t.Errorf("%+v", g)
	}
	for _, p := range l.Ports() {
		if p.Memberships != 0 {
			t.Errorf("%s has %d memberships", p.Name, p.Memberships)
		}
	}
	l.ok(by(alpha).join(mgid, alpha, mad.JoinSendOnlyFull))
}

func TestJoinThatIsNone(t *testing.T) {
	l := newLab(t)
	l.ok(by(alpha).join(mgid, alpha, mad.JoinFull))
	m := mad.MCMemberRecord{MGID: mgid, PortGID: gidOf(beta), JoinState: mad.JoinFull, QKey: 0x1b, PKey: 0xffff}
	set := func(mask mad.Mask, f func(*mad.MCMemberRecord)) ask {
		m := m
		f(&m)
		return by(beta).to(mad.MethodSet, mad.AttrMCMemberRecord, mask, m)
	}
	same := func(*mad.MCMemberRecord) {}
	for what, c := range map[string]struct {
		ask
		status mad.Status
	}{
		"no PortGID":             {set(mad.MemberMaskMGID|mad.MemberMaskJoinState, same), mad.StatusInsufficientComponents},
		"no JoinState":           {set(mad.MemberMaskMGID|mad.MemberMaskPortGID, same), mad.StatusInsufficientComponents},
		"JoinState 0":            {set(leaveMask, func(m *mad.MCMemberRecord) { m.JoinState = 0 }), mad.StatusReqInvalid},
		"MGID of a port":         {set(leaveMask, func(m *mad.MCMemberRecord) { m.MGID = gidOf(alpha) }), mad.StatusReqInvalid},
		"PortGID of nobody":      {set(leaveMask, func(m *mad.MCMemberRecord) { m.PortGID = gidOf(0x77) }), mad.StatusInvalidGID},
		"another Q_Key":          {set(leaveMask|mad.MemberMaskQKey, func(m *mad.MCMemberRecord) { m.QKey = 1 }), mad.StatusReqInvalid},
		"a larger MTU":           {set(leaveMask|mad.MemberMaskMTU|mad.MemberMaskMTUSelector, func(m *mad.MCMemberRecord) { m.MTU = mad.MTU4096 }), mad.StatusReqInvalid},
		"a new group, no Q_Key":  {set(leaveMask|makeMask&^mad.MemberMaskQKey, func(m *mad.MCMemberRecord) { m.MGID[15] = 9 }), mad.StatusInsufficientComponents},
		"what the group is like": {set(leaveMask|makeMask|mad.MemberMaskMTU|mad.MemberMaskMTUSelector, func(m *mad.MCMemberRecord) { m.MTU = mad.MTU256 }), mad.StatusOK},
	} {
		l.want(what, c.ask, false, c.status)
	}
}

// Without an MGID the directory chooses one.
func TestGroupWithoutMGID(t *testing.T) {
	l := newLab(t)
	seen := map[mad.GID]bool{}
	for range 3 {
		m := l.member(l.ok(by(alpha).join(mad.GID{}, alpha, mad.JoinFull)))
		if !m.MGID.Multicast() || seen[m.MGID] {
			t.Errorf("%s", m.MGID)
		}
		seen[m.MGID] = true
	}
}

// The untrusted see groups and their own membership, the trusted all members.
func TestMembersAreShownToTheTrusted(t *testing.T) {
	l := newLab(t)
	for _, g := range []mad.GUID{alpha, beta} {
		l.ok(by(g).join(mgid, g, mad.JoinFull))
	}
	l.ok(by(gamma).join(mad.GID{0xff, 5}, vport, mad.JoinFull))
	rows := func(a ask, mask mad.Mask, port mad.GUID) (list []mad.MCMemberRecord) {
		for _, b := range l.rows(l.do(a.table(mad.AttrMCMemberRecord, mask, mad.MCMemberRecord{PortGID: gidOf(port), MGID: mgid})), mad.MCMemberRecordLen) {
			m, err := mad.ParseMCMemberRecord(b)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, m)
		}
		return list
	}
	for _, m := range rows(by(alpha), 0, 0) {
		if m.PortGID != (mad.GID{}) || m.JoinState != 0 || m.ProxyJoin {
			t.Errorf("untrusted: %+v", m)
		}
	}
	if n := len(rows(by(alpha), 0, 0)); n != 2 {
		t.Errorf("%d groups", n)
	}
	if own := rows(by(alpha), mad.MemberMaskPortGID, alpha); len(own) != 1 || own[0].JoinState != mad.JoinFull {
		t.Errorf("own: %+v", own)
	}
	if n := len(rows(by(alpha), mad.MemberMaskPortGID, beta)); n != 0 {
		t.Errorf("another's: %d", n)
	}
	all := rows(by(alpha).trusted(), 0, 0)
	if len(all) != 3 {
		t.Errorf("trusted: %+v", all)
	}
	for _, m := range all {
		if m.ProxyJoin != (m.PortGID == gidOf(vport)) {
			t.Errorf("trusted: %+v", m)
		}
	}
	if n := len(rows(by(alpha).trusted(), mad.MemberMaskMGID, 0)); n != 2 {
		t.Errorf("trusted, of one group: %d", n)
	}
}

// A group goes with the host that was its last full member; a vport's membership is its own.
func TestMembershipsGoWithTheirPort(t *testing.T) {
	l := newLab(t)
	l.ok(by(alpha).join(mgid, alpha, mad.JoinFull))
	l.ok(byVPort(vport).join(mgid, vport, mad.JoinFull))
	l.ok(by(beta).join(mgid, beta, mad.JoinSendOnly))
	l.down(alpha)
	l.wait(deadAfter)
	if g := l.Groups(); len(g) != 0 {
		t.Errorf("%+v", g)
	}
	if u := l.ports[beta].used; u.memberships != 0 {
		t.Errorf("beta has %d", u.memberships)
	}
}
