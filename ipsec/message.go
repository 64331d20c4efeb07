package ipsec

import (
	"context"
	"net/netip"
	"strconv"
	"time"

	"github.com/strongswan/govici/vici"
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

func secretName(peer string) string { return "ironwarp-" + peer }

// sharedMessage is load-shared: the key for exactly these two identities.
func sharedMessage(p *Peer) *vici.Message {
	return section("id", secretName(p.Name), "type", "IKE", "data", string(p.PSK.key), "owners", []string{p.RemoteID, p.LocalID})
}

// connMessage is load-conn.
func connMessage(p *Peer, plane DataPlane) *vici.Message {
	encap := "no"
	if plane != DataPlaneKernel {
		encap = "yes" // userland ESP speaks it in UDP only
	}
	seconds := func(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }
	child := func(r role) *vici.Message {
		local, remote := p.selectors(r)
		m := section(
			"local_ts", []string{local.String()},
			"remote_ts", []string{remote.String()},
			"esp_proposals", p.Profile.espFor(plane),
			"mode", p.Profile.Mode.String(),
			"start_action", "none", // the keeper initiates, nobody else
			"close_action", "none",
			"dpd_action", "clear",
			"rekey_time", seconds(p.Profile.ChildRekey),
			"replay_window", strconv.Itoa(p.Profile.ReplayWindow),
		)
		if p.Profile.RekeyBytes > 0 {
			set(m, "rekey_bytes", strconv.FormatUint(p.Profile.RekeyBytes, 10))
		}
		if plane == DataPlaneKernel {
			set(m, "priority", strconv.Itoa(childPriority))
		}
		return m
	}
	conn := section(
		"version", strconv.Itoa(p.Profile.Version),
		"local_addrs", []string{p.Local.String()},
		"remote_addrs", []string{p.Remote.String()},
		"proposals", p.Profile.IKE,
		"encap", encap,
		"mobike", "no",
		"dpd_delay", seconds(p.Profile.DPDDelay),
		"rekey_time", seconds(p.Profile.IKERekey),
		"keyingtries", "1", // the keeper tries again, with its own patience
		"send_cert", "never",
		"send_certreq", "no",
		"local-1", section("auth", "psk", "id", p.LocalID),
		"remote-1", section("auth", "psk", "id", p.RemoteID),
		"children", section(
			p.outName(), child(dialler),
			p.inName(), child(listener),
		),
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

// parseSAs reads the SAs of one list-sa event.
func parseSAs(m *vici.Message, now time.Time) []SA {
	var out []SA
	for _, name := range m.Keys() {
		ike, ok := m.Get(name).(*vici.Message)
		if !ok {
			continue // success, errmsg, up: not SAs
		}
		sa := SA{
			Peer:       name,
			UniqueID:   uint32(num(ike, "uniqueid")),
			Version:    int(num(ike, "version")),
			State:      str(ike, "state"),
			LocalPort:  uint16(num(ike, "local-port")),
			RemotePort: uint16(num(ike, "remote-port")),
			LocalID:    str(ike, "local-id"),
			RemoteID:   str(ike, "remote-id"),
			Initiator:  str(ike, "initiator") == "yes",
			SPI:        [2]string{str(ike, "initiator-spi"), str(ike, "responder-spi")},
			Encryption: algorithmName(ike, "encr-alg", "encr-keysize"),
			Integrity:  str(ike, "integ-alg"),
			PRF:        str(ike, "prf-alg"),
			DHGroup:    str(ike, "dh-group"),
		}
		sa.LocalHost, _ = netip.ParseAddr(str(ike, "local-host"))
		sa.RemoteHost, _ = netip.ParseAddr(str(ike, "remote-host"))
		if str(ike, "established") != "" {
			sa.Established = now.Add(-seconds(ike, "established"))
		}
		children := sub(ike, "child-sas")
		for _, key := range children.Keys() {
			sa.Children = append(sa.Children, parseChild(sub(children, key), key, now))
		}
		out = append(out, sa)
	}
	return out
}

func parseChild(m *vici.Message, key string, now time.Time) Child {
	c := Child{
		Name:       str(m, "name"),
		UniqueID:   uint32(num(m, "uniqueid")),
		ReqID:      uint32(num(m, "reqid")),
		State:      str(m, "state"),
		Mode:       str(m, "mode"),
		Protocol:   str(m, "protocol"),
		Encap:      str(m, "encap") == "yes",
		SPIIn:      str(m, "spi-in"),
		SPIOut:     str(m, "spi-out"),
		Encryption: algorithmName(m, "encr-alg", "encr-keysize"),
		KeyBits:    int(num(m, "encr-keysize")),
		Integrity:  str(m, "integ-alg"),
		DHGroup:    str(m, "dh-group"),
		ESN:        str(m, "esn") == "1" || str(m, "esn") == "yes",
		BytesIn:    num(m, "bytes-in"),
		PacketsIn:  num(m, "packets-in"),
		BytesOut:   num(m, "bytes-out"),
		PacketsOut: num(m, "packets-out"),
	}
	if c.Name == "" {
		c.Name = key
	}
	if str(m, "install-time") != "" {
		c.Installed = now.Add(-seconds(m, "install-time"))
	}
	if str(m, "rekey-time") != "" {
		c.Rekey = now.Add(seconds(m, "rekey-time"))
	}
	if str(m, "life-time") != "" {
		c.Expires = now.Add(seconds(m, "life-time"))
	}
	c.LocalTS = parseSelectors(list(m, "local-ts"))
	c.RemoteTS = parseSelectors(list(m, "remote-ts"))
	return c
}

// parseSelectors leaves out selectors that are not understood: they cover
// nothing.
func parseSelectors(texts []string) []Selector {
	out := make([]Selector, 0, len(texts))
	for _, t := range texts {
		if s, err := ParseSelector(t); err == nil {
			out = append(out, s)
		}
	}
	return out
}

func seconds(m *vici.Message, key string) time.Duration {
	n, _ := strconv.ParseInt(str(m, key), 10, 64)
	return time.Duration(n) * time.Second
}

func algorithmName(m *vici.Message, alg, size string) string {
	name := str(m, alg)
	if n := str(m, size); n != "" && n != "0" {
		name += "-" + n
	}
	return name
}

// listSAs asks charon for the SAs of a connection ("": all of them), and returns
// them all. c must be subscribed to list-sa.
func listSAs(ctx context.Context, c *viciConn, conn string) ([]SA, error) {
	var sas []SA
	now := time.Now()
	_, err := c.call(ctx, "list-sas", conn, section("ike", conn), func(ev vici.Event) {
		if ev.Name == "list-sa" {
			sas = append(sas, parseSAs(ev.Message, now)...)
		}
	})
	return sas, err
}
