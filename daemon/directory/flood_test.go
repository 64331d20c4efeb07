package directory

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/verbs"
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
	for range 20_000 {
		m.report(at, &b)
	}
	n := 0
	beta.mu.Lock()
	for _, e := range beta.events {
		if e.Kind == HostUp { // not those that say that some are lost, of which a slow machine sees several
			n++
		}
	}
	beta.mu.Unlock()
	most := eventBurst + int(eventRate*time.Since(begun).Seconds()) + 10 // and those of the fabric's start
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

// raw is the stream of a host that speaks MADs of its own making.
type raw struct {
	*gsi.Link
	host *testHost
}

// speak makes a stream of a host that has no part in the fabric with a manager.
func (h *testHost) speak(manager string, take gsi.Handler) *raw {
	h.site.t.Helper()
	ctx, cancel := context.WithTimeout(h.site.t.Context(), 30*time.Second)
	defer cancel()
	var l *gsi.Link
	var err error
	until(h.site.t, func() bool { // a manager that begins refuses hosts, which try again
		l, err = gsi.Dial(ctx, h.ulp, verbs.DialConfig{Remote: h.site.host(manager).net.Addr(7471), Transport: h.net.Transport()}, take)
		return !errors.Is(err, gsi.ErrRefused)
	})
	if err != nil {
		h.site.t.Fatal(err)
	}
	h.site.t.Cleanup(l.Close)
	return &raw{l, h}
}

func (r *raw) send(b mad.MAD) error {
	p := mad.Packet{GRH: mad.GRH{HopLimit: 1, SGID: gid(GUIDOf(r.host.name)), DGID: gid(GUIDOf("alpha"))}, MAD: b}
	return r.Send(r.host.site.t.Context(), p.Append(nil))
}

type deaf struct{}

func (deaf) Receive(*gsi.Link, []byte) {}

// How many events a host may have forwarded follows its identity: another stream is no new allowance.
func TestEventsOfAHostThatReconnects(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	for _, h := range s.hosts[:2] {
		h.start(conf.Default(), "alpha")
	}
	alpha.awaitSubscription(beta)
	n := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: mad.VendorPathGone}
	mad.PathDetails{SGID: gid(GUIDOf("gamma")), DGID: gid(GUIDOf("beta"))}.Set(&n)
	smp := mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodTrap, Attribute: mad.AttrNotice}}
	copy(smp.Data[:], n.Append(nil)[:mad.SMPNoticeLen])
	begun := time.Now()
	for range 8 {
		r := gamma.speak("alpha", deaf{})
		for range trapBurst + 50 {
			if err := r.send(smp.MAD()); err != nil {
				t.Fatal(err)
			}
		}
		r.Close()
	}
	// A directory deals with a host's requests in their order, and so do its reports come: behind this one there is none.
	last := mad.ServiceRecord{ID: 1, GID: gid(GUIDOf("gamma")), Lease: 60}
	set := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: mad.MethodSet, Attribute: mad.AttrServiceRecord}, ComponentMask: serviceAll}
	last.Append(set.Data[:0])
	if err := gamma.speak("alpha", deaf{}).send(set.MAD()); err != nil {
		t.Fatal(err)
	}
	beta.await(ExportCome, "gamma")
	gone := 0
	beta.mu.Lock()
	for _, e := range beta.events {
		if e.Kind == PathGone {
			gone++
		}
	}
	beta.mu.Unlock()
	if gone < trapBurst {
		t.Errorf("%d events are forwarded", gone)
	}
	if most := trapBurst + int(trapRate*time.Since(begun).Seconds()) + 1; gone > most {
		t.Errorf("%d events are forwarded, %d may be", gone, most)
	}
}

