package attach

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// sessionKey names a session: who has it, and with which peer.
type sessionKey struct {
	by   *local.Consumer
	peer string
	place
}

// session is the block session of a local consumer with a peer, which all the disks
// share that it has attached there. It is open while there are users, and until the
// peer has other endpoints.
type session struct {
	lifetime context.Context // of the peer
	gate     chan struct{}   // capacity 1; held while it is opened or closed

	changing sync.Mutex             // held while its paths change
	paths    map[string]config.Path // by name, as it has them; guarded by session.changing
	declared config.Peer            // what it follows; guarded by session.changing

	cl    *rnbd.Client // guarded by Attacher.mu
	users int          // guarded by Attacher.mu
}

// sessionFor returns the session of a key, open or not.
func (a *Attacher) sessionFor(k sessionKey, p Peer) (*session, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p.Lifetime().Err() != nil {
		return nil, ErrPeerChanged(k.peer)
	}
	s := a.sessions[k]
	if s == nil || s.lifetime != p.Lifetime() {
		s = &session{lifetime: p.Lifetime(), gate: make(chan struct{}, 1)}
		a.sessions[k] = s
	}
	return s, nil
}

// EndSessions ends the open sessions for which which is true, by their consumer and the lifetime of their
// peer. I/O in flight fails, and nothing connects anew. It does not wait.
func (a *Attacher) EndSessions(which func(by *local.Consumer, peer context.Context) bool) {
	open := map[*rnbd.Client]*local.Consumer{}
	a.mu.Lock()
	for k, s := range a.sessions {
		if !which(k.by, s.lifetime) {
			continue
		}
		delete(a.sessions, k)
		if s.cl != nil {
			open[s.cl] = k.by
			k.by.Closing.Add(1)
			s.cl = nil
		}
	}
	a.mu.Unlock()
	for cl, by := range open {
		a.cfg.Run(func(context.Context) {
			defer by.Closing.Done()
			a.closeSession(cl)
		})
	}
}

// Session is an open session of a consumer with a peer.
type Session struct {
	By   *local.Consumer
	Peer string
	// Partition is that which it is of, "": none.
	Partition string
	RNBD      rtrs.Protocol // agreed on
	rtrs.ClientInfo
}

// Sessions are the open sessions for which which is true, root's first.
func (a *Attacher) Sessions(which func(by *local.Consumer, peer string) bool) (list []Session) {
	open := map[sessionKey]*rnbd.Client{}
	a.mu.Lock()
	for k, s := range a.sessions {
		if s.cl != nil && which(k.by, k.peer) {
			open[k] = s.cl
		}
	}
	a.mu.Unlock()
	for k, cl := range open {
		list = append(list, Session{k.by, k.peer, k.partition, cl.Version(), cl.Info()})
	}
	slices.SortFunc(list, func(x, y Session) int {
		return cmp.Or(cmp.Compare(x.By.Name, y.By.Name), cmp.Compare(x.Peer, y.Peer), cmp.Compare(x.Partition, y.Partition))
	})
	return list
}

// EachSession calls do with each open session with a peer, and returns how many there are.
func (a *Attacher) EachSession(peer string, do func(*rtrs.Client)) int {
	var open []*rnbd.Client
	a.mu.Lock()
	for k, s := range a.sessions {
		if k.peer == peer && s.cl != nil {
			open = append(open, s.cl)
		}
	}
	a.mu.Unlock()
	for _, cl := range open {
		do(cl.Session())
	}
	return len(open)
}

// joinSession opens the session with a peer or uses the open one, until leaveSession.
func (a *Attacher) joinSession(ctx context.Context, by *local.Consumer, p Peer, in place) (*session, *rnbd.Client, error) {
	k := sessionKey{by, p.Declared().Name, in.of(by)}
	s, err := a.sessionFor(k, p)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.lifetime, cancel)()
	fail := func(err error) (*session, *rnbd.Client, error) {
		if s.lifetime.Err() != nil {
			err = ErrPeerChanged(k.peer)
		}
		return nil, nil, err
	}
	select {
	case s.gate <- struct{}{}:
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	defer func() { <-s.gate }()
	a.mu.Lock()
	cl := s.cl
	if cl != nil {
		s.users++
	}
	a.mu.Unlock()
	if cl != nil {
		return s, cl, nil
	}
	if cl, err = a.connect(ctx, k, p, s); err != nil {
		return fail(err)
	}
	a.mu.Lock()
	ended := s.lifetime.Err() != nil || a.sessions[k] != s
	if !ended {
		s.cl, s.users = cl, 1
	}
	a.mu.Unlock()
	if ended {
		return fail(errors.Join(ErrPeerChanged(k.peer), cl.Close()))
	}
	a.followPaths(k, s) // its declaration may have changed since it was looked at
	return s, cl, nil
}

