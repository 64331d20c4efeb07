package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/manage"
	"github.com/ironwarp/ironwarp/daemon/volumes"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// managerKey is the key of the peer that makes a request; a request of this host has none.
type managerKey struct{}

// manager is who manages volumes: this host, or a peer.
type manager struct {
	peer  config.Peer
	local bool
}

func managerOf(ctx context.Context) manager {
	if p, ok := ctx.Value(managerKey{}).(config.Peer); ok {
		return manager{peer: p}
	}
	return manager{local: true}
}

// may reports whether a pool is the manager's to manage.
func (m manager) may(p config.Pool) bool { return m.local || mayManagePool(p, m.peer) }

// managing has what a peer asks for done to what is its own when that is done, see volumes.Managing.
func (m manager) managing(ctx context.Context) context.Context {
	if m.local {
		return ctx
	}
	return volumes.Managing(ctx, m.may)
}

// checkPool fails if a pool is not the manager's: for a peer it does not exist then.
func (d *Daemon) checkPool(m manager, pool string) error {
	if p, ok := d.config().Pool(pool); ok && m.may(p) || m.local {
		return nil
	}
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no pool %q that this host may manage", printable.Text(pool)), Fix: "manage: of the pool has to name this host there"}
}

// checkVolume fails if a volume's pool is not the manager's.
func (d *Daemon) checkVolume(m manager, volume string) error {
	if m.local {
		return nil
	}
	if pool, ok := d.volumes.PoolOf(volume); ok && d.checkPool(m, pool) == nil {
		return nil
	}
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no volume %s that this host may manage", printable.Text(volume))}
}

// volumeRoutes is the management of volumes, for this host and for peers.
func (d *Daemon) volumeRoutes(mux *http.ServeMux) {
	volumeGet(d, mux, "GET /v1/pools", func(r *http.Request, m manager) ([]api.Pool, error) {
		return d.volumes.PoolsOf(r.Context(), m.may), nil
	})
	volumeGet(d, mux, "GET /v1/pools/{name}", func(r *http.Request, m manager) (api.Pool, error) {
		if err := d.checkPool(m, r.PathValue("name")); err != nil {
			return api.Pool{}, err
		}
		return d.volumes.ShowPool(r.Context(), r.PathValue("name"))
	})
	volumeGet(d, mux, "GET /v1/volumes", func(r *http.Request, m manager) ([]api.Volume, error) {
		return d.volumes.ListOf(r.Context(), m.may), nil
	})
	volumePost(d, mux, "POST /v1/volumes", func(r *http.Request, m manager, q api.VolumeCreate) (api.Volume, error) {
		if err := d.checkPool(m, q.Pool); err != nil {
			return api.Volume{}, err
		}
		if q.From != "" {
			if err := d.checkVolume(m, q.From); err != nil {
				return api.Volume{}, err
			}
		}
		return d.volumes.Create(r.Context(), q)
	})
	ofVolume := func(pattern string, f func(r *http.Request, name string) (any, error)) {
		volumeGet(d, mux, pattern, func(r *http.Request, m manager) (any, error) {
			if err := d.checkVolume(m, r.PathValue("name")); err != nil {
				return nil, err
			}
			return f(r, r.PathValue("name"))
		})
	}
	ofVolume("GET /v1/volumes/{name}", func(r *http.Request, name string) (any, error) { return d.volumes.Show(r.Context(), name) })
	ofVolume("DELETE /v1/volumes/{name}", func(r *http.Request, name string) (any, error) {
		return struct{}{}, d.volumes.Remove(r.Context(), name)
	})
	changeVolume(d, mux, "expand", func(ctx context.Context, _ manager, name string, q api.VolumeExpand) (api.Volume, error) {
		return d.volumes.Expand(ctx, name, q)
	})
	changeVolume(d, mux, "snapshot", func(ctx context.Context, _ manager, name string, q api.VolumeSnapshot) (api.Volume, error) {
		return d.volumes.Snapshot(ctx, name, q)
	})
	changeVolume(d, mux, "qos", func(ctx context.Context, _ manager, name string, q api.QoS) (api.Volume, error) {
		return d.volumes.SetQoS(ctx, name, q)
	})
	changeVolume(d, mux, "publish", func(ctx context.Context, m manager, name string, q api.VolumePublish) (api.VolumePublished, error) {
		q.Peer = m.orItself(q.Peer)
		return d.volumes.Publish(ctx, name, q)
	})
	changeVolume(d, mux, "unpublish", func(ctx context.Context, m manager, name string, q api.VolumeUnpublish) (api.Fenced, error) {
		q.Peer = m.orItself(q.Peer)
		return d.volumes.Unpublish(ctx, name, q)
	})
}

