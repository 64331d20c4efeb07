package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/daemon/sas"
)

const (
	// maxRequest in bytes; a PeerSpec has a few hundred.
	maxRequest = 1 << 20
	// maxULPRequest in bytes of a ULP that is not privileged: two names and some
	// numbers.
	maxULPRequest = 4 << 10
	// bodyTime is for a client that does not send what it has announced, and answerTime
	// for one that does not read.
	bodyTime   = 10 * time.Second
	answerTime = 30 * time.Second
	// controlHeaderTime is for a client that connects and says nothing.
	controlHeaderTime = 10 * time.Second
)

type (
	connKey   struct{}
	callerKey struct{}
)

// callerOf returns who makes a request.
func callerOf(ctx context.Context) local.Caller { return ctx.Value(callerKey{}).(local.Caller) }

// newControlServer is the server of the control API.
func (d *Daemon) newControlServer() *http.Server {
	return &http.Server{
		Handler:           d.authorized(d.routes(), d.ulpRoutes()),
		ReadHeaderTimeout: controlHeaderTime,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, connKey{}, c)
		},
		BaseContext: func(net.Listener) context.Context { return d.ctx },
		ErrorLog:    slog.NewLogLogger(d.log.With("client", "control socket").Handler(), slog.LevelWarn),
	}
}

// authorized serves root, the daemon's own user and privileged ULPs with all, and
// other ULPs with theirs. It asks the kernel who makes each request.
func (d *Daemon) authorized(all, ulps http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := r.Context().Value(connKey{}).(*local.Conn)
		who, ok := d.local.Admit(c.User)
		if !ok {
			w.Header().Set("Connection", "close")
			respond(w, nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("user id %d may not use the control socket of this daemon", c.User.UID),
				Fix: "it answers root, the user it runs as, and the users of ULPs, which `ironwarp ulp add` declares: run the command with sudo"})
			return
		}
		defer who.Requests.Done()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		if who.Rights != nil {
			defer context.AfterFunc(who.Rights, cancel)()
		}
		end, err := d.local.Begin(ctx, who, r)
		if err != nil {
			respond(w, nil, err)
			return
		}
		defer end()
		next := ulps
		if mayAskAll(who) {
			next = all
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(ctx, callerKey{}, who)))
	})
}

