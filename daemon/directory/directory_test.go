package directory

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/fabric/conf"
	"github.com/ironwarp/ironwarp/fabric/gsi"
	"github.com/ironwarp/ironwarp/fabric/mad"
	"github.com/ironwarp/ironwarp/fabric/sa"
	"github.com/ironwarp/ironwarp/verbs"
	"github.com/ironwarp/ironwarp/verbs/verbstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// site is a fabric of hosts in one process.
type site struct {
	t     *testing.T
	net   *verbstest.Fabric
	hosts []*testHost
}

// testHost is one of them, and what its directory is told.
type testHost struct {
	site *site
	name string
	net  *verbstest.Host
	dev  *verbs.Device
	ulp  *verbs.ULP
	dir  *Directory

	state string     // directory of what is kept
	agent bool       // of the next start
	port  uint16     // at which it looks for managers
	logMu sync.Mutex // guards the field below it
	log   bytes.Buffer

	mu       sync.Mutex // guards the fields below it
	services []Service
	vports   []mad.GUID
	events   []Event
	drops    []sa.Drop
	drained  bool
	syslog   []string
	changed  chan struct{} // closed when there is another event
}

func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := &site{t: t, net: verbstest.New()}
	for _, name := range names {
		s.add(name)
	}
	return s
}

func (s *site) add(name string) *testHost {
	t := s.t
	h := &testHost{site: s, name: name, net: s.net.Host(name), changed: make(chan struct{}), state: t.TempDir(), port: 7471}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	h.dev = dev
	if h.ulp, err = dev.NewULP("fabric", verbs.ULPConfig{Privileged: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	h.dir = New(Config{
		Log: slog.New(slog.NewTextHandler(io.MultiWriter(t.Output(), h), nil)),
		Run: func(f func(context.Context)) { wg.Go(func() { f(ctx) }) },
		Dial: func(ctx context.Context, peer string, lh gsi.Handler) (*gsi.Link, error) {
			return gsi.Dial(ctx, h.ulp, verbs.DialConfig{Remote: s.host(peer).net.Addr(h.port), Transport: h.net.Transport()}, lh)
		},
		Services: func() []Service { h.mu.Lock(); defer h.mu.Unlock(); return slices.Clone(h.services) },
		VPorts:   func() []mad.GUID { h.mu.Lock(); defer h.mu.Unlock(); return slices.Clone(h.vports) },
		Hosts:    s.guids, NameOf: s.nameOf, Secret: func() []byte { return []byte("secret of " + name) },
		Happened: func(e Event) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.events = append(h.events, e)
			close(h.changed)
			h.changed = make(chan struct{})
		},
		Drain: func(on bool) { h.mu.Lock(); defer h.mu.Unlock(); h.drained = on },
		PKeys: func([]uint16) {}, Syslog: func(line string) { h.mu.Lock(); defer h.mu.Unlock(); h.syslog = append(h.syslog, line) },
		Dropped: func(d sa.Drop) { h.mu.Lock(); defer h.mu.Unlock(); h.drops = append(h.drops, d) },
	})
	ln, err := dev.Listen(t.Context(), h.net.Addr(7471), verbs.ListenConfig{Transport: h.net.Transport()})
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() { h.accept(ctx, ln) })
	t.Cleanup(func() {
		h.dir.Close()
		cancel()
		wg.Wait()
		dev.Close()
	})
	s.hosts = append(s.hosts, h)
	return h
}

// accept has the hosts that come to a listener in the directory, until ctx ends.
func (h *testHost) accept(ctx context.Context, ln *verbs.Listener) {
	for {
		cr, err := ln.Accept(ctx)
		if err != nil {
			return
		}
		id := string(cr.Peer())
		if h.dir.Handle(cr, h.ulp, Manager{Identity: id, GUID: GUIDOf(id), Peer: id}) != nil {
			gsi.Refuse(cr)
		}
	}
}

// Write takes the host's log.
func (h *testHost) Write(b []byte) (int, error) {
	h.logMu.Lock()
	defer h.logMu.Unlock()
	return h.log.Write(b)
}

// logged reports whether a text is in the host's log.
func (h *testHost) logged(text string) bool {
	h.logMu.Lock()
	defer h.logMu.Unlock()
	return strings.Contains(h.log.String(), text)
}

func (s *site) host(name string) *testHost {
	return s.hosts[slices.IndexFunc(s.hosts, func(h *testHost) bool { return h.name == name })]
}

func (s *site) guids() (all []mad.GUID) {
	for _, h := range s.hosts {
		all = append(all, GUIDOf(h.name))
	}
	return all
}

func (s *site) nameOf(g mad.GUID) string {
	for _, h := range s.hosts {
		if GUIDOf(h.name) == g {
			return h.name
		}
	}
	return ""
}

// start gives each host its part; the managers are those of the names.
func (s *site) start(settings func(host string) *conf.Config, managers ...string) {
	for _, h := range s.hosts {
		h.start(settings(h.name), managers...)
	}
}

func (h *testHost) start(settings *conf.Config, managers ...string) {
	plan := Plan{Self: Self{h.name, GUIDOf(h.name)}, Settings: settings, StateDir: h.state, Name: h.name, Agent: h.agent}
	for _, m := range managers {
		one := Manager{Identity: m, GUID: GUIDOf(m), Peer: m}
		if m == h.name {
			one.Peer = ""
		}
		plan.Managers = append(plan.Managers, one)
	}
	if err := h.dir.Apply(plan); err != nil {
		h.site.t.Fatal(err)
	}
}

func defaults(string) *conf.Config { return conf.Default() }

