package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec/auth"
	"github.com/ironwarp/ironwarp/ipsec/pad"
	"github.com/ironwarp/ironwarp/rtrs"
)

// peerOf turns what was asked for into a declaration. What is wrong with it as a
// whole, package config finds when it is written.
func peerOf(s api.PeerSpec) (config.Peer, error) {
	p := config.Peer{
		Name: s.Name, Port: s.Port, Transport: config.TransportTCP, UDPPort: s.UDPPort, LocalID: s.LocalID, RemoteID: s.RemoteID, Profile: s.Profile, Mode: s.Mode,
		Auth: config.Auth(s.Auth), PSKFile: s.PSKFile, CertFile: s.CertFile, KeyFile: s.KeyFile, CAFiles: s.CAFiles,
		CRLURIs: s.CRLURIs, OCSPURIs: s.OCSPURIs, Revocation: auth.Revocation(s.Revocation),
		Protection: config.ProtectIPsec, CRC: true, LargeFPDU: true, Connections: config.DefaultConnections, ChildSAs: max(s.ChildSAs, 1), ISCSIPort: s.ISCSIPort, NVMePort: s.NVMePort,
	}
	bad := func(format string, a ...any) (config.Peer, error) {
		return config.Peer{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, a...)}
	}
	if err := config.CheckPeerName(s.Name); err != nil {
		return bad("peer name %q %s", s.Name, err)
	}
	for _, a := range []struct {
		what, text string
		to         *netip.Addr
	}{{"address of", s.Address, &p.Address}, {"local address for", s.LocalAddress, &p.LocalAddress}, {"gateway of", s.Gateway, &p.Gateway}} {
		if a.text == "" && a.to != &p.Address {
			continue
		}
		if a.to == &p.Address && config.CheckHostName(a.text) == nil {
			p.SetHost(a.text)
			continue
		}
		var err error
		if *a.to, err = config.ParseAddr(a.text); err != nil && a.to == &p.Address {
			return bad("the address of peer %s: %s, and no host name with its domain, such as beta.example", s.Name, err)
		} else if err != nil {
			return bad("the %s peer %s: %s; host names are not looked up", a.what, s.Name, err)
		}
	}
	if s.Transport != "" {
		if !slices.Contains(config.Transports(), s.Transport) {
			return bad("unknown transport %q; allowed: %s", s.Transport, strings.Join(config.Transports(), ", "))
		}
		p.Transport = config.Transport(s.Transport)
	}
	if s.UDPPort != 0 {
		if err := config.CheckUDPPort(s.UDPPort); err != nil {
			return bad("the UDP port of peer %s %s", s.Name, err)
		}
	}
	for _, q := range s.Multihoming {
		pair, err := pairOf(q)
		if err != nil {
			return bad("an address of peer %s: %s; host names are not looked up", s.Name, err)
		}
		p.Multihoming = append(p.Multihoming, pair)
	}
	for _, q := range s.Paths {
		path := config.Path{Name: q.Name, Port: q.Port, Transport: config.Transport(q.Transport)}
		var err error
		if path.Addresses, err = pairOf(q.Pair); err != nil {
			return bad("a path of peer %s: %s; host names are not looked up", s.Name, err)
		}
		if q.Transport != "" && !slices.Contains(config.Transports(), q.Transport) {
			return bad("unknown transport %q of a path; allowed: %s", q.Transport, strings.Join(config.Transports(), ", "))
		}
		p.Paths = append(p.Paths, path)
	}
	if s.Connections < 0 || s.Connections > config.MaxConnections {
		return bad("%d connections; allowed: 1 to %d", s.Connections, config.MaxConnections)
	}
	if s.Connections > 0 {
		p.Connections = s.Connections
	}
	if s.Policy != "" {
		policy, err := rtrs.ParsePolicy(s.Policy)
		if err != nil {
			return bad("unknown policy %q; allowed: %s", s.Policy, strings.Join(rtrs.Policies(), ", "))
		}
		p.Policy = policy
	}
	if s.HeartbeatInterval != "" {
		d, err := time.ParseDuration(s.HeartbeatInterval)
		if err != nil || d < config.MinHeartbeat || d > config.MaxHeartbeat {
			return bad("heartbeat interval %q; allowed: %s to %s", s.HeartbeatInterval, config.FormatDuration(config.MinHeartbeat), config.FormatDuration(config.MaxHeartbeat))
		}
		p.Heartbeat.Interval = d
	}
	if p.Heartbeat.Missed = s.HeartbeatMisses; s.HeartbeatMisses < 0 || s.HeartbeatMisses > config.MaxHeartbeatMisses {
		return bad("%d heartbeats missed; allowed: 1 to %d", s.HeartbeatMisses, config.MaxHeartbeatMisses)
	}
	if p.ReconnectAttempts = s.ReconnectAttempts; s.ReconnectAttempts < 0 || s.ReconnectAttempts > config.MaxReconnectAttempts {
		return bad("%d attempts to reconnect; allowed: 0, for any number, to %d", s.ReconnectAttempts, config.MaxReconnectAttempts)
	}
	var err error
	if p.NoPath, err = noPathOf(s.NoPath, s.FailAfter); err != nil {
		return config.Peer{}, err
	}
	if s.ChildSAs < 0 || s.ChildSAs > pad.MaxChildren {
		return bad("%d child SAs; allowed: powers of two up to %d", s.ChildSAs, pad.MaxChildren)
	}
	if s.IdleReap != "" {
		if p.IdleReap, err = time.ParseDuration(s.IdleReap); err != nil || p.IdleReap < config.MinIdleReap || p.IdleReap > config.MaxIdleReap {
			return bad("idle reap %q; allowed: %s to %s", s.IdleReap, config.FormatDuration(config.MinIdleReap), config.FormatDuration(config.MaxIdleReap))
		}
	}
	p.OpenChunks = s.AlwaysInvalidate != nil && !*s.AlwaysInvalidate
	if p.Protection, err = protectionOf(s); err != nil {
		return config.Peer{}, err
	}
	if p.CRC, err = parseEither("crc", s.CRC, "on", "off"); err != nil {
		return config.Peer{}, err
	}
	if p.LargeFPDU, err = parseEither("fpdu", s.FPDU, "large", "emss"); err != nil {
		return config.Peer{}, err
	}
	if cert := s.Auth == string(config.AuthCert) || s.CertFile != ""; p.Protection == config.ProtectIPsec && p.PSKFile == "" && !cert && !p.Address.IsLoopback() {
		return config.Peer{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s needs a secret that both hosts share, or certificates", s.Name),
			Fix: "make a secret here with --generate-psk, or name the file that has it with --psk-file (- reads it from standard input); for certificates give --cert-file, --key-file and --ca-file"}
	}
	return p, nil
}