func (d *Daemon) routes() http.Handler {
	mux := http.NewServeMux()
	get(mux, "GET /v1/info", func(*http.Request) (api.Info, error) { return d.info(), nil })
	get(mux, "GET /v1/status", func(r *http.Request) (api.Status, error) { return d.Status(r.Context()), nil })
	get(mux, "POST /v1/reload", func(r *http.Request) (api.Reloaded, error) { return d.Reload(r.Context()) })
	get(mux, "GET /v1/peers", func(r *http.Request) ([]api.Peer, error) { return d.describePeers(), nil })
	get(mux, "GET /v1/peers/{name}", func(r *http.Request) (api.Peer, error) { return d.describePeerNamed(r.PathValue("name")) })
	post(mux, "POST /v1/peers", func(r *http.Request, s api.PeerSpec) (api.Peer, error) {
		return d.declarePeer(r.Context(), s.Name, func(main string) error { _, err := AddPeer(main, s); return err })
	})
	post(mux, "PATCH /v1/peers", func(r *http.Request, c api.PeerChange) (api.Peer, error) {
		return d.declarePeer(r.Context(), c.Name, func(main string) error { _, err := SetPeer(main, c); return err })
	})
	get(mux, "DELETE /v1/peers/{name}", func(r *http.Request) (api.Removed, error) {
		return d.removePeer(r.Context(), r.PathValue("name"), r.URL.Query().Get("force") != "")
	})
	get(mux, "GET /v1/peers/{name}/exports", d.offersRoute)
	post(mux, "POST /v1/peers/{name}/paths", func(r *http.Request, q api.Path) (api.Peer, error) {
		return d.addPath(r.Context(), r.PathValue("name"), q)
	})
	get(mux, "DELETE /v1/peers/{name}/paths/{path}", func(r *http.Request) (api.Peer, error) {
		return d.removePath(r.Context(), r.PathValue("name"), r.PathValue("path"))
	})
	get(mux, "GET /v1/sessions", func(*http.Request) ([]api.Session, error) { return d.sessionStates(d.local.AsRoot()), nil })
	post(mux, "POST /v1/sessions/policy", func(_ *http.Request, q api.PolicyRequest) ([]api.Session, error) { return d.setPolicy(q) })
	post(mux, "POST /v1/sessions/path", func(_ *http.Request, q api.PathRequest) ([]api.Session, error) { return d.orderPath(q) })
	get(mux, "GET /v1/exports", func(*http.Request) ([]api.Export, error) { return d.exports.List(), nil })
	post(mux, "POST /v1/exports", func(r *http.Request, s api.ExportSpec) (api.Export, error) {
		return d.declareExport(r.Context(), func(main string) (exportPlan, error) { return planExport(main, s) })
	})
	get(mux, "POST /v1/exports/{name}/repair", func(r *http.Request) (api.Export, error) { return d.repairExport(r.PathValue("name")) })
	post(mux, "POST /v1/exports/{name}/fence", func(r *http.Request, q api.FenceRequest) (api.Fenced, error) {
		return d.exports.Fence(r.Context(), r.PathValue("name"), q)
	})
	post(mux, "POST /v1/exports/{name}/resize", func(r *http.Request, q api.ResizeRequest) (api.Export, error) {
		return d.resizeExport(r.PathValue("name"), q)
	})
	post(mux, "PATCH /v1/exports/{name}", func(r *http.Request, c api.ExportChange) (api.Export, error) {
		return d.declareExport(r.Context(), func(main string) (exportPlan, error) { return planChange(main, r.PathValue("name"), c) })
	})
	get(mux, "DELETE /v1/exports/{name}", func(r *http.Request) (any, error) {
		return struct{}{}, d.removeExport(r.Context(), r.PathValue("name"), r.URL.Query().Get("force") != "")
	})
	d.volumeRoutes(mux)
	d.targetRoutes(mux)
	d.nvmeRoutes(mux)
	get(mux, "GET /v1/attachments", func(*http.Request) ([]api.Attachment, error) { return d.disks.Describe(d.local.AsRoot()), nil })
	d.fabricRoutes(mux)
	stream(mux, "POST /v1/attachments", asCaller(d.attachDisk))
	get(mux, "DELETE /v1/attachments/{peer}/{export}", d.detachRoute)
	get(mux, "GET /v1/ulps", func(*http.Request) ([]api.ULP, error) { return d.describeULPs(), nil })
	post(mux, "POST /v1/ulps", func(r *http.Request, s api.ULPSpec) (api.ULP, error) {
		return d.declareULP(r.Context(), s.Name, func(main string) error { _, err := AddULP(main, s); return err })
	})
	post(mux, "PATCH /v1/ulps/{name}", func(r *http.Request, c api.ULPChange) (api.ULP, error) {
		name := r.PathValue("name")
		return d.declareULP(r.Context(), name, func(main string) error { _, err := SetULP(main, name, c); return err })
	})
	get(mux, "DELETE /v1/ulps/{name}", func(r *http.Request) (any, error) {
		return struct{}{}, d.removeULP(r.Context(), r.PathValue("name"), r.URL.Query().Get("force") != "")
	})
	get(mux, "GET /v1/partitions", func(*http.Request) ([]api.Partition, error) { return d.describePartitions(), nil })
	get(mux, "GET /v1/audit", func(r *http.Request) (api.Audit, error) { return d.audit(r.Context()), nil })
	get(mux, "GET /v1/resources", func(*http.Request) (api.Resources, error) { return d.Resources(), nil })
	get(mux, "GET /v1/streams", func(*http.Request) ([]api.Stream, error) { return d.streams(), nil })
	get(mux, "DELETE /v1/streams/{id}", func(r *http.Request) (api.Stream, error) { return d.killStream(r.PathValue("id")) })
	get(mux, "GET /v1/blocks", func(*http.Request) ([]api.Block, error) { return d.blocks.All(), nil })
	post(mux, "POST /v1/blocks", func(r *http.Request, b api.BlockRequest) (api.Block, error) { return d.blockPeer(r.Context(), b) })
	get(mux, "DELETE /v1/blocks/{peer}", func(r *http.Request) (any, error) {
		return struct{}{}, d.blocks.Unblock(r.Context(), r.PathValue("peer"))
	})
	get(mux, "GET /v1/sas", func(r *http.Request) ([]api.SA, error) { return d.sas.SAs(r.Context()) })
	get(mux, "DELETE /v1/sas", func(r *http.Request) (int, error) {
		return d.sas.Execute(r.Context(), sas.Delete, r.URL.Query().Get("peer"), r.URL.Query().Get("child"))
	})
	get(mux, "GET /v1/ike", func(r *http.Request) ([]api.IKESA, error) {
		return d.sas.IKESAs(r.Context(), r.URL.Query().Get("peer"))
	})
	get(mux, "DELETE /v1/ike", func(r *http.Request) (int, error) {
		return d.sas.Execute(r.Context(), sas.DeleteIKE, r.URL.Query().Get("peer"), "")
	})
	post(mux, "POST /v1/sas/rekey", func(r *http.Request, s api.SARequest) (int, error) {
		return d.sas.Execute(r.Context(), sas.Rekey, s.Peer, s.Child)
	})
	post(mux, "POST /v1/ike/rekey", func(r *http.Request, s api.SARequest) (int, error) {
		return d.sas.Execute(r.Context(), sas.RekeyIKE, s.Peer, "")
	})
	stream(mux, "POST /v1/sas/watch", d.sas.Watch)
	stream(mux, "POST /v1/ping", asCaller(d.ping))
	stream(mux, "POST /v1/bench", asCaller(d.bench))
	mux.HandleFunc("POST /v1/captures", d.captureRoute)
	get(mux, "GET /v1/captures", func(*http.Request) ([]api.Capture, error) { return d.describeCaptures(), nil })
	get(mux, "DELETE /v1/captures/{id}", d.endCapture)
	mux.HandleFunc("POST /v1/flows", d.flowsRoute)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		respond(w, nil, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("the control API has no %s %s", r.Method, r.URL.Path),
			Fix: "are the command and the daemon of the same version? See `ironwarp version`"})
	})
	return mux
}

