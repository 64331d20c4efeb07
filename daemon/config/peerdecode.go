package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/ipsec/profile"
	"github.com/ironwarp/ironwarp/rtrs"
)

func (d *decoder) peer(n ast.Node) Peer {
	p := defaultPeer()
	p.Origin = d.pos(n)
	var protection string
	plaintext, invalidate := false, true
	faults := len(d.errs)
	f := fields{
		"name":               d.str("peer name", &p.Name, CheckPeerName),
		"address":            d.peerAddress(&p),
		"local_address":      d.addr("local_address", func(a netip.Addr) { p.LocalAddress = a }),
		"port":               d.integer("port", 1, 65535, func(v uint64) { p.Port = uint16(v) }),
		"transport":          d.enum("transport", func(s string) { p.Transport = Transport(s) }, Transports()...),
		"udp_port":           d.udpPort(func(v uint64) { p.UDPPort = uint16(v) }),
		"multihoming":        d.peerMultihoming(&p.Multihoming),
		"paths":              d.peerPaths(&p.Paths),
		"protection":         d.enum("protection", func(s string) { protection = s }, "ipsec", "loopback"),
		"insecure_plaintext": d.boolean("insecure_plaintext", &plaintext),
		"crc":                d.enum("crc", func(s string) { p.CRC = s == "on" }, "on", "off"),
		"fpdu":               d.enum("fpdu", func(s string) { p.LargeFPDU = s == "large" }, "large", "emss"),
		"connections":        d.integer("connections", 1, MaxConnections, func(v uint64) { p.Connections = int(v) }),
		"policy":             d.enum("policy", func(s string) { p.Policy, _ = rtrs.ParsePolicy(s) }, rtrs.Policies()...),
		"heartbeat_interval": d.duration("heartbeat_interval", MinHeartbeat, MaxHeartbeat, func(v time.Duration) { p.Heartbeat.Interval = v }),
		"heartbeat_misses":   d.integer("heartbeat_misses", 1, MaxHeartbeatMisses, func(v uint64) { p.Heartbeat.Missed = int(v) }),
		"no_path":            d.enum("no_path", func(s string) { p.NoPath.Fail = s == NoPathFail }, NoPaths()...),
		"fail_after":         d.duration("fail_after", MinFailAfter, MaxFailAfter, func(v time.Duration) { p.NoPath.After = v }),
		"reconnect_attempts": d.integer("reconnect_attempts", 0, MaxReconnectAttempts, func(v uint64) { p.ReconnectAttempts = int(v) }),
		"always_invalidate":  d.boolean("always_invalidate", &invalidate),
		"limits":             d.peerQuota("limits", &p.Limits),
	}
	ike := d.peerIPsec(&p)
	present := []string{} // the keys that the file has
	for key, read := range ike {
		f[key] = func(n ast.Node) {
			present = append(present, key)
			read(n)
		}
	}
	d.mapping(n, "a peer", f)
	if protection != "" {
		p.Protection = Protection(protection)
	}
	p.OpenChunks = !invalidate
	if plaintext {
		if protection != "" {
			d.fail(n, "insecure_plaintext: true beside protection: "+protection, "keep one of the two")
		}
		p.Protection = ProtectPlaintext
	}
	if len(d.errs) > faults {
		return p
	}
	slices.Sort(present)
	if msg, fix := p.fault(present); msg != "" {
		d.fail(n, msg, fix)
	}
	p.setDefaults()
	return p
}

// peerIPsec are the keys that only a peer with protection: ipsec has.
func (d *decoder) peerIPsec(p *Peer) fields {
	return fields{
		"local_id":   d.str("local_id", &p.LocalID, checkIdentity),
		"remote_id":  d.str("remote_id", &p.RemoteID, checkIdentity),
		"auth":       d.enum("auth", func(s string) { p.Auth = Auth(s) }, string(AuthPSK), string(AuthCert)),
		"psk_file":   d.path("psk_file", &p.PSKFile),
		"cert_file":  d.path("cert_file", &p.CertFile),
		"key_file":   d.path("key_file", &p.KeyFile),
		"ca_files":   d.paths("ca_files", &p.CAFiles),
		"crl_uris":   d.uris("crl_uris", &p.CRLURIs, CheckCRLURI),
		"ocsp_uris":  d.uris("ocsp_uris", &p.OCSPURIs, CheckOCSPURI),
		"revocation": d.enum("revocation", func(s string) { p.Revocation = auth.Revocation(s) }, revocations()...),
		"gateway":    d.addr("gateway", func(a netip.Addr) { p.Gateway = a }),
		"child_sas":  d.integer("child_sas", 1, pad.MaxChildren, func(v uint64) { p.ChildSAs = int(v) }),
		"idle_reap":  d.duration("idle_reap", MinIdleReap, MaxIdleReap, func(v time.Duration) { p.IdleReap = v }),
		"iscsi_port": d.integer("iscsi_port", 1, 65535, func(v uint64) { p.ISCSIPort = uint16(v) }),
		"nvme_port":  d.integer("nvme_port", 1, 65535, func(v uint64) { p.NVMePort = uint16(v) }),
		"profile": func(n ast.Node) {
			p.profileAt = d.pos(n)
			d.str("profile", &p.Profile, nil)(n)
		},
		"mode": d.enum("mode", func(s string) { p.Mode = s }, profile.Tunnel.String(), profile.Transport.String()),
	}
}