// noPathOf is what becomes of I/O without a path.
func noPathOf(noPath, failAfter string) (n rtrs.NoPath, err error) {
	if n.Fail, err = parseEither("no path", noPath, config.NoPathQueue, config.NoPathFail); err != nil {
		return n, err
	}
	n.Fail = !n.Fail
	switch {
	case failAfter == "" && n.Fail:
		n.After = config.DefaultFailAfter
	case failAfter == "":
	case !n.Fail:
		return n, &api.Error{Code: api.CodeInvalid, Message: "I/O that waits without a path does not fail after " + failAfter, Fix: "give no path: fail beside it"}
	default:
		if n.After, err = time.ParseDuration(failAfter); err != nil || n.After < config.MinFailAfter || n.After > config.MaxFailAfter {
			return n, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("fail after %q; allowed: %s to %s", failAfter, config.FormatDuration(config.MinFailAfter), config.FormatDuration(config.MaxFailAfter))}
		}
	}
	return n, nil
}

func protectionOf(s api.PeerSpec) (config.Protection, error) {
	switch {
	case s.InsecurePlaintext && s.Protection != "":
		return "", &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("insecure plaintext and protection %s exclude each other", s.Protection)}
	case s.InsecurePlaintext:
		return config.ProtectPlaintext, nil
	case s.Protection == "" || s.Protection == string(config.ProtectIPsec):
		return config.ProtectIPsec, nil
	case s.Protection == string(config.ProtectLoopback):
		return config.ProtectLoopback, nil
	}
	return "", &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown protection %q; allowed: ipsec, loopback", s.Protection)}
}

