package daemon

import (
	"context"
	"os"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
)

// session is the block session with a peer, which all its attached disks share.
// It is open while there are users.
type session struct {
	gate chan struct{} // capacity 1; held while it is opened or closed

	// Guarded by Daemon.mu.
	cl    *rnbd.Client
	users int
}

// sessionOf is the place of a peer's session, open or not.
func (d *Daemon) sessionOf(peer string) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := d.sessions[peer]
	if s == nil {
		s = &session{gate: make(chan struct{}, 1)}
		d.sessions[peer] = s
	}
	return s
}

// openSession is the client of a peer's session, nil if it is not open.
func (d *Daemon) openSession(peer string) *rnbd.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.sessions[peer]; s != nil {
		return s.cl
	}
	return nil
}

// joinSession opens the session with a peer or uses the open one. leaveSession
// gives it back.
func (d *Daemon) joinSession(ctx context.Context, p *peer) (*rnbd.Client, error) {
	s := d.sessionOf(p.cfg.Name)
	select {
	case s.gate <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-s.gate }()
	d.mu.Lock()
	if s.cl != nil {
		s.users++
		d.mu.Unlock()
		return s.cl, nil
	}
	d.mu.Unlock()
	cl, err := d.connect(ctx, p)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	s.cl, s.users = cl, 1
	d.mu.Unlock()
	return cl, nil
}

func (d *Daemon) connect(ctx context.Context, p *peer) (*rnbd.Client, error) {
	name := p.cfg.Name
	choose := func(ctx context.Context) (*transport.Config, func(error), error) {
		// Its declaration may have changed in what leaves the session as it is.
		p, err := d.findPeer(name)
		if err != nil {
			return nil, nil, err
		}
		return d.choose(ctx, p)
	}
	var cl *rnbd.Client
	err := p.eachCarrier(ctx, func() (err error) {
		cl, err = d.connectOnce(ctx, p, choose)
		return err
	})
	return cl, err
}

func (d *Daemon) connectOnce(ctx context.Context, p *peer, choose func(context.Context) (*transport.Config, func(error), error)) (*rnbd.Client, error) {
	return rnbd.Connect(ctx, rnbd.ClientConfig{
		RTRS: rtrs.ClientConfig{
			ULP: d.ulps.client, Name: d.sessionName(),
			Paths: []rtrs.PathConfig{{Remote: p.cfg.AddrPort(), Choose: choose}},
			Conns: p.cfg.Connections, QueueDepth: d.config().Limits.QueueSize, MPA: dialMPA(p.cfg),
		},
		Logger: d.log.With("peer", p.cfg.Name),
	})
}

// Offers lists what a peer offers to this host.
func (d *Daemon) Offers(ctx context.Context, peer string) ([]api.Offer, error) {
	p, err := d.findPeer(peer)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, defaultAttachTime)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	cl, err := d.joinSession(ctx, p)
	if err != nil {
		return nil, d.unreachable(p, err)
	}
	defer d.leaveSession(peer)
	list, err := cl.List(ctx)
	if err != nil {
		return nil, err
	}
	out := []api.Offer{}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, l := range list {
		_, attached := d.disks[disk{peer, l.Name}]
		out = append(out, api.Offer{Name: l.Name, Size: l.Size, ReadOnly: l.ReadOnly, Attached: attached})
	}
	return out, nil
}

// sessionName is the same after a restart, so that the server lets the requests
// of the life before end first.
func (d *Daemon) sessionName() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	name := host + ":" + d.config().StateDir
	return name[:min(len(name), 200)]
}

// leaveSession closes the session when nobody uses it any more.
func (d *Daemon) leaveSession(peer string) {
	s := d.sessionOf(peer)
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
		d.log.Warn("closing the session with a peer", "peer", peer, "error", err)
	}
}
