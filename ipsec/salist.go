package ipsec

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/strongswan/govici/vici"
)

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
		if str(ike, "rekey-time") != "" {
			sa.Rekey = now.Add(seconds(ike, "rekey-time"))
		}
		if str(ike, "reauth-time") != "" {
			sa.Reauth = now.Add(seconds(ike, "reauth-time"))
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
	children := 0
	_, err := c.call(ctx, "list-sas", conn, section("ike", conn), func(ev vici.Event) {
		if ev.Name != "list-sa" || len(sas)+children > maxListed {
			return
		}
		for _, sa := range parseSAs(ev.Message, now) {
			sas = append(sas, sa)
			children += len(sa.Children)
		}
	})
	if err == nil && len(sas)+children > maxListed {
		err = &DaemonError{Op: "list-sas", Socket: c.socket, Kind: ErrDaemonProtocol, Err: fmt.Errorf("more than %d SAs", maxListed)}
	}
	return sas, err
}
