package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/listen"
	"github.com/ironwarp/ironwarp/ipsec/guard"
)

// declarePeer changes the declarations in the files, and applies what they say now. It
// returns the peer of the name.
func (d *Daemon) declarePeer(ctx context.Context, name string, write func(main string) error) (api.Peer, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	if err := write(d.config().Path); err != nil {
		return api.Peer{}, err
	}
	if _, err := d.reload(ctx); err != nil {
		return api.Peer{}, err
	}
	return d.describePeerNamed(name)
}

// removePeer removes a peer's declaration and everything that was set up for it. One
// whose disks are attached, or which exports allow, takes force. A guard stays for as long as the kernel has something to send
// by its link.
func (d *Daemon) removePeer(ctx context.Context, name string, force bool) (api.Removed, error) {
	if _, err := d.findPeer(name); err != nil {
		return api.Removed{}, err
	}
	d.changing.Lock()
	defer d.changing.Unlock()
	cfg, err := config.Load(d.config().Path, d.opt.Named)
	if err != nil {
		return api.Removed{}, configError(err)
	}
	if err := peerInUse(cfg, name, d.disks.List(func(at *attach.Attachment) bool { return at.Key.Peer == name }), force); err != nil {
		return api.Removed{}, err
	}
	if err := config.RemovePeer(cfg.Path, name, force); err != nil {
		return api.Removed{}, configError(err)
	}
	if _, err = d.reload(ctx); err != nil {
		return api.Removed{}, err
	}
	return api.Removed{Removed: name, Held: d.guards.heldReasons(name)}, nil
}

// peerInUse fails with all that keeps a peer from being removed, and how to end it.
func peerInUse(cfg *config.Config, name string, disks []*attach.Attachment, force bool) error {
	var found, do []string
	if !force {
		for _, at := range disks {
			k := at.Key
			what, ulp := k.String()+" is attached", ""
			if k.ULP != "" {
				what, ulp = what+" by ULP "+k.ULP, "--ulp "+k.ULP+" "
			}
			found, do = append(found, what), append(do, "`ironwarp detach "+ulp+k.String()+"`")
		}
		for _, e := range cfg.Exports {
			if slices.Contains(e.Allow, name) {
				found, do = append(found, fmt.Sprintf("export %s allows peer %s", e.Name, name)), append(do, fmt.Sprintf("`ironwarp export set --disallow %s %s`", name, e.Name))
			}
		}
	}
	for _, t := range cfg.Targets {
		if !force && slices.Contains(t.Peers, name) {
			found, do = append(found, fmt.Sprintf("target %s allows peer %s", t.Name, name)), append(do, fmt.Sprintf("take it out of %s and run `ironwarp reload`", t.Origin))
		}
	}
	for _, s := range cfg.Subsystems {
		if !force && slices.Contains(s.Peers, name) {
			found, do = append(found, fmt.Sprintf("subsystem %s allows peer %s", s.Name, name)), append(do, fmt.Sprintf("take it out of %s and run `ironwarp reload`", s.Origin))
		}
	}
	forcible := len(found) > 0
	for _, u := range cfg.ULPs {
		names := slices.Contains(u.Peers, name) || slices.ContainsFunc(u.Exports, func(e string) bool { return strings.HasPrefix(e, name+"/") })
		if names {
			found, do = append(found, fmt.Sprintf("ULP %s names it at %s", u.Name, u.Origin)), append(do, howToTakeOut(cfg, u, name))
			forcible = false
		}
	}
	if len(found) == 0 {
		return nil
	}
	e := &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("peer %s is in use: %s", name, strings.Join(found, "; ")), Fix: "first: " + strings.Join(do, ", ")}
	if forcible {
		e.Fix += ".\n`ironwarp peer rm --force " + name + "` does all that; I/O of its disks fails then"
	}
	return e
}

// AddPeer declares a peer in the configuration of a daemon that does not run, and
// returns the file that it wrote. It fails for a name that is taken, and where the
// declaration is impossible or can't be written.
func AddPeer(mainFile string, s api.PeerSpec) (string, error) {
	p, err := peerOf(s)
	if err == nil {
		err = isAnotherHost(p)
	}
	if err != nil {
		return "", err
	}
	path, err := config.AddPeer(mainFile, p)
	return path, declareError(err, "`ironwarp peer set "+p.Name+"` changes it")
}

// CheckPeer fails as AddPeer would, and declares nothing.
func CheckPeer(mainFile string, s api.PeerSpec) error {
	p, err := peerOf(s)
	if err == nil {
		err = isAnotherHost(p)
	}
	if err != nil {
		return err
	}
	return declareError(config.CheckPeer(mainFile, p), "give it another name here")
}

