package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/ipsec/charon"
)

// emitter sends one value of a metric.
type emitter func(m *prometheus.Desc, v float64, labels ...string)

// ipsecMetrics are about SAs and the guard. A label is the name of a peer or of
// a child as configured, a direction, or one of a few words: nothing that a peer
// chooses or that grows with time, such as an SPI.
type ipsecMetrics struct {
	saBytes, saPackets, saAge, saExpires, saInfo, ikeAge, ikeInfo                                 *prometheus.Desc
	deleted, lost, initiations, reinitiations, failures, rekeys, refused, impostors, guarded      *prometheus.Desc
	outages, outageSeconds, longest, repairs, reloads, insecure, blocked, strongSwan, certExpires *prometheus.Desc
}

func newIPsecMetrics() ipsecMetrics {
	return ipsecMetrics{
		saBytes:       desc("sa_bytes", "Bytes through a child SA since it was installed.", "peer", "child", "direction"),
		saPackets:     desc("sa_packets", "Packets through a child SA since it was installed.", "peer", "child", "direction"),
		saAge:         desc("sa_age_seconds", "Age of a child SA.", "peer", "child"),
		saExpires:     desc("sa_expires_seconds", "Time until the lifetime of a child SA is over.", "peer", "child"),
		saInfo:        desc("sa_info", "What a child SA has agreed on; always 1.", "peer", "child", "algorithms", "mode", "esn"),
		ikeAge:        desc("ike_sa_age_seconds", "Age of the youngest IKE SA.", "peer"),
		ikeInfo:       desc("ike_sa_info", "What the youngest IKE SA has agreed on, and whom IKE has authenticated; always 1.", "peer", "version", "algorithms", "identity"),
		deleted:       desc("sa_deletions_total", "Child SAs that went, by cause.", "peer", "cause"),
		lost:          desc("sa_lost_by_strongswan_total", "Child SAs that went with strongSwan itself.", "peer"),
		initiations:   desc("sa_initiations_total", "Attempts to bring a child SA up.", "peer"),
		reinitiations: desc("sa_reinitiations_total", "Lost child SAs that were brought back.", "peer"),
		failures:      desc("sa_failures_total", "Attempts to bring a child SA up that failed.", "peer"),
		rekeys:        desc("sa_rekeys_total", "Fresh keys.", "peer", "sa"),
		refused:       desc("flows_refused_total", "Flows with a peer's address that were not admitted, by reason.", "peer", "reason"),
		impostors:     desc("sa_impostors_total", "SAs of another identity that would have carried the peer's streams.", "peer"),
		guarded:       desc("guard_in_place", "1 if the kernel's guard of the peer is in place.", "peer"),
		outages:       desc("sa_outages_total", "Times that streams had no SA.", "peer"),
		outageSeconds: desc("sa_outage_seconds_total", "Time that streams had no SA.", "peer"),
		longest:       desc("sa_outage_longest_seconds", "The longest time that streams had no SA.", "peer"),
		repairs:       desc("guard_repairs_total", "Times that somebody had removed the guard.", "peer"),
		reloads:       desc("strongswan_reloads_total", "Times that somebody had unloaded the peer's connection or credentials from strongSwan, and it got them again.", "peer"),
		insecure:      desc("peer_insecure", "How many choices weaken the peer's protection: plaintext, NULL encryption, aggressive mode, a gateway.", "peer"),
		certExpires:   desc("certificate_expiry_timestamp_seconds", "When this host's certificate for a peer expires.", "peer"),
		blocked:       desc("guard_blocked_packets_total", "Packets that IPsec policies of this host have blocked, the guard's and others'.", "direction"),
		strongSwan:    desc("strongswan_connected", "1 if strongSwan answers."),
	}
}

func collectIPsec(st api.Status, gauge, counter emitter) {
	m := newIPsecMetrics()
	if st.IKE != nil {
		gauge(m.strongSwan, boolValue(st.IKE.Problem == nil))
	}
	if g := st.Guard; g != nil {
		counter(m.blocked, float64(g.BlockedIn), "in")
		counter(m.blocked, float64(g.BlockedOut), "out")
	}
	for _, p := range st.Peers {
		gauge(m.insecure, float64(len(p.Insecure)), p.Name)
		if !p.CertExpires.IsZero() {
			gauge(m.certExpires, float64(p.CertExpires.Unix()), p.Name)
		}
		if p.IPsec != nil {
			m.peer(p.Name, p.IPsec, gauge, counter)
		}
	}
	seen := map[[2]string]bool{}
	for _, s := range st.SAs {
		// One of each name is enough: rekeyed ones end by themselves.
		k := [2]string{s.Peer, s.Child}
		if seen[k] || s.State != charon.StateInstalled {
			continue
		}
		seen[k] = true
		gauge(m.saBytes, float64(s.BytesIn), s.Peer, s.Child, "in")
		gauge(m.saBytes, float64(s.BytesOut), s.Peer, s.Child, "out")
		gauge(m.saPackets, float64(s.PacketsIn), s.Peer, s.Child, "in")
		gauge(m.saPackets, float64(s.PacketsOut), s.Peer, s.Child, "out")
		gauge(m.saAge, s.AgeSeconds, s.Peer, s.Child)
		gauge(m.saInfo, 1, s.Peer, s.Child, s.Algorithms, s.Mode, strconv.FormatBool(s.ESN))
		if s.ExpiresInSeconds != 0 {
			gauge(m.saExpires, s.ExpiresInSeconds, s.Peer, s.Child)
		}
	}
}

func (m *ipsecMetrics) peer(name string, i *api.IPsec, gauge, counter emitter) {
	gauge(m.guarded, boolValue(i.Guarded), name)
	counter(m.repairs, float64(i.GuardRepairs), name)
	counter(m.reloads, float64(i.Reloads), name)
	byCause := map[string]uint64{"peer": i.DeletedByPeer, "here": i.DeletedHere, "expired": i.Expired, "idle": i.IdleReaps}
	other := i.ChildDeletes
	for cause, n := range byCause {
		other -= min(n, other)
		counter(m.deleted, float64(n), name, cause)
	}
	counter(m.deleted, float64(other), name, "other")
	counter(m.lost, float64(i.LostByStrongSwan), name)
	counter(m.initiations, float64(i.Initiations), name)
	counter(m.reinitiations, float64(i.Reinitiations), name)
	counter(m.failures, float64(i.Failures), name)
	counter(m.rekeys, float64(i.Rekeys), name, "child")
	counter(m.rekeys, float64(i.IKERekeys), name, "ike")
	for reason, n := range map[string]uint64{
		api.ReasonNotCovered: i.Refusals.NotCovered, api.ReasonIdentity: i.Refusals.WrongIdentity, api.ReasonGateway: i.Refusals.Gateway, api.ReasonLabel: i.Refusals.Label,
		api.ReasonStrongSwan: i.Refusals.NotConnected, api.ReasonBlocked: i.Refusals.Blocked, "other": i.Refusals.Other,
	} {
		counter(m.refused, float64(n), name, reason)
	}
	counter(m.impostors, float64(i.Impostors), name)
	counter(m.outages, float64(i.Outages), name)
	counter(m.outageSeconds, i.OutageSeconds, name)
	gauge(m.longest, i.LongestOutageSeconds, name)
	if l := i.Live; l != nil {
		gauge(m.ikeAge, l.AgeSeconds, name)
		gauge(m.ikeInfo, 1, name, strconv.Itoa(l.IKEVersion), l.IKE, l.RemoteID)
	}
}
