package directory

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

// stream is speak by a path of its own; it fails where the manager does not take it.
func (h *testHost) stream(ctx context.Context, from *verbstest.Host, manager string, take gsi.Handler) (*raw, error) {
	l, err := gsi.Dial(ctx, h.ulp, verbs.DialConfig{Remote: h.site.host(manager).net.Addr(7471), Transport: from.Transport()}, take)
	if err != nil {
		return nil, err
	}
	return &raw{l, h}, nil
}

// request is a MAD of the SA.
func request(method mad.Method, attr mad.Attribute, mask mad.Mask, id uint64, r mad.Record) mad.MAD {
	m := mad.SA{Header: mad.Header{Class: mad.ClassSubnAdm, ClassVersion: mad.SAClassVersion, Method: method, Attribute: attr, TransactionID: id}, ComponentMask: mask}
	if r != nil {
		r.Append(m.Data[:0])
	}
	return m.MAD()
}

// requestsWithoutEnd are those of a host that wants to keep the directory from others: registrations, tables, aliases, groups,
// subscriptions, questions to the agent, and what is no request.
func requestsWithoutEnd(host mad.GUID, n int) mad.MAD {
	own := gid(host)
	id := uint64(n)
	switch n % 10 {
	case 0, 1, 2:
		return request(mad.MethodSet, mad.AttrServiceRecord, serviceAll, id, mad.ServiceRecord{ID: id % 9000, GID: own, Lease: 60})
	case 3:
		return request(mad.MethodDelete, mad.AttrServiceRecord, serviceRID, id, mad.ServiceRecord{ID: id % 9000, GID: own})
	case 4:
		return request(mad.MethodGetTable, mad.AttrServiceRecord, 0, id, nil)
	case 5:
		r := mad.GUIDInfoRecord{LID: mad.LID(n % 4), BlockNum: uint8(n % 16)}
		for i := range r.GUIDs {
			r.GUIDs[i] = mad.GUID(n*8 + i + 1)
		}
		return request(mad.MethodSet, mad.AttrGUIDInfoRecord, mad.GUIDInfoMaskLID|mad.GUIDInfoMaskBlockNum|mad.GUIDInfoMaskGUIDs, id, r)
	case 6:
		return request(mad.MethodSet, mad.AttrMCMemberRecord, 1<<18-1, id, mad.MCMemberRecord{MGID: mad.GID{0xff, 0x12, 14: byte(n >> 8), 15: byte(n)}, PortGID: own, JoinState: mad.JoinFull, PKey: 0xffff})
	case 7:
		return request(mad.MethodSet, mad.AttrInformInfo, 0, id, mad.InformInfo{LIDBegin: mad.InformAllLIDs, Generic: 1, Subscribe: uint8(n / 10 % 2), Type: mad.InformAllTypes, TrapNumber: uint16(n), ProducerType: mad.InformAllProducers})
	case 8:
		smp := mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.Method(n % 128), Attribute: mad.Attribute(n), TransactionID: id}}
		return smp.MAD()
	}
	return request(mad.MethodReport, mad.Attribute(n), mad.Mask(n), id, nil)
}

// One host sends requests as fast as it can, and reads none of the answers; others use the directory meanwhile.
func TestHostThatFloodsTheDirectory(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	for _, h := range s.hosts[:2] {
		h.start(conf.Default(), "alpha")
	}
	alpha.awaitSubscription(beta)
	beta.announce(Service{Name: "disk", Kind: Export, Size: 1})
	until(t, func() bool { return len(beta.lookup("disk")) == 1 })
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	sent, r := 0, gamma.speak("alpha", deaf{})
	wg.Go(func() {
		for ; ctx.Err() == nil; sent++ {
			p := mad.Packet{GRH: mad.GRH{HopLimit: 1, SGID: gid(GUIDOf("gamma")), DGID: gid(GUIDOf("alpha"))}, MAD: requestsWithoutEnd(GUIDOf("gamma"), sent)}
			if r.Send(ctx, p.Append(nil)) != nil && ctx.Err() == nil { // it was faster than the directory's receives
				r.Close()
				if again, err := gamma.stream(ctx, gamma.net, "alpha", deaf{}); err == nil {
					r = again
				}
			}
		}
	})
	// One whose question is not taken asks again after askTime. A busy machine may make that of a few, but not of most.
	var worst time.Duration
	asked, late := 0, 0
	for begun := time.Now(); asked < 20 || time.Since(begun) < 3*time.Second; asked++ {
		at := time.Now()
		if found := beta.lookup("disk"); len(found) != 1 {
			t.Errorf("the directory has %+v", found)
		}
		took := time.Since(at)
		worst = max(worst, took)
		if took > askTime {
			late++
		}
		<-time.After(20 * time.Millisecond) // a host has a limit of questions, too
	}
	cancel()
	wg.Wait()
	r.Close()
	t.Logf("%d requests, the longest of another's %d took %v", sent, asked, worst)
	if 2*late > asked {
		t.Errorf("%d of another host's %d questions took more than %v, while one sent %d requests", late, asked, askTime, sent)
	}
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d bytes more are in use", grown)
	}
}

