package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// session is the block session of a local consumer with a peer, which all the disks
// share that it has attached there. It is open while there are users, and until the
// peer has other ends.
type session struct {
	ends context.Context // of the peer
	gate chan struct{}   // capacity 1; held while it is opened or closed

	// Guarded by Daemon.mu.
	cl    *rnbd.Client
	users int
}

// sessionOf is the place of a session, open or not.
func (d *Daemon) sessionOf(c *consumer, p *peer) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.ends.Err() != nil {
		return nil, errPeerChanged(p)
	}
	s := c.sessions[p.cfg.Name]
	if s == nil || s.ends != p.ends {
		s = &session{ends: p.ends, gate: make(chan struct{}, 1)}
		c.sessions[p.cfg.Name] = s
	}
	return s, nil
}

func errPeerChanged(p *peer) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s has changed meanwhile", p.cfg.Name), Fix: "try again"}
}

// endSessions ends the open sessions that a condition names: I/O in flight fails, and
// nothing connects anew. It does not wait.
func (d *Daemon) endSessions(which func(*consumer, *session) bool) {
	type ending struct {
		of *consumer
		cl *rnbd.Client
	}
	var open []ending
	d.mu.Lock()
	consumers := []*consumer{d.local.root}
	for _, c := range d.local.ulps {
		consumers = append(consumers, c)
	}
	for _, c := range consumers {
		for name, s := range c.sessions {
			if !which(c, s) {
				continue
			}
			delete(c.sessions, name)
			if s.cl != nil {
				open = append(open, ending{c, s.cl})
				c.closing.Add(1)
				s.cl = nil
			}
		}
	}
	d.mu.Unlock()
	for _, e := range open {
		d.run(func(context.Context) {
			defer e.of.closing.Done()
			if err := e.cl.Close(); err != nil {
				d.log.Warn("closing the session with a peer", "error", err)
			}
		})
	}
}

// openSessions are the sessions of a consumer that are open, by peer.
func (d *Daemon) openSessions(c *consumer) map[string]*rnbd.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	open := map[string]*rnbd.Client{}
	for peer, s := range c.sessions {
		if s.cl != nil {
			open[peer] = s.cl
		}
	}
	return open
}

// joinSession opens the session with a peer or uses the open one. leaveSession
// gives it back.
func (d *Daemon) joinSession(ctx context.Context, c *consumer, p *peer) (*session, *rnbd.Client, error) {
	s, err := d.sessionOf(c, p)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ends, cancel)()
	fail := func(err error) (*session, *rnbd.Client, error) {
		if s.ends.Err() != nil {
			err = errPeerChanged(p)
		}
		return nil, nil, err
	}
	select {
	case s.gate <- struct{}{}:
	case <-ctx.Done():
		return fail(ctx.Err())
	}
	defer func() { <-s.gate }()
	d.mu.Lock()
	cl := s.cl
	if cl != nil {
		s.users++
	}
	d.mu.Unlock()
	if cl != nil {
		return s, cl, nil
	}
	if cl, err = d.connect(ctx, c, p); err != nil {
		return fail(err)
	}
	d.mu.Lock()
	ended := s.ends.Err() != nil || c.sessions[p.cfg.Name] != s
	if !ended {
		s.cl, s.users = cl, 1
	}
	d.mu.Unlock()
	if ended {
		return fail(errors.Join(errPeerChanged(p), cl.Close()))
	}
	return s, cl, nil
}

func (d *Daemon) connect(ctx context.Context, c *consumer, p *peer) (*rnbd.Client, error) {
	if err := c.gate.MayDial(ctx, maxAttachTime); err != nil {
		return nil, err
	}
	name := p.cfg.Name
	choose := func(ctx context.Context) (*transport.Config, func(error), error) {
		// Its declaration may have changed in what leaves the session as it is.
		now, err := d.findPeer(name)
		if err != nil {
			return nil, nil, err
		}
		if now.ends != p.ends {
			return nil, nil, errPeerChanged(p)
		}
		return d.choose(ctx, c, now)
	}
	var cl *rnbd.Client
	err := p.eachCarrier(ctx, func() (err error) {
		cl, err = d.connectOnce(ctx, c, p, choose)
		return err
	})
	return cl, err
}

func (d *Daemon) connectOnce(ctx context.Context, c *consumer, p *peer, choose func(context.Context) (*transport.Config, func(error), error)) (*rnbd.Client, error) {
	return rnbd.Connect(ctx, rnbd.ClientConfig{
		RTRS: rtrs.ClientConfig{
			ULP: d.rdmaFor(c), Name: d.sessionName(c), Trust: d.trustFor(c),
			Paths: []rtrs.PathConfig{{Remote: p.cfg.AddrPort(), Choose: choose}},
			Conns: p.cfg.Connections, QueueDepth: d.config().Limits.QueueSize, Setup: setupOf(p.cfg),
		},
		Logger: d.log.With("peer", p.cfg.Name),
	})
}

// offers lists what a peer offers to this host, of that what the caller may attach.
func (d *Daemon) offers(ctx context.Context, who caller, peer string) ([]api.Offer, error) {
	if err := d.mayUse(who, peer); err != nil {
		return nil, err
	}
	p, err := d.findPeer(peer)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, defaultAttachTime)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	fail := func(err error) ([]api.Offer, error) {
		switch e := short(who, err); {
		case who.ended():
			return nil, errChanged(who)
		case e != nil:
			return nil, e
		}
		return nil, discreet(who, peer, d.unreachable(p, err))
	}
	s, cl, err := d.joinSession(ctx, who.consumer, p)
	if err != nil {
		return fail(err)
	}
	defer d.leaveSession(s)
	list, err := cl.List(ctx)
	if err != nil {
		return fail(err)
	}
	out := []api.Offer{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range list {
		k := disk{who.name, peer, l.Name}
		if mayAttach(who, k) != nil {
			continue
		}
		at := d.disks[k]
		out = append(out, api.Offer{Name: l.Name, Size: l.Size, ReadOnly: l.ReadOnly, Attached: at != nil && !at.isOrphan()})
	}
	return out, nil
}

// sessionName is the same after a restart, so that the server lets the requests
// of the life before end first.
func (d *Daemon) sessionName(c *consumer) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return nameSession(host, d.config().StateDir, c.name)
}

// nameSession names a ULP's session by the directory of its daemon's state. A directory
// that cannot stand in the name as it is, since it is too long, has what cannot be
// printed, or a colon, as there is before the ULP, is told from others by a hash.
func nameSession(host, dir, ulp string) string {
	const room = 200 // of the 255 bytes of rtrs
	name := host + ":" + dir
	if len(name) > room || strings.Contains(dir, ":") || printable.Check(name) != nil {
		sum := sha256.Sum256([]byte(name))
		hash := "~" + hex.EncodeToString(sum[:8])
		name = printable.Cut(printable.Text(name), room-len(hash)) + hash
	}
	if ulp != "" {
		name += ":" + ulp
	}
	return name
}

// leaveSession closes the session when nobody uses it any more.
func (d *Daemon) leaveSession(s *session) {
	s.gate <- struct{}{}
	defer func() { <-s.gate }()
	d.mu.Lock()
	s.users--
	var last *rnbd.Client
	if s.users == 0 {
		last, s.cl = s.cl, nil
	}
	d.mu.Unlock()
	if last == nil {
		return
	}
	if err := last.Close(); err != nil {
		d.log.Warn("closing the session with a peer", "error", err)
	}
}
