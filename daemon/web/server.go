package web

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/doctor"
)

// Source is the daemon as its caller may see it. *api.Client is one.
type Source interface {
	Status(context.Context) (api.Status, error)
	WatchSAs(ctx context.Context, peer string, on func(api.SAEvent)) error
}

// Options are what a Server shows.
type Options struct {
	Source   Source
	Doctor   func(context.Context) []doctor.Finding // examines the host; nil: nobody does
	Host     string                                 // this host's name, for people
	Interval time.Duration                          // between questions to the daemon; 0: DefaultInterval
	Log      *slog.Logger                           // nil: none
}

// Server serves the page of a host.
type Server struct {
	opt     Options
	token   string
	pages   pages
	log     *slog.Logger
	streams chan struct{} // a place for each page that is open
	viewed  atomic.Int64  // when somebody last asked for the page or closed it, in Unix seconds

	headerTime, writeTime, watchAgain time.Duration // those of limits.go, but in tests

	mu      sync.Mutex // guards the fields below it; innermost
	record  record
	shown   []section
	changed chan struct{} // closed with the next change of shown
}

// New returns a server. Its Path is a secret.
func New(opt Options) *Server {
	if opt.Interval <= 0 {
		opt.Interval = DefaultInterval
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	opt.Host = line(opt.Host)
	s := &Server{opt: opt, token: newToken(), pages: newPages(), log: opt.Log, streams: make(chan struct{}, maxStreams), changed: make(chan struct{}),
		headerTime: headerTime, writeTime: writeTime, watchAgain: watchAgain}
	s.render(time.Now())
	return s
}

// Path is where the page is: /TOKEN/. Whoever knows it sees what the user sees who runs the server.
func (s *Server) Path() string { return "/" + s.token + "/" }

// Serve answers requests that come by ln until ctx ends, and closes ln. No connection and no goroutine outlives it. It fails if
// ln does.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	hs := &http.Server{
		Handler: s, ReadHeaderTimeout: s.headerTime, IdleTimeout: time.Minute, MaxHeaderBytes: maxHeader,
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConn,
		DisableGeneralOptionsHandler: true, // who lacks the token gets 404
		// What clients do wrong is no business of who runs the server, and a request has the token.
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	var running sync.WaitGroup
	running.Go(func() { s.askDaemon(ctx) })
	running.Go(func() { s.watchSAs(ctx) })
	if s.opt.Doctor != nil {
		running.Go(func() { s.examine(ctx) })
	}
	var open sync.WaitGroup // connections: one whose request has just come may have no handler yet
	hs.ConnState = func(_ net.Conn, state http.ConnState) {
		switch state {
		case http.StateNew: // before hs.Serve returns
			open.Add(1)
		case http.StateClosed:
			open.Done()
		}
	}
	stop := context.AfterFunc(ctx, func() { hs.Close() })
	defer stop()
	err := hs.Serve(&conns{Listener: ln, all: map[*conn]bool{}})
	stopped := ctx.Err() != nil
	cancel()
	hs.Close()
	running.Wait()
	open.Wait()
	if stopped && errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve the page at %s: %w", ln.Addr(), err)
}

// ServeHTTP answers a request. What lacks the token gets no answer but 404, whatever it asks for.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	secure(w.Header())
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(s.writeTime))
	switch {
	case r.ContentLength != 0:
		// Nobody waits for what it has announced.
		w.Header().Set("Connection", "close")
		_ = rc.SetReadDeadline(time.Now().Add(s.headerTime))
		http.Error(w, "A request for this page has no body.", http.StatusBadRequest)
		return
	case !namedLoopback(r):
		http.Error(w, "This page is for browsers on its own host, at localhost or a loopback address.", http.StatusMisdirectedRequest)
		return
	case !ofThisOrigin(r):
		http.Error(w, "This page answers no other page.", http.StatusForbidden)
		return
	}
	token, name := splitPath(r.URL.Path)
	if !knowsToken(token, s.token) {
		http.Error(w, "Not found. The address of the page is what `ironwarp web` has printed.", http.StatusNotFound)
		return
	}
	know(r.Context())
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "This page changes nothing: use the command line.", http.StatusMethodNotAllowed)
		return
	}
	switch name {
	case "":
		s.page(w, r)
	case "style.css", "script.js", "icon.svg":
		s.asset(w, r, name)
	case "events":
		s.stream(w, r)
	default:
		http.Error(w, "Not found.", http.StatusNotFound)
	}
}

// splitPath splits /TOKEN/NAME.
func splitPath(path string) (token, name string) {
	for i := 1; i < len(path); i++ {
		if path[i] == '/' {
			return path[1:i], path[i+1:]
		}
	}
	return "", ""
}

