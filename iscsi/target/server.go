package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/internal/accept"
	"github.com/ironwarp/ironwarp/iscsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
)

// Target is a target that initiators may log in to.
type Target struct {
	Name, Alias string
	Device      *lu.Device // its Name and PortalGroup are set by Add
	// Initiators are those that may log in, by name; nil: all.
	Initiators []string
	// CHAP are the credentials of initiators, by CHAP_N; nil: nobody is asked for any. An initiator
	// whose CHAP_N is an iSCSI name may use no other name.
	CHAP []chap.Credentials
}

// Config configures a Server. Zero values mean the defaults.
type Config struct {
	// Logger gets logins, refusals and ends of sessions; nil: none.
	Logger *slog.Logger
	// PortalGroup is the tag of the portals of this server (1).
	PortalGroup uint16
	// Addresses are what SendTargets tells, as host:port; nil: the address that was asked at.
	Addresses []string
	// RequireDigests refuses initiators that want no digests.
	RequireDigests bool
	// MaxSessions is how many sessions there may be (64); MaxLogins how many connections
	// that have not logged in (32).
	MaxSessions, MaxLogins int
	// Ping is how long an initiator may be silent before it is asked whether it is there, and
	// then before its session ends (15 s); negative: it may be silent for ever.
	Ping time.Duration
	// DataWait is how long the answer to a task management function waits for data of aborted
	// commands that their initiator was asked for (5 s).
	DataWait time.Duration
	// Paused reports that nothing can come by a connection at the moment, since its security
	// association is away. Meanwhile silence is no reason to end a session. nil: it never is.
	Paused func(nc net.Conn) bool
	// ReadAge is how long an initiator may take to answer an RDMA Read (a minute). After that its
	// session ends.
	ReadAge time.Duration
}

// Errors of Add.
var (
	ErrName   = errors.New("target: this is no iSCSI name")
	ErrExists = errors.New("target: there is a target of that name")
)

// Server serves targets.
type Server struct {
	cfg    Config
	log    *slog.Logger
	values iscsi.Values // over TCP
	pool   pool

	sessionIDs atomic.Uint64

	mu       sync.Mutex // guards the fields below it; taken before session.mu
	targets  map[string]*Target
	sessions map[uint16]*session
	tsih     uint16
	logins   int
}

// NewServer returns a server without targets.
func NewServer(cfg Config) *Server {
	if cfg.PortalGroup == 0 {
		cfg.PortalGroup = 1
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = defaultMaxSessions
	}
	if cfg.MaxLogins <= 0 {
		cfg.MaxLogins = defaultMaxLogins
	}
	cfg.Ping = cmp.Or(cfg.Ping, defaultPing)
	cfg.DataWait = cmp.Or(cfg.DataWait, defaultDataWait)
	s := &Server{cfg: cfg, log: cfg.Logger, targets: map[string]*Target{}, sessions: map[uint16]*session{}, values: cfg.values(), pool: pool{most: poolMemory}}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	return s
}

// Add offers a target. It fails with ErrName, with ErrExists, and if credentials are not what they
// should be (package chap).
func (s *Server) Add(t *Target) error {
	if !iscsi.IsName(t.Name) {
		return fmt.Errorf("%q: %w", t.Name, ErrName)
	}
	for i := range t.CHAP {
		if err := t.CHAP[i].Check(); err != nil {
			return fmt.Errorf("target %s: credentials %w", t.Name, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[t.Name] != nil {
		return fmt.Errorf("%s: %w", t.Name, ErrExists)
	}
	t.Device.Name, t.Device.PortalGroup = t.Name, s.cfg.PortalGroup
	s.targets[t.Name] = t
	return nil
}

// visible reports whether an initiator may see a target.
func (t *Target) visible(initiator string) bool {
	return t.Initiators == nil || slices.Contains(t.Initiators, initiator)
}

// credentials finds those of a CHAP_N.
func (t *Target) credentials(name string) *chap.Credentials {
	for i := range t.CHAP {
		if t.CHAP[i].Name == name {
			return &t.CHAP[i]
		}
	}
	return nil
}

// Serve accepts initiators from ln until ctx ends or ln fails, and closes ln. When it returns no
// session is left, and nothing that they have asked for is under way. It fails with the error of
// ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var initiators sync.WaitGroup
	defer initiators.Wait()
	defer cancel()
	return accept.Loop(ctx, ln, "target", s.log, func(nc net.Conn) {
		if !s.addLogin() {
			nc.Close()
			return
		}
		initiators.Go(func() { s.serve(ctx, s.overTCP(nc, &s.values)) })
	})
}

// addLogin counts a connection that has not logged in, unless there are MaxLogins already.
func (s *Server) addLogin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.logins >= s.cfg.MaxLogins {
		return false
	}
	s.logins++
	return true
}

// serve serves one connection to its end.
func (s *Server) serve(ctx context.Context, l link) {
	defer l.Close()
	defer context.AfterFunc(ctx, l.ConnectionTerminate)()
	late := time.AfterFunc(loginTime, l.ConnectionTerminate)
	local, remote := l.Addr()
	p := &portal{Server: s, link: l, local: local.String()}
	x, err := p.login()
	late.Stop()
	s.loginEnded()
	if err != nil {
		s.log.Info("target: login failed", "initiator", remote.String(), "error", err)
		return
	}
	log := s.log.With("initiator", x.login.InitiatorName, "target", x.login.TargetName, "address", remote.String())
	log.Info("target: initiator logged in", "chap", x.login.CHAPName, "discovery", x.login.Discovery, "iser", x.values.Bool(iscsi.KeyRDMAExtensions))
	err = x.run()
	log.Info("target: session ended", "error", err)
}

func (s *Server) loginEnded() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logins--
}

