package web

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// event is something that happened, for people.
type event struct {
	At   time.Time
	Kind string // good, bad, warn or ""
	Text string
}

// thing is a part of the host that has a state.
type thing struct {
	what  string // such as "peer beta"
	state string
	why   string
}

// things are the parts of a host by what they are called, which is unique.
func things(st *api.Status) map[string]thing {
	all := map[string]thing{}
	add := func(state string, problem *api.Error, format string, a ...any) {
		t := thing{what: fmt.Sprintf(format, a...), state: state}
		if problem != nil {
			t.why = problem.Message
		}
		all[t.what] = t
	}
	if st.IKE != nil {
		add(st.IKE.State, st.IKE.Problem, "%s", st.IKE.Name)
	}
	for _, l := range st.Listeners {
		add(l.State, l.Problem, "listener %s %s", l.Address, l.Transport)
	}
	for _, p := range st.Peers {
		add(p.State, p.Problem, "peer %s", p.Name)
	}
	for _, s := range st.Sessions {
		name := sessionName(s)
		add(s.State, nil, "session %s", name)
		for _, p := range s.Paths {
			add(pathState(p), p.Problem, "path %s of session %s", p.Name, name)
		}
	}
	for _, a := range st.Attachments {
		add(a.State, a.Problem, "disk %s", diskName(a))
	}
	for _, e := range st.Exports {
		add(e.State, e.Problem, "export %s", e.Name)
	}
	for _, p := range st.Pools {
		if state := poolState(p); state != poolUnseen {
			add(state, p.Problem, "pool %s", p.Name)
		}
	}
	for _, t := range st.Targets {
		add(t.State, t.Problem, "target %s", t.Name)
	}
	for _, s := range st.TargetSessions {
		add("logged in", nil, "initiator %s (session %s)", s.Initiator, s.ID)
	}
	for _, s := range st.NVMe {
		add(s.State, s.Problem, "subsystem %s", s.Name)
	}
	for _, c := range st.Captures {
		add("running", nil, "capture %d of %s by process %d", c.ID, cmp.Or(c.Peer, "all peers"), c.PID)
	}
	for _, b := range st.Blocks {
		add("blocked", &api.Error{Message: b.Why}, "peer %s at %s", b.Peer, b.Address)
	}
	if f := st.Fabric; f != nil {
		add(cmp.Or(f.Master, "unknown"), f.Problem, "the fabric's master")
	}
	return all
}

// compare returns what has changed between two looks, in the order of what it is about.
func compare(at time.Time, before, after *api.Status) (events []event) {
	if before.Info.PID != after.Info.PID || !before.Info.Started.Equal(after.Info.Started) {
		events = append(events, event{at, "warn", fmt.Sprintf("the daemon was started again, as process %d", after.Info.PID)})
	}
	old, now := things(before), things(after)
	var changed []event
	for what, t := range now {
		was, known := old[what]
		switch {
		case !known:
			changed = append(changed, event{at, kindOf(t.state), fmt.Sprintf("%s: %s%s", what, t.state, because(t.why))})
		case was.state != t.state:
			changed = append(changed, event{at, kindOf(t.state), fmt.Sprintf("%s: %s, was %s%s", what, t.state, was.state, because(t.why))})
		}
	}
	for what := range old {
		if _, there := now[what]; !there {
			changed = append(changed, event{at, "", what + ": gone"})
		}
	}
	slices.SortFunc(changed, func(a, b event) int { return strings.Compare(a.Text, b.Text) })
	return append(events, changed...)
}

func because(why string) string {
	if why == "" {
		return ""
	}
	return ": " + why
}

// saEvent is what strongSwan has reported.
func saEvent(e api.SAEvent) event {
	clean(&e)
	text := e.Kind
	for _, s := range []string{e.Peer, e.Child} {
		if s != "" {
			text += " " + s
		}
	}
	kind := ""
	switch {
	case strings.HasSuffix(e.Kind, "-up") || strings.HasSuffix(e.Kind, "-rekey"):
		kind = "good"
	case strings.HasSuffix(e.Kind, "-down"):
		kind = "warn"
	case strings.Contains(e.Kind, "fail"):
		kind = "bad"
	}
	why := slices.DeleteFunc([]string{e.Reason, e.Detail}, func(s string) bool { return s == "" })
	return event{e.Time, kind, "SA: " + text + because(strings.Join(why, "; "))}
}

// kindOf says how a state is to be taken.
func kindOf(state string) string {
	switch state {
	case api.PeerUp, api.PeerIdle, api.ExportReady, "connected", "listening", "logged in", api.FabricStandby, "running", "INSTALLED", "ESTABLISHED", poolWithRoom:
		return "good"
	case api.PeerProblem, api.AttachFailed, api.AttachOrphaned, api.SessionFailing, api.PathGivenUp, "disconnected", api.FabricUnreachable, "blocked", "fail", poolFull:
		return "bad"
	case api.FabricMaster:
		return "good"
	case "note", poolUnseen:
		return ""
	}
	return "warn"
}

func sessionName(s api.Session) string {
	name := s.Role + " " + s.Peer
	if s.ULP != "" {
		name += " of " + s.ULP
	}
	return name
}

func diskName(a api.Attachment) string {
	if a.ULP != "" {
		return a.Name() + " of " + a.ULP
	}
	return a.Name()
}

func pathState(p api.SessionPath) string {
	if p.Paused {
		return api.PeerPaused
	}
	return p.State
}