// page answers with the whole page.
func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	s.viewed.Store(time.Now().Unix())
	shown, _ := s.current()
	b, err := s.pages.page(s.opt.Host, shown)
	if err != nil {
		s.log.Error("the page cannot be shown", "error", err)
		http.Error(w, "The page cannot be shown.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	// The client may be gone; nobody else is to be told.
	_, _ = w.Write(b)
}

func (s *Server) asset(w http.ResponseWriter, _ *http.Request, name string) {
	b, err := fs.ReadFile(assets, "assets/"+name)
	if err != nil {
		http.Error(w, "Not found.", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", map[string]string{"style.css": "text/css; charset=utf-8", "script.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}[name])
	_, _ = w.Write(b)
}

// current is what is shown, and what is closed when that changes.
func (s *Server) current() ([]section, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown, s.changed
}

// update changes the record, and has it shown.
func (s *Server) update(change func(*record)) {
	s.mu.Lock()
	change(&s.record)
	s.mu.Unlock()
	s.render(time.Now())
}

// render shows the record as it is.
func (s *Server) render(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts, err := s.pages.sections(s.record.view(s.opt.Host, at))
	if err != nil {
		s.log.Error("the page cannot be shown", "error", err)
		return
	}
	s.shown = parts
	close(s.changed)
	s.changed = make(chan struct{})
}

// askDaemon asks once an interval until ctx ends.
func (s *Server) askDaemon(ctx context.Context) {
	tick := time.NewTicker(s.opt.Interval)
	defer tick.Stop()
	for {
		st, err := s.ask(ctx)
		if ctx.Err() != nil {
			return
		}
		s.update(func(r *record) { r.look(time.Now(), st, err) })
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ask asks once, or says why there is no answer.
func (s *Server) ask(ctx context.Context) (api.Status, *api.Error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	st, err := s.opt.Source.Status(ctx)
	if err == nil {
		return st, nil
	}
	var e *api.Error
	if !errors.As(err, &e) {
		e = &api.Error{Code: api.CodeUnavailable, Message: err.Error()}
	}
	copied := *e
	return st, &copied
}

// watchSAs notes what happens to SAs until ctx ends, if the caller may know.
func (s *Server) watchSAs(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
		err := s.opt.Source.WatchSAs(ctx, "", func(e api.SAEvent) { s.update(func(r *record) { r.note(saEvent(e)) }) })
		if errors.Is(err, &api.Error{Code: api.CodeForbidden}) && !errors.Is(err, fs.ErrPermission) {
			return
		}
		again.Reset(s.watchAgain)
	}
}

// examine has the doctor look at the host, now and each doctorEvery while a page is open, until ctx ends.
func (s *Server) examine(ctx context.Context) {
	tick := time.NewTicker(doctorEvery)
	defer tick.Stop()
	for {
		c, cancel := context.WithTimeout(ctx, doctorTime)
		found := s.opt.Doctor(c)
		cancel()
		if ctx.Err() != nil {
			return
		}
		s.update(func(r *record) { r.examine(time.Now(), found) })
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				waiting = len(s.streams) == 0 && time.Since(time.Unix(s.viewed.Load(), 0)) > 2*doctorEvery
			}
		}
	}
}

// Listen opens the address of a page: loopback and a port, or unix: and the path of a socket, which is for its owner alone. It
// fails with an *api.Error for another address, and where it is taken.
func Listen(ctx context.Context, at string) (net.Listener, error) {
	var lc net.ListenConfig
	if path, ok := cutUnix(at); ok {
		return listenUnix(ctx, &lc, path)
	}
	addr, err := netip.ParseAddrPort(at)
	if err != nil {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("cannot serve the page at %q: %v", at, err), Fix: "write an address and a port, such as 127.0.0.1:9745, or unix:PATH"}
	}
	if !addr.Addr().IsLoopback() {
		return nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("the page is not served at %s: its address is no loopback address, and the page would cross the network in clear", addr),
			Fix: fmt.Sprintf("leave it at 127.0.0.1 and reach it by ssh from elsewhere: ssh -L %d:127.0.0.1:%d HOST", addr.Port(), addr.Port())}
	}
	ln, err := lc.Listen(ctx, "tcp", addr.String())
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("cannot serve the page at %s: another program has the port", addr), Fix: fmt.Sprintf("find it with `ss -ltnp 'sport = :%d'`, or choose another with --listen 127.0.0.1:PORT", addr.Port())}
	}
	if err != nil {
		return nil, fmt.Errorf("serve the page at %s: %w", addr, err)
	}
	return ln, nil
}

func cutUnix(at string) (path string, ok bool) {
	const scheme = "unix:"
	if len(at) > len(scheme) && at[:len(scheme)] == scheme {
		return at[len(scheme):], true
	}
	return "", false
}

// listenUnix opens a Unix socket that only its owner can connect to. It has no other mode at any time.
func listenUnix(ctx context.Context, lc *net.ListenConfig, path string) (net.Listener, error) {
	lc.Control = func(_, _ string, c syscall.RawConn) error {
		var err error
		// The mode that a socket's file gets is that of the socket (unix(7)).
		if cerr := c.Control(func(fd uintptr) { err = syscall.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
		var d net.Dialer
		if c, err := d.DialContext(ctx, "unix", path); err == nil {
			c.Close()
			return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("cannot serve the page at %s: another program has that socket", path), Fix: "choose another with --listen unix:PATH"}
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			os.Remove(path) // of a server that has died
		}
	}
	ln, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("serve the page at %s: %w", path, err)
	}
	return ln, nil
}
