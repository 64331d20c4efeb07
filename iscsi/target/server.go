package target

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
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
	// Device has the units. Its Name and PortalGroup are set by Add and Set. Without it initiators are
	// told to come back later.
	Device *lu.Device
	// Redirect is where initiators are told to log in instead, as a TargetAddress without a portal group (RFC
	// 7143 section 13.8); "": nowhere. Moved says that this is for good. Who may not see the target is not
	// told.
	Redirect string
	Moved    bool
	// Admits reports whether an initiator, by the name that it gives, may see the target and log in;
	// nil: all may. It does not block.
	Admits func(o Origin, initiator string) bool
	// NoRDMA has sessions with the target be over TCP alone: a login in RDMA mode does not see it, and
	// one over TCP that asks for RDMAExtensions gets No.
	NoRDMA bool
	// CHAP are the credentials of initiators, by CHAP_N; nil: nobody is asked for any. An initiator
	// whose CHAP_N is an iSCSI name may use no other name.
	CHAP []chap.Credentials
	// ErrorRecoveryLevel is the highest that initiators over TCP may have, from 0 to 2 (RFC 7143 section
	// 7.1.5). iSER is at level 0.
	ErrorRecoveryLevel uint32

	tally *tally
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
	// MaxSessions is how many sessions there may be (256), MaxOfPeer those of one peer, or of one host that
	// is no peer (half), and MaxOfInitiator those of one initiator there (a quarter). The last quarter is
	// for peers that have none.
	MaxSessions, MaxOfPeer, MaxOfInitiator int
	// MaxLogins is how many connections there may be that have not logged in (128), and MaxLoginsOfPeer
	// those of one peer or host (a quarter).
	MaxLogins, MaxLoginsOfPeer int
	// Memory is how many bytes the data of commands take in all sessions together (512 MiB). Beyond it each
	// session goes on with a little.
	Memory int64
	// Ping is how long an initiator may be silent before it is asked whether it is there, and
	// then before its session ends (15 s); negative: it may be silent for ever.
	Ping time.Duration
	// DataWait is how long the answer to a task management function waits for data of aborted
	// commands that their initiator was asked for (5 s).
	DataWait time.Duration
	// SequenceWait is how long data that an initiator was asked for may make no progress before they are
	// asked for again, at ErrorRecoveryLevel 1 and above (10 s).
	SequenceWait time.Duration
	// LogoutWait is how long the end of a session waits for the Logout that its initiator is asked
	// for (3 s); negative: it is not asked.
	LogoutWait time.Duration
	// Paused reports that nothing can come by a connection at the moment, since its security
	// association is away. Meanwhile silence is no reason to end a session. nil: it never is.
	Paused func(nc net.Conn) bool
	// ReadAge is how long an initiator may take to answer an RDMA Read (a minute). After that its
	// session ends.
	ReadAge time.Duration
	// PeerOf tells from whom a connection over TCP is, as it was authenticated below TCP; nil: nobody
	// knows.
	PeerOf func(net.Conn) string
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
	memory     atomic.Int64 // bytes of buffers of all sessions

	mu       sync.Mutex // guards the fields below it; taken before session.mu
	targets  map[string]*Target
	sessions map[uint16]*session
	tsih     uint16
	logins   map[string]int // connections that have not logged in, by principal
}

// NewServer returns a server without targets.
func NewServer(cfg Config) *Server {
	if cfg.PortalGroup == 0 {
		cfg.PortalGroup = 1
	}
	if cfg.MaxSessions <= 0 {
		cfg.MaxSessions = defaultMaxSessions
	}
	if cfg.MaxOfPeer <= 0 {
		cfg.MaxOfPeer = max(1, cfg.MaxSessions/2)
	}
	if cfg.MaxOfInitiator <= 0 {
		cfg.MaxOfInitiator = max(1, cfg.MaxSessions/4)
	}
	if cfg.MaxLogins <= 0 {
		cfg.MaxLogins = defaultMaxLogins
	}
	if cfg.MaxLoginsOfPeer <= 0 {
		cfg.MaxLoginsOfPeer = max(1, cfg.MaxLogins/4)
	}
	if cfg.Memory <= 0 {
		cfg.Memory = defaultMemory
	}
	cfg.Ping = cmp.Or(cfg.Ping, defaultPing)
	cfg.DataWait = cmp.Or(cfg.DataWait, defaultDataWait)
	cfg.SequenceWait = cmp.Or(cfg.SequenceWait, defaultSequenceWait)
	cfg.LogoutWait = cmp.Or(cfg.LogoutWait, defaultLogoutWait)
	s := &Server{cfg: cfg, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), targets: map[string]*Target{}, sessions: map[uint16]*session{}, logins: map[string]int{}, values: cfg.values(), pool: pool{most: poolMemory}}
	return s
}

