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

// ulpView is what a ULP that is not privileged may see of the host.
type ulpView struct {
	d   *Daemon
	who local.Caller
}

// ulpRoutes is the control API of ULPs that are not privileged. What is not here
// they can't ask for, and what is here is about what they have and may.
func (d *Daemon) ulpRoutes() http.Handler {
	mux := http.NewServeMux()
	getAsULP(d, mux, "GET /v1/info", ulpView.info)
	getAsULP(d, mux, "GET /v1/status", ulpView.status)
	getAsULP(d, mux, "GET /v1/ulps", func(v ulpView) []api.ULP { return []api.ULP{d.describeULP(v.who.Consumer)} })
	getAsULP(d, mux, "GET /v1/resources", ulpView.resources)
	getAsULP(d, mux, "GET /v1/streams", ulpView.streams)
	getAsULP(d, mux, "GET /v1/peers", ulpView.peers)
	get(mux, "GET /v1/peers/{name}", func(r *http.Request) (api.Peer, error) {
		return ulpView{d, callerOf(r.Context())}.peer(r.PathValue("name"))
	})
	get(mux, "GET /v1/peers/{name}/exports", d.offersRoute)
	getAsULP(d, mux, "GET /v1/attachments", func(v ulpView) []api.Attachment { return d.disks.Describe(v.who) })
	stream(mux, "POST /v1/attachments", asCaller(d.attachDisk))
	get(mux, "DELETE /v1/attachments/{peer}/{export}", d.detachRoute)
	stream(mux, "POST /v1/ping", asCaller(d.ping))
	mux.HandleFunc("POST /v1/flows", d.flowsRoute)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		who := callerOf(r.Context())
		respond(w, nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("ULP %s may not ask for %s %s", who.Name, r.Method, r.URL.Path),
			Fix: "that is for root and privileged ULPs: run the command with sudo"})
	})
	return mux
}

// getAsULP serves a call with what its caller sees.
func getAsULP[Out any](d *Daemon, mux *http.ServeMux, pattern string, f func(ulpView) Out) {
	get(mux, pattern, func(r *http.Request) (Out, error) { return f(ulpView{d, callerOf(r.Context())}), nil })
}

// asCaller gives a call its caller.
func asCaller[In, Out any](f func(context.Context, local.Caller, In, func(api.Event)) (Out, error)) func(context.Context, In, func(api.Event)) (Out, error) {
	return func(ctx context.Context, in In, emit func(api.Event)) (Out, error) {
		return f(ctx, callerOf(ctx), in, emit)
	}
}

func (d *Daemon) offersRoute(r *http.Request) ([]api.Offer, error) {
	return d.disks.Offers(r.Context(), callerOf(r.Context()), r.PathValue("name"), r.URL.Query().Get("partition"))
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

// info is what anybody may know who may ask at all.
func (v ulpView) info() api.Info {
	i := v.d.info()
	return api.Info{Version: i.Version, PID: i.PID, ControlSocket: i.ControlSocket, Started: i.Started}
}

// status describes what a ULP has and may.
func (v ulpView) status() api.Status {
	return api.Status{
		Info: v.info(), Listeners: []api.Listener{}, Peers: v.peers(), SAs: []api.SA{}, Streams: v.streams(),
		Sessions: v.d.sessionStates(v.who), Exports: []api.Export{}, Attachments: v.d.disks.Describe(v.who), Blocks: []api.Block{},
	}
}

// resources is what a ULP has of the RNIC.
func (v ulpView) resources() api.Resources {
	r := v.d.Resources()
	return api.Resources{
		ULPs:  slices.DeleteFunc(r.ULPs, func(p api.Principal) bool { return !owns(v.who, p.Name) }),
		Peers: []api.Principal{}, Events: []api.EventCount{},
	}
}

func (v ulpView) streams() []api.Stream {
	return slices.DeleteFunc(v.d.streams(), func(s api.Stream) bool { return !owns(v.who, s.Service) })
}

// peers are the peers that a ULP may use, as far as it has to know them.
func (v ulpView) peers() []api.Peer {
	out := []api.Peer{}
	for _, p := range v.d.peers.list() {
		if one, err := v.peer(p.cfg.Name); err == nil {
			out = append(out, one)
		}
	}
	return out
}

func (v ulpView) peer(name string) (api.Peer, error) {
	if err := v.who.MayUse(name); err != nil {
		return api.Peer{}, err
	}
	p, err := v.d.findPeer(name)
	if err != nil {
		return api.Peer{}, err
	}
	full := v.d.describePeer(p, streamCount{})
	one := api.Peer{
		PeerSpec: api.PeerSpec{Name: full.Name, Address: full.Address, Port: full.Port, Transport: full.Transport, Protection: full.Protection,
			InsecurePlaintext: full.InsecurePlaintext},
		State: full.State, Exports: []string{}, Insecure: full.Insecure,
	}
	for _, s := range v.streams() {
		if s.Peer == name {
			one.Streams++
		}
	}
	if full.Problem != nil {
		one.Problem = v.who.Redact(name, full.Problem)
	}
	return one, nil
}
