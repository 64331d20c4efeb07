package sa

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Where the options have no limit, memory still has one, and who exceeds it is told.
func TestOurOwnLimits(t *testing.T) {
	l := newLab(t)
	for n := range MaxServicesPerPort {
		l.ok(by(alpha).setService(serviceAt(uint64(n), alpha, "docs")))
	}
	l.want("a service too many", by(alpha).setService(serviceAt(1<<40, alpha, "docs")), false, mad.StatusNoResources)
	l.want("of a vport of that host", byVPort(vport).setService(serviceAt(1<<40, vport, "docs")), false, mad.StatusNoResources)
	l.want("of another", by(beta).setService(serviceAt(1<<40, beta, "docs")), false, mad.StatusOK)
	for n := range MaxMembershipsPerPort {
		l.ok(by(alpha).join(mad.GID{0xff, 14: byte(n >> 8), 15: byte(n)}, alpha, mad.JoinFull))
	}
	l.want("a group too many", by(alpha).join(mad.GID{0xff, 1}, alpha, mad.JoinFull), false, mad.StatusNoResources)
	for n := range MaxSubscriptionsPerPort {
		l.ok(by(alpha).inform(toAll(uint16(1000 + n))))
	}
	l.want("a subscription too many", by(alpha).inform(toAll(1)), false, mad.StatusNoResources)
	l.want("all paths, if they are too many", func() ask {
		for n := range 250 {
			l.up(Port{GUID: mad.GUID(0x20000 + n)})
		}
		return by(alpha).table(mad.AttrPathRecord, 0, nil)
	}(), false, mad.StatusNoResources)
}

// Who asks without end is told to come again, and others are not.
func TestQuestionsWithoutEnd(t *testing.T) {
	l := newLab(t)
	for h := range 200 {
		l.up(Port{GUID: mad.GUID(0x20000 + h)})
	}
	all := by(alpha).table(mad.AttrPathRecord, mad.PathMaskPKey, mad.PathRecord{PKey: 7}) // 42,025 paths, of which none is that
	n := 0
	for ; n < 1000 && l.do(all).status == mad.StatusOK; n++ {
	}
	if n < 50 || n > 200 {
		t.Errorf("%d questions about all paths at once", n)
	}
	for what, c := range map[string]ask{
		"a question about all": all,
		"a question about one": by(alpha).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, serviceAt(1, alpha, "")),
	} {
		l.want(what, c, false, mad.StatusBusy)
	}
	l.want("what is no question", by(alpha).setService(serviceAt(1, alpha, "docs")), false, mad.StatusOK)
	l.want("another's question", by(beta).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, serviceAt(1, alpha, "")), false, mad.StatusOK)
	l.wait(time.Second)
	l.want("a second later", by(alpha).to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, serviceAt(1, alpha, "")), false, mad.StatusOK)
}

// Who gives and takes alias GUIDs without end has the directory look for what their vports had registered, and is told to come again.
func TestAliasesThatComeAndGoWithoutEnd(t *testing.T) {
	l := newLab(t)
	for n := range MaxServicesPerPort {
		l.ok(by(alpha).setService(serviceAt(uint64(n), alpha, "docs")))
	}
	lid := l.ports[beta].LID
	change := func(round int) ask {
		var guids [mad.GUIDsPerBlock]mad.GUID
		for i := range guids {
			guids[i] = beta + mad.GUID(100+8*(round%2)+i)
		}
		return by(beta).guids(mad.MethodSet, lid, 1, mad.GUIDInfoMaskGUIDs, guids[:]...)
	}
	n := 0
	for ; n < 1000 && l.do(change(n)).status == mad.StatusOK; n++ {
	}
	if n < 40 || n > 100 { // each takes 8 aliases away, and looks at 10,000 services for each of them
		t.Errorf("%d changes of 8 aliases at once", n)
	}
	l.want("one more change", change(n), false, mad.StatusBusy)
	l.want("another's", by(alpha).guids(mad.MethodSet, l.ports[alpha].LID, 1, mad.GUIDInfoMaskGUID(3)), false, mad.StatusOK)
	l.wait(time.Second)
	l.want("a second later", change(n), false, mad.StatusOK)
}

// A user of a host who asks without end leaves the host its part.
func TestQuestionsOfAVPortWithoutEnd(t *testing.T) {
	l := newLab(t)
	for n := range MaxServicesPerPort {
		l.ok(by(beta).setService(serviceAt(uint64(n), beta, "docs")))
	}
	one := func(a ask) ask {
		return a.to(mad.MethodGet, mad.AttrServiceRecord, mad.ServiceMaskID, serviceAt(1, beta, ""))
	}
	n := 0
	for ; n < 1000 && l.do(one(byVPort(vport))).status == mad.StatusOK; n++ {
	}
	if n < 100 || n > 500 {
		t.Errorf("%d questions at once", n)
	}
	l.want("the vport's", one(byVPort(vport)), false, mad.StatusBusy)
	l.want("its host's", one(by(alpha)), false, mad.StatusOK)
}