func revocations() []string {
	return []string{string(auth.RevocationStrict), string(auth.RevocationIfURI), string(auth.RevocationRelaxed)}
}

// fault is what is wrong with a peer as a whole, and what to do. present are the IPsec
// keys of its declaration.
func (p *Peer) fault(present []string) (msg, fix string) {
	if msg, fix := p.hostFault(); msg != "" {
		return msg, fix
	}
	switch {
	case p.Name == "":
		return "a peer without name", "add name: and a short name of your choice"
	case !p.Address.IsValid():
		return fmt.Sprintf("peer %s without address", p.Name), "add address: and the peer's IP address"
	case p.Host == "" && p.LocalAddress.IsValid() && p.LocalAddress.Is4() != p.Address.Is4():
		return fmt.Sprintf("peer %s mixes IPv4 and IPv6: address %s, local_address %s", p.Name, p.Address, p.LocalAddress), "use two addresses of one family"
	case p.Protection == ProtectIPsec && p.Address.IsLoopback():
		return fmt.Sprintf("peer %s at %s cannot have protection: ipsec", p.Name, p.Address), "use protection: loopback for a daemon on this host"
	case p.Protection == ProtectLoopback && !p.Address.IsLoopback():
		return fmt.Sprintf("peer %s has protection: loopback but %s is not on this host", p.Name, p.Address), "use protection: ipsec"
	case p.Protection != ProtectIPsec && len(present) > 0:
		return fmt.Sprintf("peer %s has IPsec settings (%s) but its protection is %s", p.Name, strings.Join(present, ", "), p.Protection), "remove them or use protection: ipsec"
	case !p.CRC && p.Protection != ProtectIPsec:
		return fmt.Sprintf("peer %s has crc: off without ESP", p.Name), "crc: off is allowed with protection: ipsec only, where ESP guards integrity (RFC 5044 section 4.4)"
	case !p.NoPath.Fail && p.NoPath.After != 0:
		return fmt.Sprintf("peer %s has fail_after without no_path: fail", p.Name), "remove it, or say no_path: fail"
	}
	if msg, fix := p.transportFault(); msg != "" {
		return msg, fix
	}
	if p.Protection == ProtectIPsec {
		return p.ipsecFault()
	}
	return "", ""
}

// ipsecFault is fault for the IPsec settings of a peer.
func (p *Peer) ipsecFault() (msg, fix string) {
	if p.Auth == "" {
		p.Auth = AuthPSK
		if p.PSKFile == "" && (p.CertFile != "" || p.KeyFile != "" || len(p.CAFiles) > 0) {
			p.Auth = AuthCert
		}
	}
	cert := p.CertFile != "" || p.KeyFile != "" || len(p.CAFiles)+len(p.CRLURIs)+len(p.OCSPURIs) > 0 || p.Revocation != ""
	switch {
	case p.Auth == AuthPSK && cert:
		return fmt.Sprintf("peer %s has auth: psk beside settings of certificates (cert_file, key_file, ca_files, crl_uris, ocsp_uris, revocation)", p.Name), "remove them, or remove psk_file and say auth: cert"
	case p.Auth == AuthPSK && p.PSKFile == "":
		return fmt.Sprintf("peer %s without psk_file", p.Name), "add psk_file: and the file that holds the secret both hosts share, or cert_file, key_file and ca_files for certificates"
	case p.Auth == AuthCert && p.PSKFile != "":
		return fmt.Sprintf("peer %s has auth: cert beside psk_file", p.Name), "keep one of the two"
	case p.Auth == AuthCert && p.CertFile == "":
		return fmt.Sprintf("peer %s without cert_file", p.Name), "add cert_file: and the file of this host's certificate (PEM)"
	case p.Auth == AuthCert && p.KeyFile == "":
		return fmt.Sprintf("peer %s without key_file", p.Name), "add key_file: and the file of this host's private key (PEM, mode 0600)"
	case p.Auth == AuthCert && len(p.CAFiles) == 0:
		return fmt.Sprintf("peer %s without ca_files", p.Name), "add ca_files: and a list of the certificates (PEM) of the authorities that may have issued the peer's certificate"
	case p.ChildSAs&(p.ChildSAs-1) != 0:
		return fmt.Sprintf("peer %s has child_sas: %d", p.Name, p.ChildSAs), fmt.Sprintf("allowed: powers of two up to %d, the same on both hosts", pad.MaxChildren)
	case p.Gateway == p.Address:
		return fmt.Sprintf("peer %s has its own address as gateway", p.Name), "remove gateway: it is for ESP that ends at another host"
	case p.Gateway.IsValid() && p.Gateway.Is4() != p.Address.Is4():
		return fmt.Sprintf("peer %s mixes IPv4 and IPv6: address %s, gateway %s", p.Name, p.Address, p.Gateway), "use two addresses of one family"
	case p.Gateway.IsValid() && p.Mode == profile.Transport.String():
		return fmt.Sprintf("peer %s has a gateway and mode: transport", p.Name), "ESP that ends at a gateway is tunnel mode: remove one of the two"
	case p.LocalID != "" && p.LocalID == p.Identity():
		return fmt.Sprintf("peer %s and this host have the same IKE identity %s", p.Name, p.LocalID), "give each host an identity of its own"
	}
	return "", ""
}