// An agent that can't keep what a manager sets does not take it: after a restart its manager would not open it any more.
func TestSetThatCanNotBeKept(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	alpha, beta := s.hosts[0], s.hosts[1]
	beta.agent = true
	alpha.start(settings(t, "m_key_protection 2", map[conf.KeyName]mad.Key{conf.MKey: 0x1234}), "alpha")
	if err := os.RemoveAll(beta.state); err != nil {
		t.Fatal(err)
	}
	beta.start(settings(t, "", nil), "alpha")
	key := func() mad.Key {
		g := beta.dir.manages()
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.agent.Keys().MKey
	}
	until(t, func() bool { return beta.logged("what managers set can't be kept") })
	until(t, func() bool { return alpha.logged("a host's agent does not take its keys") })
	if key() != 0 {
		t.Error("it has a key that is gone with its next start")
	}
	if err := alpha.dir.Drain(t.Context(), GUIDOf("beta"), true); err == nil || beta.dir.Drained() || beta.wasDrained() {
		t.Errorf("it is drained until its next start: %v", err)
	}
	if _, recorded := alpha.dir.keeping().portKey(GUIDOf("beta")); recorded {
		t.Error("the manager has recorded a key that the port does not have")
	}
	if err := os.MkdirAll(beta.state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := alpha.drain("beta", true); err != nil || !beta.dir.Drained() {
		t.Errorf("with room it is not drained: %v", err)
	}
}

func (d *Directory) keeping() *keeper {
	_, k := d.roles()
	return k
}

// refuses is an agent that refuses what it is asked, and counts.
type refuses struct {
	host  *testHost
	asked *atomic.Int32
}

func (a refuses) Receive(l *gsi.Link, message []byte) {
	p, err := mad.ParsePacket(message)
	if err != nil || p.MAD.Class() != mad.ClassSubn {
		return
	}
	smp, err := mad.ParseSMP(&p.MAD)
	if err != nil || smp.Method != mad.MethodGet {
		return
	}
	a.asked.Add(1)
	answer := smp.Answer(mad.StatusUnsupportedAttribute)
	b := (&mad.Packet{MAD: answer.MAD()}).Append(nil)
	go l.Send(a.host.site.t.Context(), b)
}

// A host that comes again and again has its own agent looked for, and not those of all others.
func TestHostThatReconnectsHasNoOthersAsked(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	alpha.start(settings(t, "", map[conf.KeyName]mad.Key{conf.MKey: 0x1234}), "alpha")
	alpha.awaitMaster()
	var ofBeta, ofGamma atomic.Int32
	beta.speak("alpha", refuses{beta, &ofBeta})
	until(t, func() bool { return ofBeta.Load() > 0 })
	for n := range int32(20) {
		r := gamma.speak("alpha", refuses{gamma, &ofGamma})
		until(t, func() bool { return ofGamma.Load() > n })
		r.Close()
	}
	if n := ofBeta.Load(); n > 3 {
		t.Errorf("one host came %d times, and another was asked %d times", ofGamma.Load(), n)
	}
}

// babbles answers what an agent is asked by what is no answer to that.
type babbles struct{ host *testHost }

func (a babbles) Receive(l *gsi.Link, message []byte) {
	p, err := mad.ParsePacket(message)
	if err != nil || p.MAD.Class() != mad.ClassSubn || p.MAD.Header().Method.Response() {
		return
	}
	h := p.MAD.Header()
	h.Method = mad.MethodDeleteResp
	p.MAD.SetHeader(h)
	go l.Send(a.host.site.t.Context(), p.Append(nil))
}

// A host that answers its manager by no answers, without end, does not keep keys from others.
func TestAgentThatAnswersWithoutEnd(t *testing.T) {
	t.Parallel() // it waits
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	beta.agent = true
	alpha.start(settings(t, "m_key_protection 2", map[conf.KeyName]mad.Key{conf.MKey: 0x1234}), "alpha")
	alpha.awaitMaster()
	gamma.speak("alpha", babbles{gamma})
	beta.start(settings(t, "", nil), "alpha")
	until(t, func() bool { return beta.keyOfPort() == 0x1234 })
	done := make(chan error, 1)
	go func() { _, err := alpha.dir.Rotate([]conf.KeyName{conf.MKey}); done <- err }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("one host keeps the keys of all from being changed")
	}
}
