package charon

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/strongswan/govici/vici"
)

// MaxListed bounds the SAs, children included, of one list: 1024 peers with
// three links of 32 children each, and some of other programs.
const MaxListed = 1 << 17

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
			UniqueID:   uint32(Num(ike, "uniqueid")),
			Version:    int(Num(ike, "version")),
			State:      Str(ike, "state"),
			LocalPort:  uint16(Num(ike, "local-port")),
			RemotePort: uint16(Num(ike, "remote-port")),
			LocalID:    Str(ike, "local-id"),
			RemoteID:   Str(ike, "remote-id"),
			Initiator:  Str(ike, "initiator") == "yes",
			SPI:        [2]string{Str(ike, "initiator-spi"), Str(ike, "responder-spi")},
			Encryption: encryption(ike),
			Integrity:  Str(ike, "integ-alg"),
			PRF:        Str(ike, "prf-alg"),
			DHGroup:    Str(ike, "dh-group"),
		}
		sa.LocalHost, _ = netip.ParseAddr(Str(ike, "local-host"))
		sa.RemoteHost, _ = netip.ParseAddr(Str(ike, "remote-host"))
		sa.Established = secondsFrom(now, ike, "established", -1)
		sa.Rekey = secondsFrom(now, ike, "rekey-time", 1)
		sa.Reauth = secondsFrom(now, ike, "reauth-time", 1)
		children := Sub(ike, "child-sas")
		for _, key := range children.Keys() {
			sa.Children = append(sa.Children, ParseChild(Sub(children, key), key, now))
		}
		out = append(out, sa)
	}
	return out
}

// ParseChild reads a child SA; key is its name in the message.
func ParseChild(m *vici.Message, key string, now time.Time) Child {
	c := Child{
		Name:       cmp.Or(Str(m, "name"), key),
		UniqueID:   uint32(Num(m, "uniqueid")),
		ReqID:      uint32(Num(m, "reqid")),
		State:      Str(m, "state"),
		Mode:       Str(m, "mode"),
		Protocol:   Str(m, "protocol"),
		Encap:      Str(m, "encap") == "yes",
		SPIIn:      Str(m, "spi-in"),
		SPIOut:     Str(m, "spi-out"),
		Encryption: encryption(m),
		KeyBits:    int(Num(m, "encr-keysize")),
		Integrity:  Str(m, "integ-alg"),
		DHGroup:    Str(m, "dh-group"),
		ESN:        Str(m, "esn") == "1" || Str(m, "esn") == "yes",
		BytesIn:    Num(m, "bytes-in"),
		PacketsIn:  Num(m, "packets-in"),
		BytesOut:   Num(m, "bytes-out"),
		PacketsOut: Num(m, "packets-out"),
	}
	c.Installed = secondsFrom(now, m, "install-time", -1)
	c.Rekey = secondsFrom(now, m, "rekey-time", 1)
	c.Expires = secondsFrom(now, m, "life-time", 1)
	c.LocalTS = ParseSelectors(List(m, "local-ts"))
	c.RemoteTS = ParseSelectors(List(m, "remote-ts"))
	c.Label = parseLabel(Str(m, "label"))
	return c
}

// parseLabel reads a security label, which charon lists in hexadecimal digits with the NUL behind it that it has on the
// wire. One that is nothing of the kind stays as it is, so that it equals no label that is configured in its place.
func parseLabel(s string) string {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) == 0 {
		return s
	}
	if label := strings.TrimSuffix(string(b), "\x00"); label != "" {
		return label
	}
	return s
}

// ParseSelectors leaves out selectors that are not understood: they cover
// nothing.
func ParseSelectors(texts []string) []Selector {
	out := make([]Selector, 0, len(texts))
	for _, t := range texts {
		if s, err := ParseSelector(t); err == nil {
			out = append(out, s)
		}
	}
	return out
}

// secondsFrom is the time that is so many seconds after now as a key says, or before it with direction -1;
// zero without the key.
func secondsFrom(now time.Time, m *vici.Message, key string, direction time.Duration) time.Time {
	text := Str(m, key)
	if text == "" {
		return time.Time{}
	}
	n, _ := strconv.ParseInt(text, 10, 64)
	return now.Add(direction * time.Duration(n) * time.Second)
}

func encryption(m *vici.Message) string {
	name := Str(m, "encr-alg")
	if n := Str(m, "encr-keysize"); n != "" && n != "0" {
		name += "-" + n
	}
	return name
}

// ListSAs asks charon for the SAs of a connection ("": all of them), and returns them
// all. c must be subscribed to list-sa. It fails as Call does, and with ErrProtocol at
// more than MaxListed.
func ListSAs(ctx context.Context, c *Conn, conn string) ([]SA, error) {
	var sas []SA
	now := time.Now()
	children := 0
	_, err := c.Call(ctx, "list-sas", conn, Section("ike", conn), func(ev vici.Event) {
		if ev.Name != "list-sa" || len(sas)+children > MaxListed {
			return
		}
		for _, sa := range parseSAs(ev.Message, now) {
			sas = append(sas, sa)
			children += len(sa.Children)
		}
	})
	if err == nil && len(sas)+children > MaxListed {
		err = &Error{Op: "list-sas", Socket: c.Socket, Kind: ErrProtocol, Err: fmt.Errorf("more than %d SAs", MaxListed)}
	}
	return sas, err
}