// isAnotherHost refuses a peer that ESP is to protect under an address of this host's own.
func isAnotherHost(p config.Peer) error {
	if p.Protection != config.ProtectIPsec {
		return nil
	}
	for _, q := range p.Pairs() {
		a := q.Address
		if a.IsLoopback() {
			continue // which every configuration refuses
		}
		// Without a route to it the address is at least not this host's.
		if local, err := listen.LocalAddr(a); err == nil && local == a {
			return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("peer %s has the address %s, which is this host's own", p.Name, a),
				Fix: "a peer is another host: give its address, with `ironwarp peer set --address` if the peer is declared already. A second daemon on this host is a peer with --protection loopback"}
		}
	}
	return nil
}

// declareError is configError with a fix for a name that is declared already.
func declareError(err error, fix string) error {
	if err == nil {
		return nil
	}
	e := configError(err)
	if e.Code == api.CodeExists {
		e.Fix = fix
	}
	return e
}

// SetPeer changes a peer's declaration like AddPeer. It fails as that does, and for an
// unknown peer.
func SetPeer(mainFile string, c api.PeerChange) (string, error) {
	cfg, err := config.Load(mainFile, false)
	if err != nil {
		return "", configError(err)
	}
	old, ok := cfg.Peer(c.Name)
	if !ok {
		return "", unknownPeer(cfg, c.Name)
	}
	s, err := mergeChange(specOf(old), c)
	if err != nil {
		return "", err
	}
	p, err := peerOf(s)
	if err == nil {
		err = isAnotherHost(p)
	}
	if err != nil {
		return "", err
	}
	path, err := config.SetPeer(mainFile, p)
	return path, declareError(err, "")
}

// secretKeys and certificateKeys are the keys of a peer that exclude those of the
// other.
var (
	secretKeys      = []string{"psk_file"}
	certificateKeys = []string{"cert_file", "key_file", "ca_files", "crl_uris", "ocsp_uris", "revocation"}
)

// mergeChange returns a peer with the keys of a change. Keys that the change excludes, and
// does not name, go: of certificates where it names a secret, the
// other way round, and of protection where it names another.
func mergeChange(s api.PeerSpec, c api.PeerChange) (api.PeerSpec, error) {
	was, err := keysOf(s)
	if err != nil {
		return s, err
	}
	will, err := keysOf(c.PeerSpec)
	if err != nil {
		return s, err
	}
	names := func(key string) bool { return slices.Contains(c.Set, key) && will[key] != nil }
	replace := func(keys ...string) {
		for _, k := range keys {
			delete(was, k)
		}
	}
	switch {
	case names("psk_file"):
		replace(append([]string{"auth"}, certificateKeys...)...)
	case names("cert_file"):
		replace(append([]string{"auth"}, secretKeys...)...)
	}
	if names("protection") || names("insecure_plaintext") {
		replace("protection", "insecure_plaintext")
		if string(will["protection"]) != `"`+string(config.ProtectIPsec)+`"` {
			replace(append(append([]string{"local_id", "remote_id", "auth", "profile", "mode", "gateway", "child_sas", "idle_reap", "iscsi_port", "nvme_port"}, secretKeys...), certificateKeys...)...)
		}
	}
	if names("no_path") && c.NoPath != config.NoPathFail {
		replace("fail_after")
	}
	err = replaceKeys(&s, was, will, c.Set)
	return s, err
}

// replaceKeys makes a spec of what it was, with some keys of what it will be. Keys without a value go.
func replaceKeys[T any](spec *T, was, will map[string]json.RawMessage, set []string) error {
	for _, k := range set {
		if will[k] == nil {
			delete(was, k)
		} else {
			was[k] = will[k]
		}
	}
	data, err := json.Marshal(was)
	if err != nil {
		return err
	}
	var none T
	*spec = none
	return json.Unmarshal(data, spec)
}

func keysOf(spec any) (keys map[string]json.RawMessage, err error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return keys, json.Unmarshal(data, &keys)
}

// RemovePeer removes a peer from the configuration of a daemon that does not
// run, and its guard from the kernel. The error of the latter is apart: the
// peer is removed then.
func RemovePeer(mainFile, name string, force bool) (guardErr, err error) {
	c, err := config.Load(mainFile, false)
	if err != nil {
		return nil, configError(err)
	}
	if err := peerInUse(c, name, nil, force); err != nil {
		return nil, err
	}
	if err := config.RemovePeer(mainFile, name, force); err != nil {
		return nil, configError(err)
	}
	if p, ok := c.Peer(name); ok && p.Protection == config.ProtectIPsec {
		for _, g := range guardsOf(p) {
			guardErr = errors.Join(guardErr, guard.Remove(g))
		}
	}
	return guardErr, nil
}
