package web

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// texts are the events of a record, and kinds how they are to be taken.
func texts(r *record) (out []string) {
	for _, e := range r.events {
		out = append(out, strings.TrimSpace(e.Kind+" "+e.Text))
	}
	return out
}

// What changes between two looks is an event, and nothing else is.
func TestChangesAreEvents(t *testing.T) {
	started := time.Unix(1000, 0)
	at := time.Unix(2000, 0)
	base := func() api.Status {
		return api.Status{
			Info:        api.Info{PID: 7, Started: started},
			Peers:       []api.Peer{{PeerSpec: api.PeerSpec{Name: "beta"}, State: api.PeerUp}},
			Sessions:    []api.Session{{Peer: "beta", Role: "client", State: "connected", Paths: []api.SessionPath{{Name: "a", State: "connected"}}}},
			Attachments: []api.Attachment{{Peer: "beta", Export: "disk", State: api.AttachReady}},
			Exports:     []api.Export{{ExportSpec: api.ExportSpec{Name: "docs"}, State: api.ExportReady}},
			Pools:       []api.Pool{{Name: "fast", Size: 100, Used: 40, Free: 60}},
			Targets:     []api.Target{{TargetSpec: api.TargetSpec{Name: "t"}, State: api.TargetReady}},
			Fabric:      &api.FabricStatus{Master: "m1"},
		}
	}
	for _, c := range []struct {
		name   string
		change func(*api.Status)
		want   []string
	}{
		{"nothing", func(*api.Status) {}, nil},
		{"counters and ages", func(st *api.Status) {
			st.Sessions[0].AgeSeconds, st.Attachments[0].IO.Reads, st.Streams = 9, 9, []api.Stream{{ID: "x"}}
		}, nil},
		{"a peer", func(st *api.Status) {
			st.Peers[0].State, st.Peers[0].Problem = api.PeerProblem, &api.Error{Message: "no route"}
		}, []string{"bad peer beta: problem, was up: no route"}},
		{"a path that is paused", func(st *api.Status) { st.Sessions[0].Paths[0].Paused = true }, []string{"warn path a of session client beta: paused, was connected"}},
		{"a path more", func(st *api.Status) {
			st.Sessions[0].Paths = append(st.Sessions[0].Paths, api.SessionPath{Name: "b", State: "connecting"})
		}, []string{"warn path b of session client beta: connecting"}},
		{"a disk that is detached", func(st *api.Status) { st.Attachments = nil }, []string{"disk beta/disk: gone"}},
		{"a pool that fills up", func(st *api.Status) { st.Pools[0].Used, st.Pools[0].Free = 79, 21 }, nil},
		{"a pool above an alarm", func(st *api.Status) { st.Pools[0].Free, st.Pools[0].Alarm = 9, 90 }, []string{"warn pool fast: over 90 % full, was ok"}},
		{"a pool without room", func(st *api.Status) { st.Pools[0].Free, st.Pools[0].Alarm = 0, 95 }, []string{"bad pool fast: full, was ok"}},
		{"a pool that has not been looked at yet", func(st *api.Status) { st.Pools = append(st.Pools, api.Pool{Name: "new"}) }, nil},
		{"a pool that is not mounted", func(st *api.Status) {
			st.Pools[0] = api.Pool{Name: "fast", Problem: &api.Error{Message: "another directory"}}
		}, []string{"bad pool fast: problem, was ok: another directory"}},
		{"an initiator", func(st *api.Status) {
			st.TargetSessions = []api.TargetSession{{ID: "1", Initiator: "iqn.x"}}
		}, []string{"good initiator iqn.x (session 1): logged in"}},
		{"a blocked peer", func(st *api.Status) {
			st.Blocks = []api.Block{{Peer: "beta", Address: "192.0.2.1", Why: "too many streams"}}
		}, []string{"bad peer beta at 192.0.2.1: blocked: too many streams"}},
		{"a capture", func(st *api.Status) { st.Captures = []api.Capture{{ID: 3, Peer: "beta", PID: 9}} }, []string{"good capture 3 of beta by process 9: running"}},
		{"a subsystem", func(st *api.Status) {
			st.NVMe = []api.NVMeSubsystem{{NVMeSubsystemSpec: api.NVMeSubsystemSpec{Name: "n"}, State: api.TargetWaiting}}
		}, []string{"warn subsystem n: waiting"}},
		{"another master", func(st *api.Status) { st.Fabric.Master = "m2" }, []string{"warn the fabric's master: m2, was m1"}},
		{"another daemon", func(st *api.Status) { st.Info.PID = 8 }, []string{"warn the daemon was started again, as process 8"}},
	} {
		var r record
		r.look(at, base(), nil)
		st := base()
		c.change(&st)
		r.look(at, st, nil)
		if got := texts(&r); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A daemon that does not answer is told once, and its return; what was known stays, and plots have a gap.
func TestSilenceIsToldOnce(t *testing.T) {
	var r record
	at := time.Unix(2000, 0)
	st := api.Status{Attachments: []api.Attachment{{Peer: "beta", Export: "disk", State: api.AttachReady, IO: api.IO{ReadBytesSec: 100}}}}
	for range 3 {
		r.look(at, st, nil)
	}
	for range 3 {
		r.look(at, api.Status{}, &api.Error{Message: "no daemon"})
	}
	if r.status == nil || len(r.status.Attachments) != 1 {
		t.Error("what was known is forgotten")
	}
	for range 2 {
		r.look(at, st, nil)
	}
	if got, want := texts(&r), []string{"bad the daemon does not answer: no daemon", "good the daemon answers"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	svg := string(plot(r.history[ofDisks]))
	if n := strings.Count(svg, "M"); n != 4 {
		t.Errorf("two curves with a gap each have %d beginnings, want 4: %s", n, svg)
	}
	if !strings.Contains(svg, "M172 0.0L173 0.0L174 0.0M178 0.0L179 0.0") {
		t.Errorf("the curve of reads: %s", svg)
	}
}

// However long it goes on, and however much there is, a record stays small.
func TestRecordIsBounded(t *testing.T) {
	var r record
	for i := range maxSamples + 5 {
		var st api.Status
		for k := range maxSeries + 50 {
			st.Exports = append(st.Exports, api.Export{ExportSpec: api.ExportSpec{Name: fmt.Sprint(k, i%7)}})
		}
		r.look(time.Unix(int64(i), 0), st, nil)
	}
	if len(r.events) > maxEvents || cap(r.events) > 4*maxEvents || len(r.history) > maxSeries+2 {
		t.Errorf("%d events, %d series", len(r.events), len(r.history))
	}
	for key, s := range r.history {
		if len(*s) > maxSamples || cap(*s) > 2*maxSamples {
			t.Fatalf("%q has %d samples", key, len(*s))
		}
	}
	v := r.view("x", time.Unix(0, 0))
	if parts, err := newPages().sections(v); err != nil {
		t.Error(err)
	} else {
		for _, p := range parts {
			if p.ID == "exports" && strings.Count(string(p.HTML), "<tr>") != maxRows+1 {
				t.Errorf("the exports' table has %d rows", strings.Count(string(p.HTML), "<tr>"))
			}
		}
	}
}

// Numbers are written for people.
func TestNumbers(t *testing.T) {
	for _, c := range [][2]string{
		{size(0), "0 B"}, {size(1023), "1023 B"}, {size(1536), "1.5 KiB"}, {size(1 << 20), "1 MiB"}, {size(1023.9 * 1024), "1 MiB"}, {rate(0), "-"}, {rate(2048), "2 KiB/s"},
		{perSecond(0), "-"}, {perSecond(1.25), "1.2/s"}, {perSecond(250_000), "250k/s"}, {span(59), "59 s"}, {span(61), "1 min 01 s"}, {span(3661), "1 h 01 min"}, {span(90_000), "1 d 01 h"}, {span(-1), "-"},
		{latency(0), "-"}, {latency(250e-6), "250 µs"}, {latency(0.0123), "12.3 ms"}, {latency(2), "2 s"},
	} {
		if c[0] != c[1] {
			t.Errorf("%q, want %q", c[0], c[1])
		}
	}
}