// announce changes what a host offers.
func (h *testHost) announce(services ...Service) {
	h.mu.Lock()
	h.services = services
	h.mu.Unlock()
	h.dir.Changed()
}

// await waits for an event.
func (h *testHost) await(kind EventKind, of string) Event {
	h.site.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		h.mu.Lock()
		i := slices.IndexFunc(h.events, func(e Event) bool { return e.Kind == kind && e.Host == GUIDOf(of) })
		changed := h.changed
		var e Event
		if i >= 0 {
			e = h.events[i]
			h.events = slices.Delete(h.events, i, i+1)
		}
		all := slices.Clone(h.events)
		h.mu.Unlock()
		if i >= 0 {
			return e
		}
		select {
		case <-changed:
		case <-deadline:
			h.site.t.Fatalf("%s has not heard of %q of %s, but of %+v", h.name, kind, of, all)
		}
	}
}

// lookup finds a service, waiting until the directory has a master, also where a manager that a busy machine keeps from answering
// is one no more meanwhile.
func (h *testHost) lookup(name string) (found []Service) {
	h.site.t.Helper()
	until(h.site.t, func() bool {
		h.awaitMaster()
		var err error
		found, err = h.dir.Lookup(h.site.t.Context(), name, 0)
		if err != nil && !errors.Is(err, ErrNoMaster) {
			h.site.t.Fatalf("%s looks %s up: %v", h.name, name, err)
		}
		return err == nil
	})
	return found
}

func (h *testHost) awaitMaster() {
	h.site.t.Helper()
	until(h.site.t, func() bool { _, _, err := h.dir.asMember(); return err == nil })
}

// awaitSubscription waits until a host hears of events from the directory that this one keeps.
func (h *testHost) awaitSubscription(of *testHost) {
	h.site.t.Helper()
	until(h.site.t, func() bool {
		v, ok := h.dir.View()
		n := 0
		for _, s := range v.Subscriptions {
			if s.Owner.GUID == GUIDOf(of.name) {
				n++
			}
		}
		return ok && n == 8
	})
}

// until waits for a condition.
func until(t *testing.T, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !is(); {
		if time.Now().After(deadline) {
			t.Fatal("the condition does not come")
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestHostsFindEachOthersServices(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	alpha, beta, gamma := s.hosts[0], s.hosts[1], s.hosts[2]
	s.start(defaults, "alpha")
	alpha.awaitSubscription(gamma)
	beta.announce(Service{Name: "disk", Kind: Export, Port: 7471, Size: 1 << 30})
	e := gamma.await(ExportCome, "beta")
	if e.Service != IDOf(Export, "disk") || e.Size != 1<<30 {
		t.Errorf("the event says %+v", e)
	}
	for _, h := range []*testHost{alpha, beta, gamma} {
		found := h.lookup("disk")
		if len(found) != 1 || found[0].Host != GUIDOf("beta") || found[0].Size != 1<<30 || found[0].Port != 7471 || found[0].Kind != Export {
			t.Errorf("%s finds %+v", h.name, found)
		}
		if found := h.lookup("other"); len(found) != 0 {
			t.Errorf("%s finds %+v", h.name, found)
		}
	}
	beta.announce(Service{Name: "disk", Kind: Export, Port: 7471, Size: 2 << 30})
	if e := gamma.await(ExportResized, "beta"); e.Size != 2<<30 {
		t.Errorf("the event says %+v", e)
	}
	beta.announce()
	gamma.await(ExportGone, "beta")
	if found := gamma.lookup("disk"); len(found) != 0 {
		t.Errorf("what is gone is found: %+v", found)
	}
}

func TestServiceOfSeveralHosts(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	s.start(defaults, "alpha")
	for _, h := range s.hosts[1:] {
		h.announce(Service{Name: "disk", Kind: Export, Size: 1})
	}
	until(t, func() bool { return len(s.hosts[0].lookup("disk")) == 2 })
	all, err := s.hosts[2].dir.Services(t.Context())
	if err != nil || len(all) != 2 {
		t.Errorf("all services: %+v, %v", all, err)
	}
}

func TestLargeTable(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	s.start(defaults, "alpha")
	var services []Service
	for i := range maxServices {
		services = append(services, Service{Name: "disk" + string(rune('a'+i%26)) + time.Duration(i).String(), Kind: Export})
	}
	s.hosts[1].announce(services...)
	until(t, func() bool {
		s.hosts[1].awaitMaster()
		all, err := s.hosts[1].dir.Services(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == maxServices
	})
}

func TestHostThatIsGone(t *testing.T) {
	s := newSite(t, "alpha", "beta", "gamma")
	s.start(defaults, "alpha")
	s.hosts[2].awaitMaster()
	s.hosts[1].awaitMaster()
	until(t, func() bool { p, err := s.hosts[2].dir.Paths(t.Context()); return err == nil && len(p) == 3 })
	s.hosts[1].dir.Close()
	s.hosts[2].await(HostDown, "beta")
	s.hosts[1].start(conf.Default(), "alpha")
	s.hosts[2].await(HostUp, "beta")
}

func TestHostWithoutAManager(t *testing.T) {
	s := newSite(t, "alpha", "beta")
	s.hosts[1].dir.Apply(Plan{Self: Self{"beta", GUIDOf("beta")}, Settings: conf.Default(), Managers: []Manager{{Identity: "alpha", GUID: GUIDOf("alpha"), Peer: "alpha"}}})
	until(t, func() bool { m := s.hosts[1].dir.Managers(); return len(m) == 1 && m[0].Problem != nil })
	if _, err := s.hosts[1].dir.Lookup(t.Context(), "disk", 0); err != ErrNoMaster {
		t.Errorf("Lookup without a manager: %v", err)
	}
}
