package daemon

import (
	"cmp"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/carrier"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/sas"
	"github.com/ironwarp/ironwarp/ipsec"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/transport"
)

// describePeers describes all peers.
func (d *Daemon) describePeers() []api.Peer {
	streams := d.countStreams()
	out := []api.Peer{}
	for _, p := range d.peers.list() {
		out = append(out, d.describePeer(p, streams[p.identity]))
	}
	return out
}

// describePeerNamed describes the peer of a name.
func (d *Daemon) describePeerNamed(name string) (api.Peer, error) {
	p, err := d.findPeer(name)
	if err != nil {
		return api.Peer{}, err
	}
	return d.describePeer(p, d.countStreams()[p.identity]), nil
}

// streamCount is how many streams a peer has, and how many of them over SCTP.
type streamCount struct {
	all, sctp int
	narrow    *api.NarrowPath // of the stream with the shortest packets
}

func (d *Daemon) countStreams() map[transport.Identity]streamCount {
	streams := map[transport.Identity]streamCount{}
	for _, qp := range d.dev.QPs() {
		n := streams[qp.Peer()]
		kind := carrier.KindOf(qp.Flow())
		if n.all++; kind != transport.TCP {
			n.sctp++
		}
		if carries, lost := qp.PathMTU(); lost > 0 && (n.narrow == nil || carries < n.narrow.CarriesBytes) {
			n.narrow = &api.NarrowPath{Transport: kind.String(), CarriesBytes: carries, LostBytes: lost}
		}
		streams[qp.Peer()] = n
	}
	for _, s := range d.programs.Streams() {
		n := streams[s.Peer]
		n.all++
		streams[s.Peer] = n
	}
	return streams
}

// warnNarrowPaths says once of each peer that the path to it drops long packets.
func (d *Daemon) warnNarrowPaths() {
	streams := d.countStreams()
	for _, p := range d.peers.list() {
		if n := streams[p.identity].narrow; n != nil && !p.warnedNarrow.Swap(true) {
			d.log.Warn("the path to the peer "+n.String(), "peer", p.cfg.Name, "fix", n.Fix())
		}
	}
}

func (d *Daemon) describePeer(p *peer, streams streamCount) api.Peer {
	_, local, problem := p.state()
	v := api.Peer{PeerSpec: specOf(p.cfg), Source: p.cfg.Origin.String(), State: api.PeerUp, Problem: problem, Streams: streams.all, NarrowPath: streams.narrow,
		Carrier: p.carrier.Describe(p.cfg.Transport), PathStates: d.pathStates(p, streams.sctp > 0), Exports: []string{}, Insecure: p.cfg.Insecure()}
	if local.IsValid() {
		v.LocalAddress = local.String()
	}
	if p.cfg.Host != "" {
		v.NameNote = d.names.Note(p.cfg.Host)
		if !p.cfg.Unresolved() {
			v.Resolved = p.cfg.Address.String()
		}
	}
	for _, e := range d.config().Exports {
		if e.Allows(p.cfg) {
			v.Exports = append(v.Exports, e.Name)
		}
	}
	for _, b := range p.cfg.Programs {
		v.ProgramPorts = append(v.ProgramPorts, b.Words())
	}
	v.Partitions = d.partitionsOf(p)
	if problem != nil {
		v.State = api.PeerProblem
	}
	if p.cfg.Protection != config.ProtectIPsec {
		return v
	}
	v.LocalID, v.RemoteID = cmp.Or(p.cfg.LocalID, v.LocalAddress), p.cfg.Identity()
	v.Profile, v.Mode, v.Revocation = p.cfg.Resolved.Name, p.cfg.Resolved.Mode.String(), string(revocation(p.cfg))
	if m := d.sas.Current(); m != nil && problem == nil {
		p.describeIKE(&v, m)
		if slices.ContainsFunc(v.PathStates, func(s api.PathState) bool { return s.Protection == api.PeerUp }) {
			v.State = api.PeerUp // by one path at least
		}
	}
	p.mu.Lock()
	keys := p.keys
	p.mu.Unlock()
	if keys.cert != nil {
		v.CertExpires = keys.cert.Certificate().NotAfter
		if own := keys.certProblem(p.cfg.Name, time.Now()); own != nil && (v.Problem == nil || v.Problem.Reason == api.ReasonAuthFailed) {
			// Here is the cause; the peer only says that it refuses.
			v.Problem = own
		}
	}
	return v
}

// describeIKE fills in what the IPsec manager knows of a peer.
func (p *peer) describeIKE(v *api.Peer, m *ipsec.Manager) {
	st, err := m.PeerStatus(v.Name)
	if err != nil {
		v.State, v.Problem = api.PeerProblem, sas.Problem(v.Name, err)
		return
	}
	v.IPsec = sas.Describe(st)
	if st.DataPlane != esp.Auto {
		v.DataPlane = st.DataPlane.String()
	}
	if v.State = sas.State(st); v.State == api.PeerUp {
		return
	}
	if !m.DaemonStatus().Connected && v.State == api.PeerIdle {
		// The status says once what is wrong with the IKE daemon.
		v.State = api.PeerProblem
	}
	if st.LastError != "" {
		v.Problem = &api.Error{Code: api.CodeUnavailable, Message: st.LastError, Fix: "the daemon keeps trying"}
		if st.Err != nil {
			v.Problem = p.ikeProblem(st.Err)
		}
		if v.State == api.PeerIdle {
			v.State = api.PeerProblem
		}
	}
}

// revocation is what a peer's declaration means, "" with a secret.
func revocation(c config.Peer) auth.Revocation {
	if c.Auth != config.AuthCert {
		return ""
	}
	return cmp.Or(c.Revocation, auth.RevocationIfURI)
}

// pathStates describes the paths of a peer with several addresses, and the only
// one of another if it has failed. inUse: the peer has streams over SCTP.
func (d *Daemon) pathStates(p *peer, inUse bool) []api.PathState {
	_, local, _ := p.state()
	var out []api.PathState
	for i, q := range p.cfg.Pairs() {
		v := api.PathState{Pair: api.Pair{Address: q.Address.String(), LocalAddress: config.FormatAddr(local)}, Path: q.Path, Protection: api.PeerUp}
		if i > 0 {
			v.LocalAddress = config.FormatAddr(q.LocalAddress)
		}
		p.carrier.DescribePath(&v, q.Address, inUse)
		if p.cfg.Protection == config.ProtectIPsec {
			v.Protection = d.sas.StateOf(q.Connection)
		}
		if w := p.findPath(q.Path); w != nil {
			if v.Problem = w.Problem(); v.Problem != nil {
				v.Protection = api.PeerProblem
			}
		}
		out = append(out, v)
	}
	if len(out) == 1 && out[0].Failures == 0 {
		return nil
	}
	return out
}
