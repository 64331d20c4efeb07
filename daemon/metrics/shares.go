package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/transport"
)

// maxPeerSeries is how many peers have resource metrics of their own; others are
// summed up under Others, so that a scrape stays small however many there are. Peers
// without a declaration, which are few and short-lived, are counted there too.
const maxPeerSeries = 200

// shareMetrics has the metrics of the RNIC's resources by principal.
type shareMetrics struct{ used, limit, share, events, slow, blocked, dropped *prometheus.Desc }

func newShareMetrics() shareMetrics {
	return shareMetrics{
		used:    desc("rnic_resource_used", "What of the RNIC's resources is in use, by the device as a whole, by each ULP and by each peer; memory in bytes.", "kind", "principal", "resource"),
		limit:   desc("rnic_resource_limit", "How much of a resource there may be.", "kind", "principal", "resource"),
		share:   desc("rnic_resource_share", "How much of a resource is never refused on account of others.", "kind", "principal", "resource"),
		events:  desc("rnic_events_total", "What the RNIC has reported, by kind, and blocks of peers.", "peer", "event"),
		slow:    desc("streams_slow_paths", "Slow paths that peers have driven with the streams that are up.", "peer", "path"),
		blocked: desc("peer_blocked", "1 while the peer is blocked.", "peer", "by"),
		dropped: desc("peer_block_dropped", "Packets that the kernel has dropped, or streams that the daemon has refused, while the peer is blocked.", "peer", "by"),
	}
}

// collectShares collects how much of the RNIC's resources each principal uses.
func (c collector) collectShares(st api.Status, r api.Resources, gauge, counter emitter) {
	set := newShareMetrics()
	own := map[string]bool{}
	for _, name := range c.PeerNames() {
		if len(own) < maxPeerSeries {
			own[name] = true
		}
	}
	one := func(p api.Principal) {
		for _, u := range p.Uses {
			gauge(set.used, float64(u.Used), p.Kind, p.Name, u.Name)
			if u.Limit > 0 {
				gauge(set.limit, float64(u.Limit), p.Kind, p.Name, u.Name)
			}
			if u.Share > 0 {
				gauge(set.share, float64(u.Share), p.Kind, p.Name, u.Name)
			}
		}
	}
	one(r.Device)
	for _, p := range r.ULPs {
		one(p)
	}
	others := map[string]int64{}
	for _, p := range r.Peers {
		// The identity of somebody who is no peer may read like a peer's name.
		if name := c.CountedAs(transport.Identity(p.Identity)); own[name] {
			one(p)
			continue
		}
		for _, u := range p.Uses {
			others[u.Name] += u.Used
		}
	}
	for name, n := range others {
		gauge(set.used, float64(n), api.PrincipalPeer, Others, name)
	}
	peerLabel := func(name string) string {
		if own[name] {
			return name
		}
		return Others
	}
	events, slow, dropped := map[[2]string]uint64{}, map[[2]string]uint64{}, map[[2]string]uint64{}
	for _, e := range r.Events {
		events[[2]string{peerLabel(e.Peer), e.Kind}] += e.Count
	}
	for _, s := range st.Streams {
		for _, p := range s.Slow {
			slow[[2]string{peerLabel(s.Peer), p.Kind}] += p.Count
		}
	}
	for _, b := range st.Blocks {
		dropped[[2]string{peerLabel(b.Peer), b.By}] += b.Packets
	}
	for k, n := range events {
		counter(set.events, float64(n), k[0], k[1])
	}
	for k, n := range slow {
		gauge(set.slow, float64(n), k[0], k[1])
	}
	for k, n := range dropped {
		gauge(set.blocked, 1, k[0], k[1])
		gauge(set.dropped, float64(n), k[0], k[1])
	}
}
