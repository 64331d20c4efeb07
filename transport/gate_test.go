package transport

import (
	"context"
	"net/netip"
	"os"
	"reflect"
	"sync"
	"syscall"
	"testing"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

var errEPERM = os.NewSyscallError("sendmmsg", syscall.EPERM)

var testFlow = Flow{ProtoUDP, netip.MustParseAddrPort("192.0.2.1:5000"), netip.MustParseAddrPort("192.0.2.2:9899")}

// log is a Receiver that writes down its calls.
type log struct {
	mu     sync.Mutex
	calls  []string
	held   bool
	during func(call string)
}

func (l *log) note(s string) {
	l.mu.Lock()
	l.calls = append(l.calls, s)
	l.mu.Unlock()
	if l.during != nil {
		l.during(s)
	}
}

func (l *log) Message(m *assoc.Message) bool { l.note(string(m.Payload)); return l.held }
func (l *log) Event(e assoc.Event)           { l.note(e.Kind.String()) }
func (l *log) BatchEnd()                     { l.note("end") }

// shut is a gate of a fake association with the flow's only path admitted.
func shut(cfg *Config) (*gate, *fakeAssoc, *paths) {
	a := newFakeAssoc(nil, nil)
	g := newGate(a, []Flow{testFlow}, cfg)
	a.recv = g
	p := newPaths(g.ctx, &Assoc{Association: a, flows: g.flows}, true, cfg)
	p.parts[0] = fixed{peer: "fake"}
	return g, a, p
}

func message(s string) *assoc.Message { return &assoc.Message{Payload: []byte(s)} }

func TestGateKeepsTheOrderOfWhatCameBeforeItOpened(t *testing.T) {
	g, a, p := shut(&Config{})
	g.Event(assoc.Event{Kind: assoc.EventUp})
	buf := []byte("first")
	if !g.Message(&assoc.Message{Payload: buf}) {
		t.Error("a message that is kept gives its window back")
	}
	copy(buf, "spoil") // the memory is valid during the call only
	g.Message(message("second"))
	g.BatchEnd()
	g.Event(assoc.Event{Kind: assoc.EventShutdown})
	l := &log{}
	if !g.open(l, p, func() {}) {
		t.Fatal("it does not open")
	}
	g.Message(message("third"))
	g.BatchEnd()
	if want := []string{"up", "first", "second", "end", "shutdown", "third", "end"}; !reflect.DeepEqual(l.calls, want) {
		t.Errorf("calls %q, want %q", l.calls, want)
	}
	if a.released != len("firstsecond") {
		t.Errorf("%d bytes given back to the window", a.released)
	}
}

func TestAnOpenGateAllocatesNothing(t *testing.T) {
	g, _, p := shut(&Config{})
	g.open(refusedReceiver{}, p, func() {})
	m := message("x")
	if n := testing.AllocsPerRun(100, func() { g.Message(m); g.BatchEnd() }); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}

func TestWhatComesWhileTheGateOpensWaitsForItsTurn(t *testing.T) {
	g, _, p := shut(&Config{})
	g.Message(message("first"))
	g.Message(message("second"))
	l := &log{during: func(call string) {
		if call == "first" {
			g.Message(message("third"))
			g.Event(assoc.Event{Kind: assoc.EventShutdown})
		}
	}}
	g.open(l, p, func() {})
	if want := []string{"first", "second", "end", "third", "end", "shutdown"}; !reflect.DeepEqual(l.calls, want) {
		t.Errorf("calls %q, want %q", l.calls, want)
	}
}

func TestGateLeavesTheWindowToAReceiverThatHoldsMessages(t *testing.T) {
	g, a, p := shut(&Config{})
	g.Message(message("held"))
	g.open(&log{held: true}, p, func() {})
	if a.released != 0 {
		t.Errorf("%d bytes given back to the window", a.released)
	}
}

func TestReceiverMayAbortWhileItGetsWhatWasKept(t *testing.T) {
	g, a, p := shut(&Config{})
	g.Message(message("bad"))
	released := 0
	l := &log{during: func(call string) {
		if call == "bad" {
			a.Abort("no")
		}
	}}
	g.open(l, p, func() { released++ })
	if want := []string{"bad", "end", "down"}; !reflect.DeepEqual(l.calls, want) || released != 1 {
		t.Errorf("calls %q, want %q; released %d times", l.calls, want, released)
	}
}

func TestGateNeverOpensAfterTheEnd(t *testing.T) {
	g, a, p := shut(&Config{})
	g.Message(message("lost"))
	a.Abort("gone")
	l := &log{}
	if g.open(l, p, func() { t.Error("released") }) || len(l.calls) > 0 {
		t.Errorf("opened, calls %q", l.calls)
	}
	if g.ctx.Err() == nil {
		t.Error("its context goes on")
	}
}

func TestWhoSendsTooMuchBeforeAdmissionIsAborted(t *testing.T) {
	for name, size := range map[string]int{"bytes": 4096, "messages": 1} {
		t.Run(name, func(t *testing.T) {
			g, a, _ := shut(&Config{})
			n := 0
			for ; !a.isOver() && n < 1<<20; n++ {
				g.Message(message(string(make([]byte, size))))
			}
			if bytes := n * size; n > maxEarlyMessages+1 || bytes > maxEarly+size {
				t.Errorf("%d messages of %d bytes were kept", n, size)
			}
			if n*size < maxEarly && n < maxEarlyMessages {
				t.Errorf("aborted after %d messages of %d bytes", n, size)
			}
		})
	}
}

func TestAChangedUDPPortIsScreened(t *testing.T) {
	moved := netip.MustParseAddrPort("192.0.2.2:777")
	for _, allowed := range []bool{true, false} {
		s := &screened{screen: func(f Flow) error {
			if f.Remote != moved || f.Local != testFlow.Local {
				t.Errorf("asked about %v", f)
			}
			if allowed {
				return nil
			}
			return ErrNotProtected
		}}
		g, a, p := shut(&Config{Protector: s})
		g.open(&log{}, p, func() {})
		a.remote = moved
		g.Event(assoc.Event{Kind: assoc.EventMoved})
		if a.isOver() == allowed {
			t.Errorf("allowed %v, over %v", allowed, a.isOver())
		}
	}
}

// screened is a Protector that is a Screener.
type screened struct {
	fake
	screen func(f Flow) error
}

func (s *screened) Screen(f Flow) error { return s.screen(f) }

// pausing is a Protection whose SA goes and comes.
type pausing struct {
	fixed
	paused bool
}

func (p *pausing) Paused() bool { return p.paused }

func TestPathEventsAreToldUnlessTheSAIsAway(t *testing.T) {
	var told []string
	cfg := &Config{OnPath: func(f Flow, up bool) {
		if f != testFlow {
			t.Errorf("path %v", f)
		}
		told = append(told, map[bool]string{true: "up", false: "down"}[up])
	}}
	g, _, p := shut(cfg)
	part := &pausing{}
	p.parts[0] = part
	g.open(&log{}, p, func() {})
	down, up := assoc.Event{Kind: assoc.EventPathDown}, assoc.Event{Kind: assoc.EventPathUp}
	for _, step := range []struct {
		paused bool
		e      assoc.Event
		want   []string
	}{
		{false, down, []string{"down"}},
		{false, up, []string{"down", "up"}},
		{true, down, []string{"down", "up"}}, // the guard stops the heartbeats
		{true, up, []string{"down", "up"}},
		{false, down, []string{"down", "up", "down"}},
		{true, up, []string{"down", "up", "down", "up"}},
	} {
		part.paused = step.paused
		g.Event(step.e)
		if !reflect.DeepEqual(told, step.want) {
			t.Fatalf("paused %v, %v: told %q, want %q", step.paused, step.e.Kind, told, step.want)
		}
	}
}

func TestProtectionOfAnAssociation(t *testing.T) {
	var a, b counted
	p := newPaths(context.Background(), &Assoc{flows: []Flow{testFlow, testFlow}}, true, &Config{})
	a.fixed = fixed{peer: "fqdn:beta", kind: "test"}
	b.fixed = a.fixed
	for i, part := range []Protection{&a, &b} {
		if err := p.add(i, part); err != nil {
			t.Fatal(err)
		}
	}
	if p.Peer() != "fqdn:beta" || p.Kind() != "test" || p.Paused() {
		t.Errorf("%v %v %v", p.Peer(), p.Kind(), p.Paused())
	}
	p.Release()
	p.Release()
	if a.released() != 1 || b.released() != 1 {
		t.Errorf("released %d and %d times", a.released(), b.released())
	}
	var late counted
	late.fixed = a.fixed
	if err := p.add(1, &late); err == nil || late.released() != 1 {
		t.Errorf("%v, released %d times, after the end", err, late.released())
	}
	p = newPaths(context.Background(), &Assoc{flows: []Flow{testFlow, testFlow}}, true, &Config{})
	p.parts = []Protection{&pausing{paused: true}, &pausing{}}
	if p.Paused() {
		t.Error("paused with an SA on one path")
	}
	p.parts[1] = nil // never admitted
	if !p.Paused() {
		t.Error("not paused without an SA")
	}
	p.Release()
}
