package daemon

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/local"
)

// ulpRoutes is the control API of ULPs that are not privileged. What is not here
// they can't ask for, and what is here is about what they have and may.
func (d *Daemon) ulpRoutes() http.Handler {
	mux := http.NewServeMux()
	get(mux, "GET /v1/info", func(*http.Request) (api.Info, error) { return d.publicInfo(), nil })
	get(mux, "GET /v1/status", func(r *http.Request) (api.Status, error) { return d.statusOf(callerOf(r.Context())), nil })
	get(mux, "GET /v1/ulps", func(r *http.Request) ([]api.ULP, error) { return d.ulpsOf(callerOf(r.Context())), nil })
	get(mux, "GET /v1/resources", func(r *http.Request) (api.Resources, error) { return d.resourcesOf(callerOf(r.Context())), nil })
	get(mux, "GET /v1/streams", func(r *http.Request) ([]api.Stream, error) { return d.streamsOf(callerOf(r.Context())), nil })
	get(mux, "GET /v1/peers", func(r *http.Request) ([]api.Peer, error) { return d.peersOf(callerOf(r.Context())), nil })
	get(mux, "GET /v1/peers/{name}", func(r *http.Request) (api.Peer, error) {
		return d.peerOf(callerOf(r.Context()), r.PathValue("name"))
	})
	get(mux, "GET /v1/peers/{name}/exports", d.offersRoute)
	get(mux, "GET /v1/attachments", func(r *http.Request) ([]api.Attachment, error) { return d.disks.Describe(callerOf(r.Context())), nil })
	stream(mux, "POST /v1/attachments", asCaller(d.disks.Attach))
	get(mux, "DELETE /v1/attachments/{peer}/{export}", d.detachRoute)
	stream(mux, "POST /v1/ping", asCaller(d.ping))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		who := callerOf(r.Context())
		answer(w, nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("ULP %s may not ask for %s %s", who.Name, r.Method, r.URL.Path),
			Fix: "that is for root and privileged ULPs: run the command with sudo"})
	})
	return mux
}

// asCaller gives a call its caller.
func asCaller[In, Out any](f func(context.Context, local.Caller, In, func(api.Event)) (Out, error)) func(context.Context, In, func(api.Event)) (Out, error) {
	return func(ctx context.Context, in In, emit func(api.Event)) (Out, error) {
		return f(ctx, callerOf(ctx), in, emit)
	}
}

func (d *Daemon) offersRoute(r *http.Request) ([]api.Offer, error) {
	return d.disks.Offers(r.Context(), callerOf(r.Context()), r.PathValue("name"))
}

// detachRoute detaches a disk of the caller, or of the ULP that a privileged one names.
func (d *Daemon) detachRoute(r *http.Request) (any, error) {
	who := callerOf(r.Context())
	k := attach.Disk{ULP: who.Name, Peer: r.PathValue("peer"), Export: r.PathValue("export")}
	if q := r.URL.Query(); q.Has("ulp") && mayNameOthers(who) {
		k.ULP = q.Get("ulp")
	} else if q.Has("ulp") && q.Get("ulp") != who.Name {
		return nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("ULP %s may not detach disks of others", who.Name), Fix: "run the command with sudo"}
	}
	return struct{}{}, d.disks.Detach(k, r.URL.Query().Get("force") != "")
}

// publicInfo is what anybody may know who may ask at all.
func (d *Daemon) publicInfo() api.Info {
	i := d.Info()
	return api.Info{Version: i.Version, PID: i.PID, ControlSocket: i.ControlSocket, Started: i.Started}
}

// statusOf describes what a ULP has and may.
func (d *Daemon) statusOf(who local.Caller) api.Status {
	return api.Status{
		Info: d.publicInfo(), Listeners: []api.Listener{}, Peers: d.peersOf(who), SAs: []api.SA{}, Streams: d.streamsOf(who),
		Sessions: d.sessionStates(who), Exports: []api.Export{}, Attachments: d.disks.Describe(who), Blocks: []api.Block{},
	}
}

func (d *Daemon) ulpsOf(who local.Caller) []api.ULP { return []api.ULP{d.describeULP(who.Consumer)} }

// resourcesOf is what a ULP has of the RNIC.
func (d *Daemon) resourcesOf(who local.Caller) api.Resources {
	r := d.Resources()
	return api.Resources{
		ULPs:  slices.DeleteFunc(r.ULPs, func(p api.Principal) bool { return !isIts(who, p.Name) }),
		Peers: []api.Principal{}, Events: []api.EventCount{},
	}
}

func (d *Daemon) streamsOf(who local.Caller) []api.Stream {
	return slices.DeleteFunc(d.streams(), func(s api.Stream) bool { return !isIts(who, s.Service) })
}

// peersOf are the peers that a ULP may use, as far as it has to know them.
func (d *Daemon) peersOf(who local.Caller) []api.Peer {
	out := []api.Peer{}
	for _, p := range d.peers.list() {
		if v, err := d.peerOf(who, p.cfg.Name); err == nil {
			out = append(out, v)
		}
	}
	return out
}

func (d *Daemon) peerOf(who local.Caller, name string) (api.Peer, error) {
	if err := who.MayUse(name); err != nil {
		return api.Peer{}, err
	}
	p, err := d.findPeer(name)
	if err != nil {
		return api.Peer{}, err
	}
	streams := 0
	for _, s := range d.streamsOf(who) {
		if s.Peer == name {
			streams++
		}
	}
	full := d.describePeer(p, streamCount{})
	v := api.Peer{
		PeerSpec: api.PeerSpec{Name: full.Name, Address: full.Address, Port: full.Port, Transport: full.Transport, Protection: full.Protection,
			InsecurePlaintext: full.InsecurePlaintext},
		State: full.State, Streams: streams, Exports: []string{}, Insecure: full.Insecure,
	}
	if full.Problem != nil {
		v.Problem = who.Discreet(name, full.Problem)
	}
	return v, nil
}
