package daemon

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rtrs"
)

// addPath declares a further path of the sessions with a peer.
func (d *Daemon) addPath(ctx context.Context, name string, q api.Path) (api.Peer, error) {
	return d.changePaths(ctx, name, func(old config.Peer) ([]api.Path, error) { return append(specOf(old).Paths, q), nil })
}

// removePath removes one, by its name or address.
func (d *Daemon) removePath(ctx context.Context, name, path string) (api.Peer, error) {
	return d.changePaths(ctx, name, func(old config.Peer) ([]api.Path, error) {
		is, err := pathNamed(old, path)
		switch {
		case err != nil:
			return nil, err
		case is == old.Address.String():
			return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%s is the first address of peer %s, which stays", path, name),
				Fix: "`ironwarp peer set --address` gives it another; `ironwarp path disconnect` takes its path down"}
		}
		return slices.DeleteFunc(specOf(old).Paths, func(q api.Path) bool { return q.Name == is }), nil
	})
}

func (d *Daemon) changePaths(ctx context.Context, name string, to func(config.Peer) ([]api.Path, error)) (api.Peer, error) {
	return d.declarePeer(ctx, name, func(main string) error {
		cfg, err := config.Load(main, d.opt.Named)
		if err != nil {
			return configError(err)
		}
		old, ok := cfg.Peer(name)
		if !ok {
			return unknownPeer(cfg, name)
		}
		paths, err := to(old)
		if err != nil {
			return err
		}
		_, err = SetPeer(main, api.PeerChange{PeerSpec: api.PeerSpec{Name: name, Paths: paths}, Set: []string{"paths"}})
		return err
	})
}

// pathNamed is the name of a peer's path that is called by its name or its address.
func pathNamed(c config.Peer, path string) (string, error) {
	for _, q := range c.AllPaths() {
		if q.Name == path || q.Address.String() == path {
			return q.Name, nil
		}
	}
	return "", unknownPath(c, path)
}

// orderPath takes a path of the open sessions with a peer down, or up again.
func (d *Daemon) orderPath(q api.PathRequest) ([]api.Session, error) {
	order := map[string]func(*rtrs.Path){api.PathDisconnect: (*rtrs.Path).Disconnect, api.PathReconnect: (*rtrs.Path).Reconnect}[q.Order]
	if order == nil {
		return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown order %q; allowed: %s, %s", q.Order, api.PathDisconnect, api.PathReconnect)}
	}
	p, err := d.findPeer(q.Peer)
	if err != nil {
		return nil, err
	}
	name, err := pathNamed(p.cfg, q.Path)
	if err != nil {
		return nil, err
	}
	return d.eachSession(q.Peer, func(cl *rtrs.Client) {
		for _, t := range cl.Paths() {
			if t.Name() == name {
				d.log.Info("path of a session, by request", "peer", q.Peer, "path", name, "order", q.Order)
				order(t)
			}
		}
	})
}

// setPolicy changes how the open sessions with a peer spread I/O over their paths, and what
// becomes of it without one.
func (d *Daemon) setPolicy(q api.PolicyRequest) ([]api.Session, error) {
	var policy rtrs.Policy
	var err error
	if q.Policy != "" || q.NoPath == "" {
		if policy, err = rtrs.ParsePolicy(q.Policy); err != nil {
			return nil, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown policy %q; allowed: %s", q.Policy, strings.Join(rtrs.Policies(), ", "))}
		}
	}
	noPath, err := noPathOf(q.NoPath, q.FailAfter)
	if err != nil {
		return nil, err
	}
	if _, err := d.findPeer(q.Peer); err != nil {
		return nil, err
	}
	return d.eachSession(q.Peer, func(cl *rtrs.Client) {
		if q.Policy != "" {
			cl.SetPolicy(policy)
		}
		if q.NoPath != "" {
			cl.SetNoPath(noPath)
		}
	})
}

// eachSession does something to the open sessions that this host has with a peer, and
// describes them.
func (d *Daemon) eachSession(peer string, do func(*rtrs.Client)) ([]api.Session, error) {
	if d.disks.EachSession(peer, do) == 0 {
		return nil, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("no session with peer %s is open", peer), Fix: "`ironwarp attach` opens one"}
	}
	return slices.DeleteFunc(d.sessionStates(d.local.AsRoot()), func(s api.Session) bool { return s.Peer != peer || s.Role != "client" }), nil
}
