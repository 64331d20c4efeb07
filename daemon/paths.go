package daemon

import (
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// pathStates describes the paths of a peer with several addresses, and the only
// one of another if it has failed. inUse: the peer has streams over SCTP.
func (d *Daemon) pathStates(p *peer, inUse bool) []api.PathState {
	_, local, _ := p.state()
	var out []api.PathState
	for i, a := range p.cfg.Addresses() {
		v := api.PathState{Path: api.Path{Address: a.String(), LocalAddress: addrText(local)}, Protection: api.PeerUp}
		if i > 0 {
			v.LocalAddress = addrText(p.cfg.Paths[i-1].LocalAddress)
		}
		p.carrier.DescribePath(&v, a, inUse)
		if p.cfg.Protection == config.ProtectIPsec {
			v.Protection = d.sas.StateOf(p.cfg.PathName(i))
		}
		out = append(out, v)
	}
	if len(out) == 1 && out[0].Failures == 0 {
		return nil
	}
	return out
}