// Add offers a target like Set. It fails as that does, and with ErrExists.
func (s *Server) Add(t *Target) error {
	if err := t.check(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.targets[t.Name] != nil {
		return fmt.Errorf("%s: %w", t.Name, ErrExists)
	}
	s.setLocked(t)
	return nil
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

// Serve accepts initiators from ln until ctx ends or ln fails, and closes ln. Then initiators are asked
// to log out. When it returns no session is left, and nothing that they have asked for is under way.
// It fails with the error of ln.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	var initiators sync.WaitGroup
	defer initiators.Wait()
	defer cancel()
	return accept.Loop(ctx, ln, "target", s.log, func(nc net.Conn) {
		l := s.overTCP(nc, &s.values)
		o := originOf(l)
		if !s.addLogin(o) {
			nc.Close()
			return
		}
		initiators.Go(func() { s.serve(ctx, l, o) })
	})
}

// serve serves one connection to its end. It was counted by addLogin as from who.
func (s *Server) serve(ctx context.Context, l link, who Origin) {
	defer l.Close()
	stop := context.AfterFunc(ctx, l.ConnectionTerminate)
	defer stop()
	late := time.AfterFunc(loginTime, l.ConnectionTerminate)
	p := &portal{Server: s, link: l, origin: originOf(l)}
	c, err := p.login()
	late.Stop()
	s.loginEnded(who)
	log := s.log.With("address", p.origin.Remote.String(), "peer", p.origin.Peer)
	if err != nil {
		log.Info("target: login failed", "error", err)
		return
	}
	k := c.login
	log = log.With("initiator", k.InitiatorName, "target", k.TargetName, "session", k.TSIH, "connection", k.CID)
	log.Info("target: initiator logged in", "chap", k.CHAPName, "discovery", k.Discovery, "transport", transportOf(k))
	if stop() {
		defer context.AfterFunc(ctx, c.x.quit)()
	} else {
		c.x.terminate() // the server ends: nothing waits for another connection
	}
	err = c.run()
	log.Info("target: connection ended", "error", err)
}

func originOf(l link) Origin {
	address := func(a net.Addr) netip.AddrPort {
		if t, ok := a.(*net.TCPAddr); ok {
			return netip.AddrPortFrom(t.AddrPort().Addr().Unmap(), t.AddrPort().Port())
		}
		return netip.AddrPort{}
	}
	local, remote := l.Addr()
	_, rdma := l.offers()
	return Origin{Peer: l.peer(), Local: address(local), Remote: address(remote), InRDMA: rdma}
}

// What moves the data of a session.
const (
	TCP  = "tcp"
	ISER = "iser" // RDMA
)

// transportOf is TCP or ISER, as a login has agreed.
func transportOf(l *iscsi.Login) string {
	if l.InRDMA || l.Values.Bool(iscsi.KeyRDMAExtensions) {
		return ISER
	}
	return TCP
}

// portal is the place of a login.
type portal struct {
	*Server
	link   link
	origin Origin
	asked  *Target // for which it asks, whether it may log in or not
	target *Target
	joins  *session // that the connection is to be added to
	made   *conn
}

// login exchanges the PDUs of a login. It returns the connection.
func (p *portal) login() (*conn, error) {
	ours, inRDMA := p.link.offers()
	l := iscsi.NewLogin(p, ours, 1)
	l.InRDMA = inRDMA
	for {
		h, data, err := p.link.ReadPDU()
		if err != nil {
			return nil, err
		}
		r, text, done, err := l.Request(&h, data)
		if err != nil && p.asked != nil {
			p.asked.tally.refused.Add(1)
		}
		if r.ITT == iscsi.NoTag && err != nil {
			return nil, err
		}
		if r.MaxCmdSN = r.ExpCmdSN + window - 1; p.joins != nil {
			r.ExpCmdSN, r.MaxCmdSN = p.joins.commandNumbers()
		}
		var out iscsi.BHS
		r.Put(&out)
		if werr := p.link.WritePDU(&out, text); err == nil {
			err = werr
		}
		if err != nil || done {
			if err != nil && p.made != nil {
				p.made.abandon()
			}
			return p.made, err
		}
	}
}

// Admit implements iscsi.Policy.
func (p *portal) Admit(l *iscsi.Login) (a iscsi.Admission, redirect string, st iscsi.LoginStatus) {
	a.PortalGroup = p.cfg.PortalGroup
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.TargetName != "" { // it has none in an unnamed discovery session
		t := p.targets[l.TargetName]
		if t == nil {
			return a, "", iscsi.LoginNotFound
		}
		p.asked = t
		if !t.visible(p.origin, l.InitiatorName) {
			return a, "", iscsi.LoginForbidden
		}
		switch {
		case t.Redirect == "" || l.Discovery:
		case t.Moved:
			return a, t.Redirect, iscsi.LoginMovedPermanently
		default:
			return a, t.Redirect, iscsi.LoginMovedTemporarily
		}
		if t.Device == nil && !l.Discovery {
			return a, "", iscsi.LoginUnavailable
		}
		p.target, a.Alias, a.NoRDMA, a.ErrorRecoveryLevel = t, t.Alias, t.NoRDMA, t.ErrorRecoveryLevel
		if t.CHAP != nil {
			a.Find = t.credentials
			a.MayStay = func(c *chap.Credentials) bool { return !iscsi.IsName(c.Name) || c.Name == l.InitiatorName }
		}
	}
	if l.TSIH != 0 {
		if p.joins = p.sessions[l.TSIH]; p.joins == nil || !p.joins.belongs(l) {
			return a, "", iscsi.LoginNoSession
		}
		a.Session = &p.joins.login.Values
	}
	return a, "", iscsi.LoginOK
}

// Establish implements iscsi.Policy. A session that the initiator had with the same identifier ends
// first (RFC 7143 section 6.3.5).
func (p *portal) Establish(l *iscsi.Login) (tsih uint16, st iscsi.LoginStatus) {
	if p.joins != nil {
		return l.TSIH, p.join(l)
	}
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
		if !old.isOf(l, p.origin) {
			p.log.Warn("target: a login in the name of another's session is refused", "address", p.origin.Remote.String(), "peer", p.origin.Peer, "initiator", l.InitiatorName, "chap", l.CHAPName, "session", old.tsih)
			return 0, iscsi.LoginForbidden
		}
		old.terminate()
		select {
		case <-old.over:
		case <-time.After(loginTime):
			return 0, iscsi.LoginNoResources // what it has at its storage hangs
		}
	}
	defer p.mu.Unlock()
	switch why := p.noPlaceLocked(x); {
	case why != "":
		p.log.Warn("target: no place for a session", "address", p.origin.Remote.String(), "peer", p.origin.Peer, "initiator", l.InitiatorName, "why", why)
		return 0, iscsi.LoginNoResources
	case p.target != nil && p.targets[p.target.Name] != p.target:
		return 0, iscsi.LoginUnavailable // it was changed, or removed, since it was asked for
	case p.target != nil && !p.target.visible(p.origin, l.InitiatorName):
		return 0, iscsi.LoginForbidden // it may not any more: who ends the sessions of those has not found this one
	}
	for p.tsih++; p.tsih == 0 || p.sessions[p.tsih] != nil; p.tsih++ {
	}
	x.tsih = p.tsih
	x.attach()
	p.sessions[x.tsih] = x
	return x.tsih, iscsi.LoginOK
}

// sendTargets answers SendTargets (RFC 7143 appendix C), where All is for discovery sessions alone.
func (x *session) sendTargets(which string) []byte {
	if which == "All" && !x.login.Discovery {
		return iscsi.AppendPair(nil, "SendTargets", "Reject")
	}
	s := x.srv
	s.mu.Lock()
	defer s.mu.Unlock()
	var text []byte
	for _, name := range slices.Sorted(maps.Keys(s.targets)) {
		switch t := s.targets[name]; {
		case !t.visible(x.origin, x.login.InitiatorName):
		case !x.login.Discovery && name != x.login.TargetName:
		case which != "" && which != "All" && which != name:
		default:
			text = iscsi.AppendPair(text, "TargetName", name)
			addresses := s.cfg.Addresses
			if addresses == nil {
				addresses = []string{x.origin.Local.String()}
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
		if o.login.TargetName == t.Name && o != but {
			o.drop()
		}
	}
}
