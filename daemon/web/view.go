package web

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/doctor"
)

// view is what the templates show.
type view struct {
	*api.Status            // the last answer; never nil
	Host        string     // this host's name
	Known       bool       // there was an answer
	Silent      *api.Error // why the daemon does not answer now
	At          time.Time  // of this look
	Answered    time.Time  // of the last answer
	Events      []event    // the newest first
	Findings    []doctor.Finding
	Examined    time.Time
	history     history
}

func (r *record) view(host string, at time.Time) view {
	v := view{Status: r.status, Host: host, Known: r.status != nil, Silent: r.problem, At: at, Answered: r.at, history: r.history, Findings: r.findings, Examined: r.examined}
	if v.Status == nil {
		v.Status = &api.Status{}
	}
	v.Events = slices.Clone(r.events)
	slices.Reverse(v.Events)
	return v
}

// tile is a number at the top of the page.
type tile struct {
	Label, Value, Kind string
}

// Tiles sums the host up. What the caller may not see has none.
func (v view) Tiles() (tiles []tile) {
	count := func(label string, all, good int) {
		if all == 0 {
			return
		}
		t := tile{label, strconv.Itoa(all), "good"}
		if good < all {
			t.Value, t.Kind = fmt.Sprintf("%d of %d", good, all), "bad"
		}
		tiles = append(tiles, t)
	}
	count("peers usable", len(v.Peers), countOf(v.Peers, func(p api.Peer) bool { return kindOf(p.State) == "good" }))
	count("disks ready", len(v.Attachments), countOf(v.Attachments, func(a api.Attachment) bool { return a.State == api.AttachReady }))
	count("exports ready", len(v.Exports), countOf(v.Exports, func(e api.Export) bool { return e.State == api.ExportReady }))
	count("pools with room", countOf(v.Pools, func(p api.Pool) bool { return poolState(p) != poolUnseen }), countOf(v.Pools, func(p api.Pool) bool { return poolState(p) == poolWithRoom }))
	count("targets ready", len(v.Targets), countOf(v.Targets, func(t api.Target) bool { return kindOf(t.State) == "good" }))
	count("NVM subsystems ready", len(v.NVMe), countOf(v.NVMe, func(s api.NVMeSubsystem) bool { return kindOf(s.State) == "good" }))
	if n := len(v.SAs); n > 0 {
		tiles = append(tiles, tile{"child SAs", strconv.Itoa(n), ""})
	}
	if n := len(v.Streams); n > 0 {
		tiles = append(tiles, tile{"streams", strconv.Itoa(n), ""})
	}
	if g := v.Guard; g != nil {
		tiles = append(tiles, tile{"clear packets stopped", strconv.FormatUint(g.BlockedIn+g.BlockedOut, 10), ""})
	}
	return tiles
}

func countOf[T any](all []T, is func(T) bool) (n int) {
	for _, x := range all {
		if is(x) {
			n++
		}
	}
	return n
}

// trouble is something that is wrong, and what to do.
type trouble struct {
	What string
	api.Error
}