// portal is the place of a login.
type portal struct {
	*Server
	link    link
	local   string
	target  *Target
	session *session
}

// login exchanges the PDUs of a login. It returns the session.
func (p *portal) login() (*session, error) {
	ours, inRDMA := p.link.offers()
	l := iscsi.NewLogin(p, ours, 1)
	l.InRDMA = inRDMA
	for {
		h, data, err := p.link.ReadPDU()
		if err != nil {
			return nil, err
		}
		r, text, done, err := l.Request(&h, data)
		if r.ITT == iscsi.NoTag && err != nil {
			return nil, err
		}
		r.MaxCmdSN = r.ExpCmdSN + window - 1
		var out iscsi.BHS
		r.Put(&out)
		if werr := p.link.WritePDU(&out, text); err == nil {
			err = werr
		}
		if err != nil || done {
			if err != nil && p.session != nil {
				p.session.drop()
			}
			return p.session, err
		}
	}
}

// Admit implements iscsi.Policy.
func (p *portal) Admit(l *iscsi.Login) (a iscsi.Admission, redirect string, st iscsi.LoginStatus) {
	a.PortalGroup = p.cfg.PortalGroup
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.TSIH != 0 {
		if p.sessions[l.TSIH] == nil {
			return a, "", iscsi.LoginNoSession
		}
		return a, "", iscsi.LoginTooMany // MaxConnections is 1
	}
	if l.TargetName == "" {
		return a, "", iscsi.LoginOK // an unnamed discovery session
	}
	t := p.targets[l.TargetName]
	if t == nil {
		return a, "", iscsi.LoginNotFound
	}
	if !t.visible(l.InitiatorName) {
		return a, "", iscsi.LoginForbidden
	}
	p.target, a.Alias = t, t.Alias
	if t.CHAP != nil {
		a.Find = t.credentials
		a.MayStay = func(c *chap.Credentials) bool { return !iscsi.IsName(c.Name) || c.Name == l.InitiatorName }
	}
	return a, "", iscsi.LoginOK
}

// Establish implements iscsi.Policy. A session that the initiator had with the same identifier ends
// first (RFC 7143 section 6.3.5).
func (p *portal) Establish(l *iscsi.Login) (tsih uint16, st iscsi.LoginStatus) {
	x, err := newSession(p, l)
	if err != nil {
		p.log.Warn("target: no resources for a session", "initiator", l.InitiatorName, "error", err)
		return 0, iscsi.LoginNoResources
	}
	for {
		p.mu.Lock()
		var old *session
		for _, o := range p.sessions {
			if o.replacedBy(x) {
				old = o
			}
		}
		if old == nil {
			break
		}
		p.mu.Unlock()
		old.mover.ConnectionTerminate()
		select {
		case <-old.over:
		case <-time.After(loginTime):
			return 0, iscsi.LoginNoResources // what it has at its storage hangs
		}
	}
	defer p.mu.Unlock()
	if len(p.sessions) >= p.cfg.MaxSessions {
		return 0, iscsi.LoginNoResources
	}
	for p.tsih++; p.tsih == 0 || p.sessions[p.tsih] != nil; p.tsih++ {
	}
	x.tsih = p.tsih
	p.sessions[x.tsih] = x
	p.session = x
	return x.tsih, iscsi.LoginOK
}

// sendTargets answers SendTargets (RFC 7143 appendix C).
func (x *session) sendTargets(which string) []byte {
	s := x.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(s.targets)) {
		switch t := s.targets[name]; {
		case !t.visible(x.login.InitiatorName):
		case !x.login.Discovery && name != x.login.TargetName:
		case which != "" && which != "All" && which != name:
		default:
			text = iscsi.AppendPair(text, "TargetName", name)
			addresses := s.cfg.Addresses
			if addresses == nil {
				addresses = []string{x.local}
			}
			for _, a := range addresses {
				text = iscsi.AppendPair(text, "TargetAddress", fmt.Sprintf("%s,%d", a, s.cfg.PortalGroup))
			}
		}
	}
	return text
}

// endAll ends all sessions of a target but one (TARGET COLD RESET).
func (s *Server) endAll(t *Target, but *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.sessions {
		if o.target == t && o != but {
			o.mover.ConnectionTerminate()
		}
	}
}
