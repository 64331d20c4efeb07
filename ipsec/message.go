package ipsec

import (
	"strconv"
	"time"

	"github.com/strongswan/govici/vici"

	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// section builds a VICI message from keys and values: strings, lists of strings
// and sections. Empty values are left out.
func section(kv ...any) *vici.Message {
	m := vici.NewMessage()
	for i := 0; i+1 < len(kv); i += 2 {
		switch v := kv[i+1].(type) {
		case string:
			if v == "" {
				continue
			}
		case []string:
			if len(v) == 0 {
				continue
			}
		}
		if err := m.Set(kv[i].(string), kv[i+1]); err != nil {
			panic("ipsec: a VICI message of our own: " + err.Error())
		}
	}
	return m
}

// connMessage is load-conn.
func connMessage(p *Peer, plane esp.Plane) *vici.Message {
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
	child := func(spec laneSpec) *vici.Message {
		m := section(
			"local_ts", []string{spec.local.Numeric()},
			"remote_ts", []string{spec.remote.Numeric()},
			"esp_proposals", p.Profile.ESPFor(plane),
			"mode", p.Profile.Mode.String(),
			"start_action", "none", // the keeper initiates, nobody else
			"close_action", "none",
			"dpd_action", "clear",
			"rekey_time", seconds(p.Profile.ChildRekey),
			"replay_window", strconv.Itoa(p.Profile.ReplayWindow),
		)
		if p.Profile.RekeyBytes > 0 {
			set(m, "rekey_bytes", strconv.FormatUint(p.Profile.RekeyBytes, 10))
			set(m, "life_bytes", strconv.FormatUint(p.Profile.LifeBytes(), 10))
		}
		if n := plane.Offers().Priority; n > 0 {
			set(m, "priority", strconv.Itoa(n))
		}
		return m
	}
	children := section()
	for _, spec := range p.laneSpecs() {
		set(children, spec.child, child(spec))
	}
	conn := section(
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
		set(conn, "aggressive", "yes")
	}
	return section(p.Name, conn)
}

func set(m *vici.Message, key string, value any) {
	if err := m.Set(key, value); err != nil {
		panic("ipsec: a VICI message of our own: " + err.Error())
	}
}

func str(m *vici.Message, key string) string {
	s, _ := m.Get(key).(string)
	return s
}

func num(m *vici.Message, key string) uint64 {
	n, _ := strconv.ParseUint(str(m, key), 10, 64)
	return n
}

func uintString(n uint32) string { return strconv.FormatUint(uint64(n), 10) }

func list(m *vici.Message, key string) []string {
	switch v := m.Get(key).(type) {
	case []string:
		return v
	case string:
		if v != "" {
			return []string{v}
		}
	}
	return nil
}

func sub(m *vici.Message, key string) *vici.Message {
	if s, ok := m.Get(key).(*vici.Message); ok && s != nil {
		return s
	}
	return vici.NewMessage()
}
