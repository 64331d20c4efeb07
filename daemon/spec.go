package daemon

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/ipsec"
)

// peerOf turns what was asked for into a declaration.
func peerOf(s api.PeerSpec) (config.Peer, error) {
	p := config.Peer{
		Name: s.Name, Port: s.Port, LocalID: s.LocalID, RemoteID: s.RemoteID, PSKFile: s.PSKFile, Profile: s.Profile,
		Protection: config.ProtectIPsec, CRC: true, LargeFPDU: true, Connections: config.DefaultConnections,
	}
	bad := func(format string, a ...any) (config.Peer, error) {
		return config.Peer{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, a...)}
	}
	if err := config.CheckPeerName(s.Name); err != nil {
		return bad("peer name %q %s", s.Name, err)
	}
	var err error
	if p.Address, err = config.ParseAddr(s.Address); err != nil {
		return bad("the address of peer %s: %s; host names are not looked up", s.Name, err)
	}
	if s.LocalAddress != "" {
		if p.LocalAddress, err = config.ParseAddr(s.LocalAddress); err != nil {
			return bad("the local address for peer %s: %s", s.Name, err)
		}
	}
	if s.Connections < 0 || s.Connections > config.MaxConnections {
		return bad("%d connections; allowed: 1 to %d", s.Connections, config.MaxConnections)
	}
	if s.Connections > 0 {
		p.Connections = s.Connections
	}
	switch {
	case s.InsecurePlaintext && s.Protection != "":
		return bad("insecure plaintext and protection %s exclude each other", s.Protection)
	case s.InsecurePlaintext:
		p.Protection = config.ProtectPlaintext
	case s.Protection == "" || s.Protection == string(config.ProtectIPsec):
	case s.Protection == string(config.ProtectLoopback):
		p.Protection = config.ProtectLoopback
	default:
		return bad("unknown protection %q; allowed: ipsec, loopback", s.Protection)
	}
	if p.CRC, err = oneOf("crc", s.CRC, "on", "off"); err != nil {
		return config.Peer{}, err
	}
	if p.LargeFPDU, err = oneOf("fpdu", s.FPDU, "large", "emss"); err != nil {
		return config.Peer{}, err
	}
	if p.Protection == config.ProtectIPsec && p.PSKFile == "" && !p.Address.IsLoopback() {
		return config.Peer{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s needs a secret that both hosts share", s.Name),
			Fix: "make one here with --generate-psk, or name the file that has it with --psk-file (- reads it from standard input)"}
	}
	return p, nil
}

// oneOf reports whether s is the first of two words; empty means the first.
func oneOf(what, s, yes, no string) (bool, error) {
	switch s {
	case "", yes:
		return true, nil
	case no:
		return false, nil
	}
	return false, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("unknown %s %q; allowed: %s, %s", what, s, yes, no)}
}

// specOf is the reverse of peerOf.
func specOf(p config.Peer) api.PeerSpec {
	s := api.PeerSpec{
		Name: p.Name, Address: p.Address.String(), Port: p.Port, LocalID: p.LocalID, RemoteID: p.RemoteID, PSKFile: p.PSKFile,
		Profile: p.Profile, Protection: string(p.Protection), CRC: "on", FPDU: "large", Connections: p.Connections,
	}
	if p.LocalAddress.IsValid() {
		s.LocalAddress = p.LocalAddress.String()
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

func exportOf(s api.ExportSpec) (config.Export, error) {
	if err := config.CheckExportName(s.Name); err != nil {
		return config.Export{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export name %q %s", s.Name, err)}
	}
	if len(s.Path) == 0 || s.Path[0] != '/' {
		return config.Export{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export path %q is not absolute", s.Path)}
	}
	allow := slices.Clone(s.Allow)
	slices.Sort(allow)
	return config.Export{Name: s.Name, Path: s.Path, ReadOnly: s.ReadOnly, Allow: slices.Compact(allow)}, nil
}

// AddPeer declares a peer in the configuration of a daemon that does not run,
// and returns the file that it wrote.
func AddPeer(mainFile string, s api.PeerSpec) (string, error) {
	p, err := peerOf(s)
	if err != nil {
		return "", err
	}
	path, err := config.AddPeer(mainFile, p)
	return path, configError(err)
}

// RemovePeer removes a peer from the configuration of a daemon that does not
// run, and its guard from the kernel. The error of the latter is apart: the
// peer is removed then.
func RemovePeer(mainFile, name string) (guard, err error) {
	c, err := config.Load(mainFile, false)
	if err != nil {
		return nil, configError(err)
	}
	if err := config.RemovePeer(mainFile, name); err != nil {
		return nil, configError(err)
	}
	if p, ok := c.Peer(name); ok && p.Protection == config.ProtectIPsec {
		guard = ipsec.RemoveGuard(guardOf(p))
	}
	return guard, nil
}

// AddExport declares an export like AddPeer.
func AddExport(mainFile string, s api.ExportSpec) (string, error) {
	e, err := exportOf(s)
	if err != nil {
		return "", err
	}
	if err := usable(e); err != nil {
		return "", err
	}
	path, err := config.AddExport(mainFile, e)
	return path, configError(err)
}

// configError gives an error of package config the code that fits.
func configError(err error) error {
	if err == nil {
		return nil
	}
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