// Troubles is all that the daemon finds wrong.
func (v view) Troubles() (all []trouble) {
	add := func(e *api.Error, format string, a ...any) {
		if e == nil {
			return
		}
		t := trouble{fmt.Sprintf(format, a...), *e}
		t.Message = strings.TrimPrefix(t.Message, t.What+": ")
		all = append(all, t)
	}
	if v.IKE != nil {
		add(v.IKE.Problem, "%s", v.IKE.Name)
	}
	for _, l := range slices.Concat(v.Listeners, v.Portals) {
		add(l.Problem, "listener %s", l.Address)
	}
	for _, p := range v.Peers {
		add(p.Problem, "peer %s", p.Name)
		for _, s := range p.PathStates {
			add(s.Problem, "peer %s at %s", p.Name, s.Address)
		}
		for _, w := range p.Insecure {
			add(&api.Error{Message: w}, "insecure: peer %s", p.Name)
		}
	}
	for _, s := range v.Sessions {
		for _, p := range s.Paths {
			add(p.Problem, "path %s of session %s", p.Name, sessionName(s))
		}
	}
	for _, a := range v.Attachments {
		add(a.Problem, "disk %s", diskName(a))
	}
	for _, e := range v.Exports {
		add(e.Problem, "export %s", e.Name)
		add(e.Warning, "export %s", e.Name)
	}
	for _, p := range v.Pools {
		switch {
		case p.Problem != nil:
			add(p.Problem, "pool %s", p.Name)
		case poolState(p) != poolWithRoom && poolState(p) != poolUnseen:
			add(&api.Error{Message: "it is " + poolState(p) + ": when it has no room left, writes to its volumes fail", Fix: "Remove volumes and snapshots, or enlarge its storage."}, "pool %s", p.Name)
		}
	}
	for _, t := range v.Targets {
		add(t.Problem, "target %s", t.Name)
	}
	for _, s := range v.NVMe {
		add(s.Problem, "subsystem %s", s.Name)
		for _, u := range s.Units {
			add(u.Problem, "namespace %d of subsystem %s", u.NSID, s.Name)
		}
	}
	for _, c := range v.Captures {
		what := "headers"
		if c.Payload {
			what = "headers and payload"
		}
		add(&api.Error{Message: fmt.Sprintf("process %d reads %s of %s in clear", c.PID, what, cmp.Or(c.Peer, "all peers"))}, "capture %d runs", c.ID)
	}
	for _, b := range v.Blocks {
		add(&api.Error{Message: "it is kept out until " + b.Until.Format(time.TimeOnly) + because(b.Why)}, "peer %s is blocked", b.Peer)
	}
	for _, e := range v.Unusable {
		add(e, "configuration")
	}
	if v.Permissive != "" {
		add(&api.Error{Message: v.Permissive + ": what the policy of partitions denies is let pass"}, "insecure")
	}
	if f := v.Fabric; f != nil {
		add(f.Problem, "fabric")
		for _, m := range f.Managers {
			add(m.Problem, "manager %s", m.Identity)
		}
	}
	return all
}

// Advice is what the doctor finds that is not in order.
func (v view) Advice() []doctor.Finding {
	return slices.DeleteFunc(slices.Clone(v.Findings), func(f doctor.Finding) bool { return f.Level == doctor.OK || f.Level == doctor.Note })
}

// path is a path of a session with the session it is of.
type path struct {
	Session api.Session
	api.SessionPath
}

// Paths are those of all sessions.
func (v view) Paths() (all []path) {
	for _, s := range v.Sessions {
		for _, p := range s.Paths {
			all = append(all, path{s, p})
		}
	}
	return all
}

// rekeyed is how much of the time between an SA's birth and its rekeying has passed, in percent; -1: it is never rekeyed.
func rekeyed(s api.SA) int {
	whole := s.AgeSeconds + s.RekeyInSeconds
	if s.RekeyInSeconds <= 0 || whole <= 0 {
		return -1
	}
	return int(100 * s.AgeSeconds / whole)
}

// States of a pool, for people.
const (
	poolUnseen   = "not looked at yet" // for the first seconds
	poolWithRoom = "ok"
	poolFull     = "full"
)

// poolState is whether volumes of a pool can be made and written to. Of usage it says the alarm that was crossed, and not how much there is: it changes rarely.
func poolState(p api.Pool) string {
	switch {
	case p.Problem != nil:
		return api.PeerProblem
	case p.Size <= 0:
		return poolUnseen
	case p.Free <= 0:
		return poolFull
	case p.Alarm > 0:
		return fmt.Sprintf("over %d %% full", p.Alarm)
	}
	return poolWithRoom
}

// fullness is how much of a pool is not free, in percent; -1: that is not known. What a file system keeps for itself is as good as used.
func fullness(p api.Pool) int {
	if p.Size <= 0 {
		return -1
	}
	return int(100 * (1 - float64(min(max(p.Free, 0), p.Size))/float64(p.Size)))
}

func diskKey(a api.Attachment) string         { return "disk " + a.ULP + " " + a.Name() }
func exportKey(name string) string            { return "export " + name }
func lunKey(target string, number int) string { return "lun " + target + " " + strconv.Itoa(number) }

// front is where a disk is found on this host.
func front(a api.Attachment) string {
	return cmp.Or(a.DeviceLink, a.Device, a.VhostSocket, a.Socket, "-")
}

// transportOf is what carries the streams to a peer.
func transportOf(p api.Peer) string {
	if p.Carrier.Transport == "" {
		return cmp.Or(p.Transport, "-")
	}
	return p.Carrier.Transport
}

// protectionOf says what protects a peer's streams.
func protectionOf(p api.Peer) string {
	if l := live(p); l != nil {
		return strings.TrimSpace(l.ESP + " " + l.Mode)
	}
	return cmp.Or(p.Protection, "ipsec")
}

func live(p api.Peer) *api.LiveSA {
	if p.IPsec == nil {
		return nil
	}
	return p.IPsec.Live
}