// A host whose network takes nothing more asks for tables, and others do not wait for it.
func TestHostThatReadsNothing(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	for _, h := range s.hosts[:2] {
		h.start(conf.Default(), "alpha")
	}
	alpha.awaitSubscription(beta)
	r := gamma.speak("alpha", deaf{})
	for id := range uint64(8) {
		if err := r.send(request(mad.MethodSet, mad.AttrInformInfo, 0, id, mad.InformInfo{
			LIDBegin: mad.InformAllLIDs, Generic: 0xff, Subscribe: 1, Type: mad.InformAllTypes, TrapNumber: mad.InformAllTraps, ProducerType: mad.InformAllProducers,
		})); err != nil {
			t.Fatal(err)
		}
	}
	until(t, func() bool { v, _ := alpha.dir.View(); return len(v.Subscriptions) == 2*8+1 })
	gamma.net.Pause(true)
	defer gamma.net.Pause(false)
	late := 0
	for i := range 300 {
		beta.announce(Service{Name: "disk" + time.Duration(i%2).String(), Kind: Export})
		if i%100 == 0 {
			at := time.Now()
			beta.lookup("disk")
			if time.Since(at) > askTime {
				late++
			}
		}
	}
	if late > 1 { // one may be the machine's fault
		t.Errorf("%d questions of 3 take more than %v beside a host that reads nothing", late, askTime)
	}
}

// A host makes streams without end, some of which it leaves half open. It is in the directory by one, others stay, and nothing is left over.
func TestStreamsOfAHostWithoutEnd(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	for _, h := range s.hosts[:2] {
		h.start(conf.Default(), "alpha")
	}
	alpha.awaitSubscription(beta)
	goroutines := runtime.NumGoroutine()
	paths := []*verbstest.Host{gamma.net, gamma.net.Link(), gamma.net.Link(), gamma.net.Link()}
	var wg sync.WaitGroup
	for _, path := range paths {
		wg.Go(func() {
			for range 100 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				if l, err := gamma.stream(ctx, path, "alpha", deaf{}); err == nil {
					t.Cleanup(l.Close)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	until(t, func() bool { return len(alpha.dir.Hosts()) == 2 })
	if !beta.connected() {
		t.Error("another host's stream has ended")
	}
	// The last stream has goroutines at both ends, and those that it has replaced none.
	until(t, func() bool { return runtime.NumGoroutine() < goroutines+40 })
	until(t, func() bool { return alpha.ulp.Usage().Streams <= 3 })
}

// The configuration is read again and again, while hosts come and go and ask.
func TestConfigurationsWithoutEnd(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	s.start(defaults, "alpha", "beta")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	for _, h := range s.hosts {
		wg.Go(func() {
			for ctx.Err() == nil {
				h.start(conf.Default(), "alpha", "beta")
				<-time.After(20 * time.Millisecond)
			}
		})
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = h.dir.Lookup(ctx, "disk", 0)
				_, _ = h.dir.Services(ctx)
				h.dir.Changed()
				h.dir.PathChanged(GUIDOf("beta"), true)
				_, _ = h.dir.View()
				_, _ = h.dir.Managers(), h.dir.Insecure()
				<-time.After(time.Millisecond)
			}
		})
	}
	gamma := s.host("gamma")
	wg.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			if r, err := gamma.stream(ctx, gamma.net, "alpha", deaf{}); err == nil {
				for i := range 20 {
					_ = r.Send(ctx, (&mad.Packet{MAD: requestsWithoutEnd(GUIDOf("gamma"), n+i)}).Append(nil))
				}
				r.Close()
			}
		}
	})
	wg.Wait()
	for _, h := range s.hosts {
		h.awaitMaster()
	}
}
