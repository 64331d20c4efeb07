package daemon

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/verbs"
)

// reload appends to the main file and reloads.
func (h *host) reload(more string) api.Reloaded {
	h.t.Helper()
	main, err := os.ReadFile(h.conf)
	if err != nil {
		h.t.Fatal(err)
	}
	h.write("ironwarp.yaml", string(main)+more)
	r, err := h.api.Reload(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	h.write("ironwarp.yaml", string(main))
	return r
}

func (h *host) resources() api.Resources {
	h.t.Helper()
	r, err := h.api.Resources(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	return r
}

// ping makes a round trip to beta over a stream of its own.
func (h *host) ping() error {
	_, err := h.api.Ping(h.t.Context(), api.PingRequest{Peer: "beta", Count: 1}, nil)
	return err
}

// use is what a principal has of a resource.
func use(t *testing.T, list []api.Principal, name, resource string) api.Resource {
	t.Helper()
	for _, p := range list {
		if p.Name != name {
			continue
		}
		for _, u := range p.Uses {
			if u.Name == resource {
				return u
			}
		}
	}
	t.Fatalf("%s has no %s in %+v", name, resource, list)
	return api.Resource{}
}

// Limits of the device, of services and of peers are those of the configuration,
// from the start and from a reload on, while streams run.
func TestLimitsOfTheConfigurationHoldFromAReloadOn(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	if err := alpha.ping(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the ping's stream has gone", func() bool { return use(t, beta.resources().Peers, "alpha", "streams").Used == 2 })
	for what, more := range map[string]string{
		"device":   "limits: {streams: 2}\n",
		"service":  "services: {ping: {limits: {memory: 1MiB}}}\n",
		"per peer": "limits: {per_peer: {streams: 2}}\n",
	} {
		t.Run(what, func(t *testing.T) {
			if r := beta.reload(more); len(r.Changed) != 1 || !strings.HasPrefix(r.Changed[0], "limits") || len(r.Restart) != 0 {
				t.Errorf("reload: %+v", r)
			}
			if err := alpha.ping(); err == nil {
				t.Error("a stream beyond the limit is there")
			}
			ok(t, c, cmdRead, 0, 512, nil)
			if r, err := beta.api.Reload(t.Context()); err != nil || len(r.Changed) != 1 {
				t.Errorf("back: %+v, %v", r, err)
			}
			if err := alpha.ping(); err != nil {
				t.Errorf("after the limit has gone: %v", err)
			}
			eventually(t, "the ping's stream has gone", func() bool { return use(t, beta.resources().Peers, "alpha", "streams").Used == 2 })
		})
	}
	// One that has its own is not held by what others may.
	beta.write("peers.d/alpha.yaml", fmt.Sprintf("name: alpha\naddress: 127.0.0.1\nport: %d\nprotection: loopback\nlimits: {streams: 3}\n", alpha.port))
	beta.reload("limits: {per_peer: {streams: 1}}\n")
	if u := use(t, beta.resources().Peers, "alpha", "streams"); u.Limit != 3 {
		t.Errorf("alpha: %+v, want its own limit", u)
	}
	if err := alpha.ping(); err != nil {
		t.Errorf("within its own limit: %v", err)
	}
	if got := use(t, beta.resources().ULPs, "exports", "streams"); got.Used != 2 || got.Share == 0 {
		t.Errorf("exports have %+v", got)
	}
}

// A peer that is configured has a share, also while it uses nothing; one that has
// gone has none.
func TestConfiguredPeersHaveAShare(t *testing.T) {
	h := newHost(t, "peers: [{name: idle, address: 127.0.0.7, protection: loopback, limits: {inbound_reads: 5}}]\n")
	r := h.resources()
	if len(r.Peers) != 1 || r.Peers[0].Identity != "loopback:127.0.0.7" || use(t, r.Peers, "idle", "streams").Share == 0 {
		t.Errorf("peers %+v", r.Peers)
	}
	if u := use(t, r.Peers, "idle", "inbound_reads"); u.Limit != 5 || u.Share != 5 {
		t.Errorf("a share is no more than the limit: %+v", u)
	}
	if err := os.WriteFile(h.conf, []byte(fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n", h.port, h.udp)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := h.api.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r := h.resources(); len(r.Peers) != 0 {
		t.Errorf("after the peer has gone: %+v", r.Peers)
	}
}

// trustOfStreams are the trust models of streams of a service.
func (h *host) trustOfStreams(service string) []string {
	h.t.Helper()
	list, err := h.api.Streams(h.t.Context())
	if err != nil {
		h.t.Fatal(err)
	}
	var models []string
	for _, s := range list {
		if s.Service == service {
			models = append(models, s.Trust)
		}
	}
	slices.Sort(models)
	return slices.Compact(models)
}

// Trust is by device, service and export; a reload that trusts less ends the streams
// that were trusted more, whose sessions come back under the new model.
func TestTrustOfTheConfigurationHoldsFromAReloadOn(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	is := func(what, want string) {
		t.Helper()
		eventually(t, what, func() bool { return fmt.Sprint(beta.trustOfStreams("exports")) == "["+want+"]" })
		ok(t, c, cmdRead, 0, 512, nil)
	}
	is("nobody is trusted by default", "NS-NT")
	if r := beta.reload("services: {exports: {trust: S-LT}}\n"); fmt.Sprint(r.Changed) != "[trust of exports is S-LT now]" {
		t.Errorf("reload: %+v", r)
	}
	is("a session that is there keeps the stricter model", "NS-NT")
	killAll := func() {
		for _, s := range beta.status().Streams {
			if _, err := beta.api.KillStream(t.Context(), s.ID); err != nil {
				says(t, err, api.CodeNotFound)
			}
		}
	}
	killAll()
	is("the next session has that of the service", "S-LT")
	if r := beta.reload("trust: NS-NT\n"); fmt.Sprint(r.Changed) != "[trust of exports is NS-NT now]" {
		t.Errorf("reload: %+v", r)
	}
	is("with less trust the session is made anew", "NS-NT")
	beta.reload("trust: S-LT\n")
	killAll()
	is("as the device says", "S-LT")
	// A further export that trusts less counts for all sessions of those who may
	// attach it, from then on.
	other := beta.image("other.img", 1<<20)
	main, err := os.ReadFile(beta.conf)
	if err != nil {
		t.Fatal(err)
	}
	beta.write("ironwarp.yaml", string(main)+"trust: S-LT\n")
	if _, err := beta.api.AddExport(t.Context(), api.ExportSpec{Name: "other", Path: other, Allow: []string{"alpha"}, Trust: "NS-NT"}); err != nil {
		t.Fatal(err)
	}
	is("as the strictest export says", "NS-NT")
	_, err = beta.api.AddExport(t.Context(), api.ExportSpec{Name: "lax", Path: beta.image("lax.img", 4096), Allow: []string{"alpha"}, Trust: "S-T"})
	says(t, err, api.CodeInvalid, "export lax has trust S-T, which permits more than S-LT")
	_, err = beta.api.AddExport(t.Context(), api.ExportSpec{Name: "lax", Path: beta.image("lax2.img", 4096), Allow: []string{"alpha"}, Trust: "blind"})
	says(t, err, api.CodeInvalid, `trust is "blind"; allowed: NS-NT`)
}

// An administrator sees streams with what they cost, and ends one; a session makes
// another, and no I/O is lost.
func TestStreamIsEndedByRequest(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	ok(t, c, cmdRead, 0, 512, nil)
	list, err := beta.api.Streams(t.Context())
	if err != nil || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	before := beta.streamIDs()
	s := list[0]
	if s.Service != "exports" || s.Trust != "NS-NT" || s.Peer != "alpha" || s.Idle < 0 || s.Idle > s.AgeSeconds+1 {
		t.Errorf("stream %+v", s)
	}
	if got, err := beta.api.KillStream(t.Context(), s.ID); err != nil || got.ID != s.ID || got.Peer != "alpha" {
		t.Fatalf("%+v, %v", got, err)
	}
	// The other one of its path ends with it, and may be there for a while beside new ones.
	eventually(t, "there are others", func() bool {
		now := beta.streamIDs()
		return len(now) == 2 && !slices.ContainsFunc(now, func(id string) bool { return slices.Contains(before, id) })
	})
	ok(t, c, cmdRead, 0, 512, nil)
	eventually(t, "the log names who did it", func() bool {
		return strings.Contains(beta.log.String(), "ended by request") && strings.Contains(beta.log.String(), "ended by the administrator")
	})
	for _, id := range []string{s.ID, "", "zz", "-1", "0x12", strings.Repeat("f", 17), "../resources"} {
		_, err := beta.api.KillStream(t.Context(), id)
		says(t, err, api.CodeNotFound)
	}
	if len(beta.status().Streams) != 2 {
		t.Error("an ID of nothing has ended a stream")
	}
}

// A peer that drives slow paths beyond the policy loses that stream, which is logged
// and counted; the others go on.
func TestSlowPathPolicyEndsTheStream(t *testing.T) {
	alpha := newHost(t, "")
	beta := newHost(t, "slow: {per_second: 1, burst: 50}\n")
	link(t, alpha, beta)
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	c := alpha.attach("disk")
	r := openRaw(t, beta.port)
	for range 200 {
		// An RDMA Write of nothing needs no STag.
		if _, err := r.mpa.NetConn().Write(fpdu(ddp.AppendTagged(nil, true, rdmap.Control(rdmap.OpWrite), 0, 0))); err != nil {
			break // it has ended already
		}
	}
	eventually(t, "the event is counted", func() bool {
		return slices.ContainsFunc(beta.resources().Events, func(e api.EventCount) bool { return e.Kind == verbs.EventSlowPath.String() && e.Peer == "alpha" })
	})
	eventually(t, "it is logged", func() bool { return strings.Contains(beta.log.String(), `msg="slow path"`) })
	eventually(t, "the session's streams are those that are left", func() bool { return len(beta.status().Streams) == 2 })
	ok(t, c, cmdRead, 0, 512, nil)
}

// What the device is told comes from the configuration, idle policy included: a
// stream that has done nothing goes when others need it.
func TestIdleStreamGivesWay(t *testing.T) {
	alpha := newHost(t, "")
	beta := newHost(t, "limits: {streams: 4}\nidle: {after: 1s, mark: 50, bytes: 1GiB}\n")
	link(t, alpha, beta)
	beta.export("disk", beta.image("disk.img", 1<<20), false)
	alpha.attach("disk")
	eventually(t, "an idle stream ends when streams run short", func() bool {
		return strings.Contains(beta.log.String(), verbs.ErrReaped.Error())
	})
}

// A peer that says always_invalidate: false keeps its requests open where the trust of exports
// permits that, from a reload on, which the audit says.
func TestRequestsStayOpenByChoice(t *testing.T) {
	alpha, beta, _ := pair(t, 1<<20)
	c := alpha.attach("disk")
	is := func(what string, open bool) {
		t.Helper()
		eventually(t, what, func() bool {
			s := beta.status().Sessions
			return len(s) == 1 && s[0].Streams > 0 && s[0].OpenChunks == open
		})
		ok(t, c, cmdWrite, 0, 512, bytes.Repeat([]byte{3}, 512))
	}
	is("requests are closed by default", false)
	set := func(to bool) error {
		_, err := beta.api.SetPeer(t.Context(), api.PeerChange{PeerSpec: api.PeerSpec{Name: "alpha", AlwaysInvalidate: &to}, Set: []string{"always_invalidate"}})
		return err
	}
	says(t, set(false), api.CodeInvalid, "peer alpha has always_invalidate: false, and the trust of exports is NS-NT, which trusts no peer")
	main, err := os.ReadFile(beta.conf)
	if err != nil {
		t.Fatal(err)
	}
	beta.write("ironwarp.yaml", string(main)+"services: {exports: {trust: NS-RT}}\n")
	if err := set(false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session trusts the peer", func() bool {
		for _, s := range beta.status().Streams {
			if s.Trust == verbs.NSNT.String() { // of the stricter model, which a reload leaves alone; later ones stay
				_, _ = beta.api.KillStream(t.Context(), s.ID)
			}
		}
		s := beta.status().Sessions
		return len(s) == 1 && s[0].OpenChunks
	})
	is("requests stay open", true)
	weak := func() (out []string) {
		a, err := beta.api.Audit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range a.Requirements {
			for _, w := range r.Weak {
				if r.ID == "R13" {
					out = append(out, w.Setting)
				}
			}
		}
		return out
	}
	if got := weak(); fmt.Sprint(got) != "[peer alpha: always_invalidate: false]" {
		t.Errorf("the audit says %q", got)
	}
	if err := set(true); err != nil {
		t.Fatal(err)
	}
	is("requests are closed again", false)
	if got := weak(); len(got) != 0 {
		t.Errorf("the audit says %q", got)
	}
}