// orItself is the peer that a request names, or the one that makes it.
func (m manager) orItself(peer string) string {
	if peer == "" && !m.local {
		return m.peer.Name
	}
	return peer
}

// volumeGet serves a call without a body, or has the peer of its query do so.
func volumeGet[Out any](d *Daemon, mux *http.ServeMux, pattern string, f func(*http.Request, manager) (Out, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if m := managerOf(r.Context()); !m.local || !r.URL.Query().Has("peer") {
			out, err := f(r.WithContext(m.managing(r.Context())), m)
			respond(w, out, err)
			return
		}
		out, err := d.askPeer(r, nil)
		respond(w, out, err)
	})
}

// volumePost is volumeGet for a call with a body.
func volumePost[In, Out any](d *Daemon, mux *http.ServeMux, pattern string, f func(*http.Request, manager, In) (Out, error)) {
	post(mux, pattern, func(r *http.Request, in In) (any, error) {
		if m := managerOf(r.Context()); !m.local || !r.URL.Query().Has("peer") {
			return f(r.WithContext(m.managing(r.Context())), m, in)
		}
		return d.askPeer(r, in)
	})
}

// changeVolume serves a call that does something with one volume.
func changeVolume[In, Out any](d *Daemon, mux *http.ServeMux, what string, f func(context.Context, manager, string, In) (Out, error)) {
	volumePost(d, mux, "POST /v1/volumes/{name}/"+what, func(r *http.Request, m manager, in In) (out Out, err error) {
		if err := d.checkVolume(m, r.PathValue("name")); err != nil {
			return out, err
		}
		return f(r.Context(), m, r.PathValue("name"), in)
	})
}

// managed is a request that one host sends another, and its answer.
type (
	managedRequest struct {
		Method string          `json:"method"`
		Path   string          `json:"path"`
		Body   json.RawMessage `json:"body,omitempty"`
	}
	managedAnswer struct {
		Result json.RawMessage `json:"result,omitempty"`
		Error  *api.Error      `json:"error,omitempty"`
	}
)

// manageTime bounds the set-up of a stream to a peer that is to be managed.
const manageTime = 30 * time.Second

// askPeer has a peer carry out a request, in a stream of its own.
func (d *Daemon) askPeer(r *http.Request, body any) (json.RawMessage, error) {
	name, who := r.URL.Query().Get("peer"), callerOf(r.Context())
	p, err := d.findPeer(name)
	if err != nil {
		return nil, err
	}
	q := managedRequest{Method: r.Method, Path: r.URL.EscapedPath()}
	if body != nil {
		if q.Body, err = json.Marshal(body); err != nil {
			return nil, err
		}
	}
	request, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	text, err := d.callPeer(r.Context(), who, p, request)
	if err != nil {
		return nil, err
	}
	return answerOf(name, text)
}

