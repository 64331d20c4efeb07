package directory

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Questions are numbered one after the other, so each manager knows which numbers those to another have: its answers to them are none.
func TestAnswerOfWhoWasNotAsked(t *testing.T) {
	asked, other := newPort(1), newPort(2)
	for name, table := range map[string]bool{"a question": false, "a table": true} {
		c := newCalls()
		id, one := c.begin(asked, table)
		m := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodGetResp, Attribute: mad.AttrServiceRecord, TransactionID: id}}
		b := m.MAD()
		if _, send, ok := c.take(other, &b); send || ok || len(one.answer) > 0 {
			t.Errorf("%s is answered by who was not asked", name)
		}
		if _, _, ok := c.take(asked, &b); !ok || len(one.answer) != 1 {
			t.Errorf("%s is not answered by who was asked", name)
		}
	}
}

// heard has what comes on a stream.
type heard chan mad.Header

// Receive implements gsi.Handler.
func (h heard) Receive(_ *gsi.Link, message []byte) {
	if p, err := mad.ParsePacket(message); err == nil {
		h <- p.MAD.Header()
	}
}

// A manager that is not the master has no directory for anybody: it answers who asks it what it is, and nothing of the SA.
func TestStandbyAnswersNothingOfTheSA(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	for _, h := range s.hosts[:2] {
		c := settings(t, "", nil)
		c.PollingRetryNumber = 100 // or a slow machine makes the standby the master
		h.start(c, "alpha", "beta")
	}
	master, standby := s.hosts[0], s.hosts[1]
	until(t, func() bool {
		if !master.dir.manages().isMaster() {
			master, standby = standby, master
		}
		return master.dir.manages().isMaster() && !standby.dir.manages().isMaster() && standby.masterOf() == master.name
	})
	gamma := s.host("gamma")
	for _, h := range []*testHost{standby, master} {
		got := make(heard, 16)
		r := gamma.speak(h.name, got)
		for _, m := range []mad.MAD{
			request(mad.MethodGet, mad.AttrClassPortInfo, 0, 1, nil),
			request(mad.MethodSet, mad.AttrServiceRecord, serviceAll, 2, mad.ServiceRecord{ID: 1, GID: gid(GUIDOf("gamma")), Lease: 60}),
			(&mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodGet, Attribute: mad.AttrSMInfo, TransactionID: 3}}).MAD(),
		} {
			if err := r.send(m); err != nil {
				t.Fatal(err)
			}
		}
		var ids []uint64
		for len(ids) == 0 || ids[len(ids)-1] != 3 { // which is dealt with last
			select {
			case head := <-got:
				ids = append(ids, head.TransactionID)
			case <-time.After(30 * time.Second):
				t.Fatalf("%s has answered %v", h.name, ids)
			}
		}
		want := 1
		if h == master {
			want = 3
		}
		if len(ids) != want {
			t.Errorf("%s has answered %v", h.name, ids)
		}
		r.Close()
	}
}

// answers has the MADs that come on a stream.
type answers chan mad.MAD

// Receive implements gsi.Handler.
func (a answers) Receive(_ *gsi.Link, message []byte) {
	if p, err := mad.ParsePacket(message); err == nil {
		a <- p.MAD
	}
}

// No host gets the GUID of a peer that is away as an alias, nor one of that peer's range: requests of its vports would pass for the peer's.
func TestAliasOfAPeerThatIsAway(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha := s.host("alpha")
	alpha.start(settings(t, "", nil), "alpha")
	until(t, alpha.dir.manages().isMaster)
	got := make(answers, 16)
	r := s.host("gamma").speak("alpha", got)
	var lid mad.LID
	until(t, func() bool {
		k := alpha.dir.keeping()
		k.mu.Lock()
		defer k.mu.Unlock()
		h := k.hosts[GUIDOf("gamma")]
		if h != nil {
			lid = h.lid
		}
		return h != nil
	})
	for i, c := range []struct {
		guid mad.GUID
		want bool
	}{{GUIDOf("beta"), false}, {GUIDOf("beta") ^ 1, false}, {GUIDOf("gamma") ^ 1, true}} {
		record := mad.GUIDInfoRecord{LID: lid, GUIDs: [mad.GUIDsPerBlock]mad.GUID{1: c.guid}}
		if err := r.send(request(mad.MethodSet, mad.AttrGUIDInfoRecord, mad.GUIDInfoMaskLID|mad.GUIDInfoMaskBlockNum|mad.GUIDInfoMaskGUID(1), uint64(i), record)); err != nil {
			t.Fatal(err)
		}
		select {
		case m := <-got:
			sa, err := mad.ParseSA(&m)
			if err != nil {
				t.Fatal(err)
			}
			if has, err := mad.ParseGUIDInfoRecord(sa.Data[:mad.GUIDInfoRecordLen]); err != nil || sa.Status != mad.StatusOK || (has.GUIDs[1] == c.guid) != c.want {
				t.Errorf("alias %s: status %v, it has %+v, %v", c.guid, sa.Status, has, err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("there is no answer")
		}
	}
}
