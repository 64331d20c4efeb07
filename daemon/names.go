package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/names"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/transport"
)

func (d *Daemon) newNames() *names.Finder {
	return names.New(names.Config{Log: d.log, Lookup: d.opt.lookup, Peers: d.namedPeers, Check: d.checkAddressOf, Move: d.movePeer})
}

// namedPeers are the peers that are declared by names, and the states of their links.
func (d *Daemon) namedPeers() (all []names.Peer) {
	var streams map[transport.Identity]streamCount
	for _, p := range d.peers.list() {
		if p.cfg.Host == "" {
			continue
		}
		if streams == nil {
			streams = d.countStreams()
		}
		n := names.Peer{Name: p.cfg.Name, Host: p.cfg.Host}
		if !p.cfg.Unresolved() {
			n.At, n.Link = p.cfg.Address, d.linkOf(p, streams[p.identity].all > 0)
		}
		all = append(all, n)
	}
	return all
}

// linkOf is the state of a peer's link, for whoever would look for the peer elsewhere. Of iSCSI initiators and NVMe hosts, whose connections
// may be the kernel's, it isn't known whether they are idle.
func (d *Daemon) linkOf(p *peer, hasStreams bool) names.Link {
	m := d.sas.Current()
	if m == nil || p.Problem() != nil {
		return names.Broken
	}
	st, err := m.PeerStatus(p.cfg.Name)
	switch {
	case err != nil || st.State == ipsec.StatePaused || st.State != ipsec.StateUp && st.LastError != "":
		return names.Broken
	case st.State == ipsec.StateUp && (p.cfg.ISCSIPort != 0 || p.cfg.NVMePort != 0 || hasStreams):
		return names.Carries
	}
	return names.Idle
}

// checkAddressOf says why an address cannot be that of a peer.
func (d *Daemon) checkAddressOf(name string, a netip.Addr) error {
	p, ok := d.config().Peer(name)
	if !ok {
		return config.ErrNotFound
	}
	if err := d.config().CheckAddressOf(p, a); err != nil {
		return err
	}
	p.Address = a
	if isAnotherHost(p) != nil {
		return fmt.Errorf("it is this host's own")
	}
	return nil
}

// movePeer has a peer be at another address of its name: as a reload with that address would. The guard of the new one is
// there before IKE hears of it, and that of the old one goes after its last byte. It reports false while the configuration
// changes otherwise.
func (d *Daemon) movePeer(ctx context.Context, name string, a netip.Addr) bool {
	// Close waits for the caller with changing held.
	if !d.changing.TryLock() {
		return false
	}
	defer d.changing.Unlock()
	if ctx.Err() != nil || d.ctx.Err() != nil {
		return true
	}
	old := d.config()
	next, err := old.WithAddress(name, a)
	if err == nil {
		err = d.checkAddressOf(name, a)
	}
	if err != nil { // it has changed meanwhile
		d.log.Warn("a peer stays where it is", "peer", name, "address", a, "error", err)
		return true
	}
	if err := next.SaveAddresses(); err != nil {
		d.log.Warn("cannot write down where a peer is; after a restart its name is looked up first", "peer", name, "error", err)
	}
	d.cfg.Store(next)
	for _, c := range d.applyConfig(context.WithoutCancel(ctx), old, next) {
		d.log.Info("configuration", "change", c)
	}
	return true
}

// noAddressYet is the problem of a peer whose name has no address yet.
func noAddressYet(c config.Peer, note string) *api.Error {
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("peer %s has no address yet: %s", c.Name, cmp.Or(note, "its name "+c.Host+" is being looked up")),
		Fix: "`getent ahosts " + c.Host + "` asks the system's resolver. The daemon keeps asking; or give an address with `ironwarp peer set --address`"}
}