func (d *Daemon) callPeer(ctx context.Context, who local.Caller, p *peer, request []byte) (answer []byte, err error) {
	if p.cfg.Protection == config.ProtectPlaintext {
		return nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("nothing protects the streams of peer %s: it is not managed over them", p.cfg.Name)}
	}
	dctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.lifetime, cancel)()
	start := time.AfterFunc(manageTime, cancel)
	err = p.TryCarriers(dctx, func() error {
		tc, tried, err := d.carriers.ChooseNamed(dctx, who.Consumer, p, "")
		if err != nil {
			return err
		}
		dial := verbs.DialConfig{Remote: p.cfg.AddrPort(), Transport: tc, Setup: p.cfg.Setup()}
		answer, err = manage.Call(dctx, who.Disks, dial, request, func() { start.Stop() })
		tried(err)
		return err
	})
	var known *api.Error
	switch {
	case err == nil:
		return answer, nil
	case errors.Is(err, manage.ErrRefused):
		return nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("peer %s: %v", p.cfg.Name, err), Fix: "name this host in manage: of a pool there, then run `ironwarp reload` there"}
	case errors.As(err, &known):
		return nil, known
	}
	return nil, p.Unreachable(err)
}

// answerManager carries out the request of a peer.
func (d *Daemon) answerManager(ctx context.Context, id transport.Identity, request []byte) []byte {
	var a managedAnswer
	result, err := d.serveManager(ctx, id, request)
	if err != nil {
		a.Error = apiError(err)
	} else {
		a.Result = result
	}
	text, err := json.Marshal(a)
	if err == nil && len(text) > manage.MaxAnswer {
		text, err = json.Marshal(managedAnswer{Error: &api.Error{Code: api.CodeUnavailable, Message: "the answer is too long", Fix: "ask for one volume"}})
	}
	if err != nil {
		d.log.Error("an answer to a manager cannot be written", "peer", id, "error", err)
	}
	return text
}

func (d *Daemon) serveManager(ctx context.Context, id transport.Identity, request []byte) (json.RawMessage, error) {
	p := d.peers.byIdentity(id)
	if p == nil || !d.mayManageAny(p.cfg) {
		return nil, &api.Error{Code: api.CodeForbidden, Message: "no pool of this host may be managed by the peer"}
	}
	var q managedRequest
	dec := json.NewDecoder(bytes.NewReader(request))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&q); err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the request is not understood: %v", err)}
	}
	at, err := url.ParseRequestURI(q.Path)
	if err != nil || at.RawQuery != "" || at.Host != "" || q.Method != http.MethodGet && q.Method != http.MethodPost && q.Method != http.MethodDelete {
		return nil, &api.Error{Code: api.CodeInvalid, Message: "the request is for no call of the management of volumes"}
	}
	ctx = context.WithValue(context.WithValue(ctx, managerKey{}, p.cfg), callerKey{}, local.Caller{})
	r := (&http.Request{Method: q.Method, URL: at, Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(q.Body))}).WithContext(ctx)
	mux := http.NewServeMux()
	d.volumeRoutes(mux)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		respond(w, nil, &api.Error{Code: api.CodeNotFound, Message: "this host lets peers manage its volumes, and nothing else", Fix: "do both hosts have the same version? See `ironwarp version`"})
	})
	d.log.Info("a peer manages volumes", "peer", p.cfg.Name, "call", printable.Text(q.Method+" "+q.Path))
	var w answerWriter
	mux.ServeHTTP(&w, r)
	if w.status == 0 || w.status/100 == 2 {
		return w.body.Bytes(), nil
	}
	var e api.Error
	if err := json.Unmarshal(w.body.Bytes(), &e); err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the call ended with status %d", w.status)}
	}
	return nil, &e
}

// mayManageAny reports whether a peer may manage some pool.
func (d *Daemon) mayManageAny(p config.Peer) bool {
	for _, pool := range d.config().Pools {
		if mayManagePool(pool, p) {
			return true
		}
	}
	return false
}

// answerWriter keeps an answer.
type answerWriter struct {
	header http.Header
	body   bytes.Buffer
	status int
}

func (w *answerWriter) Header() http.Header {
	if w.header == nil {
		w.header = http.Header{}
	}
	return w.header
}

func (w *answerWriter) Write(p []byte) (int, error) { return w.body.Write(p) }
func (w *answerWriter) WriteHeader(status int)      { w.status = status }