// pathOf is a path of a session with a peer.
func (a *Attacher) pathOf(k sessionKey, p Peer, q config.Path) rtrs.PathConfig {
	name, lifetime := p.Declared().Name, p.Lifetime()
	return rtrs.PathConfig{Name: q.Name, Remote: netip.AddrPortFrom(q.Address, q.Port), Choose: func(ctx context.Context) (*transport.Config, func(error), error) {
		// Its declaration may have changed in what leaves the session as it is.
		now, err := a.cfg.Peer(name)
		if err != nil {
			return nil, nil, err
		}
		if now.Lifetime() != lifetime {
			return nil, nil, ErrPeerChanged(name)
		}
		return a.cfg.Choose(ctx, k.by, now, q.Name, k.partition)
	}}
}

// Follow has the open sessions with a peer follow a declaration with the same endpoints: in their
// policies and their paths, which come and go without the others. It returns when nothing is
// left of paths that go.
func (a *Attacher) Follow(peer string) {
	open := map[sessionKey]*session{}
	a.mu.Lock()
	for k, s := range a.sessions {
		if k.peer == peer {
			open[k] = s
		}
	}
	a.mu.Unlock()
	for k, s := range open {
		a.followPaths(k, s)
	}
}

func (a *Attacher) followPaths(k sessionKey, s *session) {
	p, err := a.cfg.Peer(k.peer)
	if err != nil || p.Lifetime() != s.lifetime {
		return // it ends
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	a.mu.Lock()
	cl := s.cl
	a.mu.Unlock()
	if cl == nil {
		return
	}
	was, is := s.declared, p.Declared()
	s.declared = is
	if is.Policy != was.Policy {
		cl.Session().SetPolicy(is.Policy)
	}
	if is.NoPath != was.NoPath {
		cl.Session().SetNoPath(is.NoPath)
	}
	if is.Heartbeat.Interval != was.Heartbeat.Interval || is.Heartbeat.Missed != was.Heartbeat.Missed {
		cl.Session().SetHeartbeat(is.Heartbeat)
	}
	cl.SetQuiet(is.IdleReap > 0)
	if is.ReconnectAttempts != was.ReconnectAttempts {
		cl.Session().SetReconnectAttempts(is.ReconnectAttempts)
	}
	want := map[string]config.Path{}
	var names []string
	within, _ := is.InPartition(k.partition) // its lifetime ends where there is no link any more
	for _, q := range within.AllPaths() {
		want[q.Name], names = q, append(names, q.Name)
	}
	var removed sync.WaitGroup
	for _, t := range cl.Session().Paths() {
		if q, ok := want[t.Name()]; !ok || q != s.paths[t.Name()] {
			delete(s.paths, t.Name())
			removed.Go(t.Remove)
		}
	}
	removed.Wait()
	for name, q := range want {
		if _, has := s.paths[name]; has {
			continue
		}
		if _, err := cl.Session().AddPath(a.pathOf(k, p, q)); err != nil {
			a.log.Warn("cannot add a path to a session", "peer", k.peer, "path", name, "error", err)
			continue
		}
		s.paths[name] = q
	}
	cl.Session().Arrange(names)
}

// connect opens a session by the paths that the peer has.
func (a *Attacher) connect(ctx context.Context, k sessionKey, p Peer, s *session) (cl *rnbd.Client, err error) {
	by := k.by
	if err := by.Gate.AwaitDial(ctx, MaxTime); err != nil {
		return nil, err
	}
	c := p.Declared()
	within, ok := c.InPartition(k.partition)
	if !ok && k.partition != "" {
		return nil, noLink(c.Name, k.partition)
	}
	paths := map[string]config.Path{}
	var configs []rtrs.PathConfig
	for _, q := range within.AllPaths() {
		paths[q.Name], configs = q, append(configs, a.pathOf(k, p, q))
	}
	s.changing.Lock()
	s.paths, s.declared = paths, c
	s.changing.Unlock()
	err = p.TryCarriers(ctx, func() (err error) {
		cl, err = rnbd.Connect(ctx, rnbd.ClientConfig{
			RTRS: rtrs.ClientConfig{
				ULP: by.Disks, Name: a.sessionName(k), Trust: by.Disks.Trust(),
				Paths: configs, Policy: c.Policy, Heartbeat: c.Heartbeat, NoPath: c.NoPath, ReconnectAttempts: c.ReconnectAttempts,
				Conns: c.Connections, QueueDepth: a.cfg.Config().Limits.QueueSize, Setup: c.Setup(),
				Partition: k.partition, Label: k.label,
			},
			Logger: a.log.With("peer", c.Name), Quiet: c.IdleReap > 0,
		})
		return err
	})
	return cl, err
}

// Offers lists what a peer offers to this host in a partition, "": that of the caller or none, of that what the caller may attach. It fails
// with an *api.Error.
func (a *Attacher) Offers(ctx context.Context, who local.Caller, peer, partition string) ([]api.Offer, error) {
	p, err := a.peer(who, peer)
	if err != nil {
		return nil, err
	}
	in, err := a.placeOf(who, p, partition)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, defaultTime)
	defer cancel()
	defer context.AfterFunc(a.cfg.Context, cancel)()
	fail := func(err error) ([]api.Offer, error) {
		switch e := who.QuotaProblem(err); {
		case who.RightsChanged():
			return nil, who.ErrRightsChanged()
		case e != nil:
			return nil, e
		}
		return nil, who.Redact(peer, p.Unreachable(err))
	}
	s, cl, err := a.joinSession(ctx, who.Consumer, p, in)
	if err != nil {
		return fail(err)
	}
	defer a.leaveSession(s)
	list, err := cl.List(ctx)
	if err != nil {
		return fail(err)
	}
	out := []api.Offer{}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range list {
		if who.MayAttach(peer, l.Name) == nil {
			at := a.disks[Disk{who.Name, peer, l.Name}]
			out = append(out, api.Offer{Name: l.Name, Size: l.Size, ReadOnly: l.ReadOnly, Attached: at != nil && !at.isOrphan()})
		}
	}
	return out, nil
}

