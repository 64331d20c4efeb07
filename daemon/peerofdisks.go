package daemon

import (
	"context"
	"net/netip"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/local"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// diskPeer is a peer for those who attach its disks.
type diskPeer struct {
	*peer
	d *Daemon
}

// peerOfDisks finds a peer for those who attach its disks.
func (d *Daemon) peerOfDisks(name string) (attach.Peer, error) {
	p, err := d.findPeer(name)
	return diskPeer{p, d}, err
}

// Choose chooses the transport of the next streams. It fails as carrier.Chooser.Choose does.
func (p diskPeer) Choose(ctx context.Context, by *local.Consumer) (*transport.Config, func(error), error) {
	return p.d.carriers.Choose(ctx, by, p)
}

// EachCarrier makes an attempt, and another while it is the carrier that fails.
func (p diskPeer) EachCarrier(ctx context.Context, attempt func() error) error {
	return p.carrier.Each(ctx, attempt)
}

// Unreachable says why the peer was not reached.
func (p diskPeer) Unreachable(err error) *api.Error { return p.unreachable(err) }

// Health is what the peer's status says.
func (p diskPeer) Health() (state string, problem *api.Error) {
	v := p.d.describePeer(p.peer, streamCount{})
	return v.State, v.Problem
}

func (d *Daemon) peersOfCarriers() (list []carrier.Peer) {
	for _, p := range d.peers.list() {
		list = append(list, p)
	}
	return list
}

func (d *Daemon) peerOfCarriers(a netip.Addr) (carrier.Peer, bool) {
	p := d.peers.at(a)
	return p, p != nil
}

// sessionStreams are the streams of sessions with a peer that are up.
func (d *Daemon) sessionStreams(peer string) (qps []*verbs.QP) {
	has := map[uint64]bool{}
	for _, s := range d.disks.Sessions(func(_ *local.Consumer, to string) bool { return to == peer }) {
		for _, conn := range s.Conns {
			has[conn.ID] = s.State == rtrs.Connected
		}
	}
	for _, qp := range d.dev.QPs() {
		if has[qp.ID()] {
			qps = append(qps, qp)
		}
	}
	return qps
}

// Attachments describes all attached disks.
func (d *Daemon) Attachments() []api.Attachment { return d.disks.Describe(d.local.AsRoot()) }
