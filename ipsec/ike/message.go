package ike

import (
	"strconv"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/charon"
	"github.com/ironwarp/ironwarp/ipsec/esp"
	"github.com/ironwarp/ironwarp/ipsec/pad"
)

// connMessage is load-conn.
func connMessage(p *pad.Peer, plane esp.Plane) *vici.Message {
	encap := "no"
	if plane.Offers().UDP {
		encap = "yes" // userland ESP speaks it in UDP only
	}
	end := p.Remote
	if p.Gateway.IsValid() {
		end = p.Gateway
	}
	local, remote := authSections(p)
	sendCert, sendCertReq := "never", "no"
	if p.Cert != nil {
		sendCert, sendCertReq = "always", "yes" // certificate requests: RFC 7146 3.1 b
	}
	seconds := func(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }
	child := func(spec pad.Child) *vici.Message {
		m := charon.Section(
			"local_ts", []string{spec.Local.Numeric()},
			"remote_ts", []string{spec.Remote.Numeric()},
			"esp_proposals", p.Profile.ESPFor(plane),
			"mode", p.Profile.Mode.String(),
			"start_action", "none", // the keeper initiates, nobody else
			"close_action", "none",
			"dpd_action", "clear",
			"rekey_time", seconds(p.Profile.ChildRekey),
			"replay_window", strconv.Itoa(p.Profile.ReplayWindow),
		)
		if p.Profile.RekeyBytes > 0 {
			charon.Set(m, "rekey_bytes", strconv.FormatUint(p.Profile.RekeyBytes, 10))
			charon.Set(m, "life_bytes", strconv.FormatUint(p.Profile.LifeBytes(), 10))
		}
		if label := spec.Link.Label; label != "" {
			// simple: the SPD is not asked about labels, which nobody's kernel need know; IKE compares them.
			charon.Set(m, "label", label)
			charon.Set(m, "label_mode", "simple")
		}
		if n := plane.Offers().Priority; n > 0 {
			charon.Set(m, "priority", strconv.Itoa(n))
		}
		return m
	}
	children := charon.Section()
	for _, spec := range p.ChildSAs() {
		charon.Set(children, spec.Name, child(spec))
	}
	conn := charon.Section(
		"version", strconv.Itoa(p.Profile.Version),
		"local_addrs", []string{p.Local.String()},
		"remote_addrs", []string{end.String()},
		"proposals", p.Profile.IKE,
		"encap", encap,
		"mobike", "no",
		"dpd_delay", seconds(p.Profile.DPDDelay),
		"rekey_time", seconds(p.Profile.IKERekey),
		"keyingtries", "1", // the keeper tries again, with its own patience
		"send_cert", sendCert,
		"send_certreq", sendCertReq,
		"local-1", local,
		"remote-1", remote,
		"children", children,
	)
	if p.Profile.Aggressive {
		charon.Set(conn, "aggressive", "yes")
	}
	return charon.Section(p.Name, conn)
}