// get serves a call without a body.
func get[Out any](mux *http.ServeMux, pattern string, f func(*http.Request) (Out, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		out, err := f(r)
		respond(w, out, err)
	})
}

// post serves a call with a JSON body.
func post[In, Out any](mux *http.ServeMux, pattern string, f func(*http.Request, In) (Out, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		in, err := decodeBody[In](w, r)
		if err != nil {
			respond(w, nil, err)
			return
		}
		out, err := f(r, in)
		respond(w, out, err)
	})
}

// stream serves a call that reports events while it works. The call's context
// ends when the client goes away.
func stream[In, Out any](mux *http.ServeMux, pattern string, f func(context.Context, In, func(api.Event)) (Out, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		in, err := decodeBody[In](w, r)
		if err != nil {
			respond(w, nil, err)
			return
		}
		w.Header().Set("Content-Type", "application/x-ndjson")
		enc, flush := json.NewEncoder(w), http.NewResponseController(w)
		var mu sync.Mutex
		ended := false
		emit := func(ev api.Event) {
			mu.Lock()
			defer mu.Unlock()
			if ended {
				return
			}
			ended = ev.Result != nil || ev.Error != nil
			_ = flush.SetWriteDeadline(time.Now().Add(answerTime))
			// A client that has gone away ends the call by its context.
			_ = enc.Encode(ev)
			_ = flush.Flush()
		}
		out, err := f(r.Context(), in, emit)
		last := api.Event{Error: apiError(err)}
		if err == nil {
			last.Result, err = json.Marshal(api.Lists(out))
			last.Error = apiError(err)
		}
		emit(last)
	})
}

func decodeBody[In any](w http.ResponseWriter, r *http.Request) (in In, err error) {
	// A slow client keeps a slot of its own busy, and no longer than this. All connections
	// have deadlines, so nothing can fail here.
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime))
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody(callerOf(r.Context()))))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return in, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("the body of %s %s is not what is expected: %v", r.Method, r.URL.Path, err)}
	}
	if _, err := dec.Token(); err != io.EOF {
		return in, &api.Error{Code: api.CodeInvalid, Message: "more than one JSON value in the body"}
	}
	_ = rc.SetReadDeadline(time.Time{}) // a call may take its time
	return in, nil
}

func respond(w http.ResponseWriter, out any, err error) {
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTime))
	if err != nil {
		e := apiError(err)
		w.WriteHeader(httpStatus(e.Code))
		out = e
	}
	// The client may be gone; nobody else is to be told.
	_ = json.NewEncoder(w).Encode(api.Lists(out))
}

func httpStatus(code string) int {
	switch code {
	case api.CodeInvalid:
		return http.StatusBadRequest
	case api.CodeNotFound:
		return http.StatusNotFound
	case api.CodeExists, api.CodeInUse:
		return http.StatusConflict
	case api.CodeForbidden:
		return http.StatusForbidden
	case api.CodeUnavailable:
		return http.StatusServiceUnavailable
	case api.CodeTimeout:
		return http.StatusGatewayTimeout
	case api.CodeNoSpace:
		return http.StatusInsufficientStorage
	case api.CodeUnsupported:
		return http.StatusNotImplemented
	}
	return http.StatusInternalServerError
}

// serveControl runs the control API until the daemon closes.
func (d *Daemon) serveControl(l net.Listener) {
	err := d.http.Serve(&local.Listener{Listener: l, GateOf: d.local.GateOf})
	if !errors.Is(err, http.ErrServerClosed) {
		d.log.Error("the control socket has failed", "socket", l.Addr(), "error", err)
	}
}
