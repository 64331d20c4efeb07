package directory

import (
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// A manager that tells of events without end has its hosts look at few of them, and once in a while at all records.
func TestEventsOfAManagerWithoutEnd(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	s.start(defaults, "alpha")
	alpha, beta := s.hosts[0], s.hosts[1]
	alpha.awaitSubscription(beta)
	up := mad.Notice{Generic: true, Type: mad.NoticeSM, ProducerType: mad.ProducerManager, TrapNumber: mad.TrapGIDInService}
	mad.GIDDetails{GID: gid(GUIDOf("beta"))}.Set(&up)
	report := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodReport, Attribute: mad.AttrNotice}}
	up.Append(report.Data[:0])
	m, at, err := beta.dir.asMember()
	if err != nil {
		t.Fatal(err)
	}
	b := report.MAD()
	begun := time.Now()
	for range 100_000 {
		m.report(at, &b)
	}
	most := eventBurst + int(eventRate*time.Since(begun).Seconds()) + 10 // and those of the fabric's start
	beta.mu.Lock()
	n := len(beta.events)
	beta.mu.Unlock()
	if n > most || n < eventBurst {
		t.Errorf("it looks at %d of them, of which %d are within its limit", n, most)
	}
	beta.awaitKind(EventsLost)
}

// awaitKind waits for an event of a kind.
func (h *testHost) awaitKind(kind EventKind) {
	h.site.t.Helper()
	until(h.site.t, func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, e := range h.events {
			if e.Kind == kind {
				return true
			}
		}
		return false
	})
}