// sessionName is the same after a restart, so that the server lets the requests
// of the life before end first.
func (a *Attacher) sessionName(k sessionKey) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return sessionNameOf(host, a.cfg.Config().StateDir, k.by.Name, k.label)
}

// sessionNameOf names a ULP's session by the directory of its daemon's state. A directory
// that the name cannot have as it is, since it is too long, cannot be printed, or has a colon, such as
// the one before the ULP, is distinguished from others by a hash. So are the sessions of a ULP whose users the kernel has
// different security labels for: a label may be longer than the name.
func sessionNameOf(host, dir, ulp, label string) string {
	const room = 200 // of the 255 bytes of rtrs
	name := host + ":" + dir
	if len(name) > room || strings.Contains(dir, ":") || printable.Check(name) != nil {
		hash := "~" + shortHash(name)
		name = printable.Cut(printable.Text(name), room-len(hash)) + hash
	}
	if ulp != "" || label != "" {
		name += ":" + ulp
	}
	if label != "" {
		name += ":" + shortHash(label)
	}
	return name
}

// shortHash is 16 digits that are another's by no accident.
func shortHash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:8])
}

// leaveSession closes the session when nobody uses it any more.
func (a *Attacher) leaveSession(s *session) {
	s.gate <- struct{}{}
	defer func() { <-s.gate }()
	a.mu.Lock()
	s.users--
	var last *rnbd.Client
	if s.users == 0 {
		last, s.cl = s.cl, nil
	}
	a.mu.Unlock()
	if last != nil {
		a.closeSession(last)
	}
}

func (a *Attacher) closeSession(cl *rnbd.Client) {
	if err := cl.Close(); err != nil {
		a.log.Warn("closing the session with a peer", "error", err)
	}
}