// parseEither reports whether s is the first of two words; empty means the first.
func parseEither(what, s, yes, no string) (bool, error) {
	switch s {
	case "", yes:
		return true, nil
	case no:
		return false, nil
	}
	return false, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown %s %q; allowed: %s, %s", what, s, yes, no)}
}

func pairOf(q api.Pair) (config.Addresses, error) {
	remote, err := config.ParseAddr(q.Address)
	local, lerr := config.ParseAddr(q.LocalAddress)
	return config.Addresses{Address: remote, LocalAddress: local}, cmp.Or(err, lerr)
}

// specOf is the reverse of peerOf.
func specOf(p config.Peer) api.PeerSpec {
	s := api.PeerSpec{
		Name: p.Name, Address: cmp.Or(p.Host, p.Address.String()), LocalAddress: config.FormatAddr(p.LocalAddress), Port: p.Port,
		Transport: string(p.Transport), UDPPort: p.UDPPort,
		Protection: string(p.Protection), CRC: "on", FPDU: "large", Connections: p.Connections,
	}
	for _, q := range p.Multihoming {
		s.Multihoming = append(s.Multihoming, api.Pair{Address: q.Address.String(), LocalAddress: q.LocalAddress.String()})
	}
	for _, q := range p.Paths {
		path := api.Path{Name: q.Name, Pair: api.Pair{Address: q.Address.String(), LocalAddress: q.LocalAddress.String()}}
		// What it has from the peer changes with the peer's.
		if q.Port != p.Port {
			path.Port = q.Port
		}
		if q.Transport != p.Transport || p.Transport == config.TransportSCTP {
			path.Transport = string(q.Transport)
		}
		s.Paths = append(s.Paths, path)
	}
	if p.Policy != 0 {
		s.Policy = p.Policy.String()
	}
	if p.Heartbeat.Interval > 0 {
		s.HeartbeatInterval = config.FormatDuration(p.Heartbeat.Interval)
	}
	s.HeartbeatMisses, s.ReconnectAttempts = p.Heartbeat.Missed, p.ReconnectAttempts
	if p.OpenChunks {
		s.AlwaysInvalidate = new(false)
	}
	if p.NoPath.Fail {
		s.NoPath, s.FailAfter = config.NoPathWords(p.NoPath)
	}
	if p.Protection == config.ProtectIPsec {
		s.LocalID, s.RemoteID, s.Profile, s.Mode = p.LocalID, p.RemoteID, p.Profile, p.Mode
		s.Auth, s.PSKFile, s.CertFile, s.KeyFile, s.CAFiles = string(p.Auth), p.PSKFile, p.CertFile, p.KeyFile, p.CAFiles
		s.CRLURIs, s.OCSPURIs, s.Revocation = p.CRLURIs, p.OCSPURIs, string(p.Revocation)
		s.Gateway, s.ChildSAs, s.ISCSIPort, s.NVMePort = config.FormatAddr(p.Gateway), p.ChildSAs, p.ISCSIPort, p.NVMePort
		if p.IdleReap > 0 {
			s.IdleReap = config.FormatDuration(p.IdleReap)
		}
	}
	if p.Protection == config.ProtectPlaintext {
		s.Protection, s.InsecurePlaintext = "", true
	}
	if !p.CRC {
		s.CRC = "off"
	}
	if !p.LargeFPDU {
		s.FPDU = "emss"
	}
	return s
}

// configError gives an error of package config the code that fits.
func configError(err error) *api.Error {
	e := &api.Error{Code: api.CodeInternal, Message: err.Error()}
	var faults config.Errors
	switch {
	case errors.As(err, &faults):
		e.Code = api.CodeInvalid
	case errors.Is(err, config.ErrExists):
		e.Code = api.CodeExists
	case errors.Is(err, config.ErrNotFound):
		e.Code = api.CodeNotFound
	case errors.Is(err, config.ErrInUse):
		e.Code = api.CodeInUse
	}
	return e
}
