package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/attach"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// declareULP changes the declarations in the files, and applies what they say now. It returns the ULP of the name.
func (d *Daemon) declareULP(ctx context.Context, name string, write func(main string) error) (api.ULP, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	if err := write(d.config().Path); err != nil {
		return api.ULP{}, err
	}
	if _, err := d.reload(ctx); err != nil {
		return api.ULP{}, err
	}
	for _, u := range d.describeULPs() {
		if u.Name == name {
			return u, nil
		}
	}
	return api.ULP{}, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("ULP %s is declared, and cannot be registered with the RNIC", name), Fix: "the daemon's log says why"}
}

// removeULP removes a ULP's declaration, and ends what its users have. While it has something it takes force.
func (d *Daemon) removeULP(ctx context.Context, name string, force bool) error {
	d.changing.Lock()
	defer d.changing.Unlock()
	err := config.RemoveULP(d.config().Path, name, func(u config.ULP) error {
		if force {
			return nil
		}
		return d.ulpInUse(u)
	})
	if err == nil {
		_, err = d.reload(ctx)
	}
	return ulpError(err, name)
}

// ulpInUse fails with all that would end with a ULP, and how to end it.
func (d *Daemon) ulpInUse(u config.ULP) error {
	var found, do []string
	for _, at := range d.disks.List(func(at *attach.Attachment) bool { return at.Key.ULP == u.Name }) {
		k := at.Key
		found, do = append(found, k.String()+" is attached"), append(do, "`ironwarp detach --ulp "+u.Name+" "+k.String()+"`")
	}
	streams := map[string]int{}
	for _, s := range d.programs.Streams() {
		// Root's programs, and those of privileged ULPs, have the ports of all.
		atPort := slices.ContainsFunc(u.Ports, func(b config.PortBlock) bool {
			return b.Carries(s.Flow.Protocol, s.Flow.Local.Port()) || b.Carries(s.Flow.Protocol, s.Flow.Remote.Port())
		})
		if atPort || s.ULP == u.Name {
			streams[fmt.Sprintf("%s (process %d)", s.Program, s.PID)]++
		}
	}
	var programs []string
	for who, n := range streams {
		programs = append(programs, fmt.Sprintf("streams of program %s: %d", who, n))
	}
	if slices.Sort(programs); len(programs) > 0 {
		found, do = append(found, programs...), append(do, "end the programs")
	}
	if len(found) == 0 {
		return nil
	}
	return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("ULP %s is in use: %s", u.Name, strings.Join(found, "; ")),
		Fix: "first: " + strings.Join(do, ", ") + ".\n`ironwarp ulp rm --force " + u.Name + "` ends all that; I/O of its disks, and its programs' streams, fail then"}
}

// AddULP declares a ULP like AddPeer. It fails as that does, and for users and groups that this host does not have.
func AddULP(mainFile string, s api.ULPSpec) (string, error) {
	u, err := ulpOf(s, config.ULP{})
	if err != nil {
		return "", err
	}
	path, err := config.AddULP(mainFile, u)
	return path, declareError(err, "`ironwarp ulp set "+u.Name+"` changes it")
}

// SetULP changes a ULP's declaration like SetPeer. It fails as that does, and for further users and groups that
// this host does not have.
func SetULP(mainFile, name string, c api.ULPChange) (string, error) {
	path, err := config.SetULP(mainFile, name, func(u *config.ULP) error {
		s, err := changeULP(specOfULP(*u), c)
		if err != nil {
			return err
		}
		n, err := ulpOf(s, *u)
		if err != nil {
			return err
		}
		*u = n
		return nil
	})
	return path, ulpError(err, name)
}

// RemoveULP removes a ULP from the configuration of a daemon that does not run. It fails as SetULP does.
func RemoveULP(mainFile, name string) error {
	return ulpError(config.RemoveULP(mainFile, name, func(config.ULP) error { return nil }), name)
}

// ulpKeys are the keys that SetULP changes.
var ulpKeys = []string{"users", "groups", "peers", "exports", "ports", "transport", "listen", "privileged", "trust", "max_memory_bytes", "max_streams", "max_attachments", "partition", "label"}

// changeULP returns a ULP with the keys of a change.
func changeULP(s api.ULPSpec, c api.ULPChange) (api.ULPSpec, error) {
	for _, k := range c.Set {
		if !slices.Contains(ulpKeys, k) {
			return s, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("%q of ULP %s is not changed so", k, s.Name), Fix: "allowed: " + strings.Join(ulpKeys, ", ")}
		}
	}
	was, err := keysOf(s)
	if err != nil {
		return s, err
	}
	will, err := keysOf(c.ULPSpec)
	if err == nil {
		err = replaceKeys(&s, was, will, c.Set)
	}
	return s, err
}

// ulpOf turns what was asked for into a declaration; old is what there was of it: limits that are not asked for, and
// users and groups that have gone, stay. What is wrong with it as a whole, package config finds when it is written.
func ulpOf(s api.ULPSpec, old config.ULP) (config.ULP, error) {
	u := old
	u.Name, u.Privileged, u.Trust, u.Peers, u.Exports, u.Listen = s.Name, s.Privileged, config.Trust(s.Trust), s.Peers, s.Exports, s.Listen
	u.Partition, u.Label = s.Partition, s.Label
	u.Limits.Bytes, u.Limits.Streams, u.Attachments = s.MaxMemory, s.MaxStreams, s.MaxAttachments
	if u.Attachments == 0 {
		u.Attachments = config.DefaultAttachments
	}
	bad := func(fix, format string, a ...any) (config.ULP, error) {
		return config.ULP{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, a...), Fix: fix}
	}
	if err := config.CheckULPName(s.Name); err != nil {
		return bad("", "ULP name %q %s", s.Name, err)
	}
	u.Ports = nil
	for _, text := range s.Ports {
		b, err := config.ParsePortBlock(text)
		var fault interface{ Fault() (msg, fix string) }
		switch {
		case errors.As(err, &fault):
			msg, fix := fault.Fault()
			return bad(fix, "ULP %s: %s", s.Name, msg)
		case err != nil:
			return bad("", "ULP %s: %v", s.Name, err)
		}
		u.Ports = append(u.Ports, b)
	}
	u.Transport = ""
	if s.Transport != "" {
		if err := config.CheckProgramTransport(s.Transport); err != nil {
			return bad("", "ULP %s: transport %q %v", s.Name, s.Transport, err)
		}
	}
	u.SetTransport(config.Transport(s.Transport))
	for _, of := range []struct {
		what     string
		names    []string
		known    *[]config.Account
		unknown  *[]string
		had      []string // that are gone
		find     func(string) (config.Account, error)
		database string
	}{{"user", s.Users, &u.Users, &u.UnknownUsers, old.UnknownUsers, config.FindUser, "passwd"}, {"group", s.Groups, &u.Groups, &u.UnknownGroups, old.UnknownGroups, config.FindGroup, "group"}} {
		*of.known, *of.unknown = nil, nil
		for _, name := range of.names {
			a, err := of.find(name)
			switch {
			case err == nil:
				*of.known = append(*of.known, a)
			case slices.Contains(of.had, name):
				*of.unknown = append(*of.unknown, name)
			default:
				return bad(fmt.Sprintf("`getent %s` lists this host's %ss", of.database, of.what), "ULP %s: %s %q %s", s.Name, of.what, name, err)
			}
		}
	}
	return u, nil
}

// specOfULP is the reverse of ulpOf.
func specOfULP(u config.ULP) api.ULPSpec {
	s := api.ULPSpec{Name: u.Name, Privileged: u.Privileged, Trust: string(u.Trust), Users: append([]string{}, u.UserNames()...), Groups: append([]string{}, u.GroupNames()...),
		Peers: append([]string{}, u.Peers...), Exports: append([]string{}, u.Exports...), Ports: []string{}, Transport: string(u.Transport), Listen: u.Listen,
		MaxMemory: u.Limits.Bytes, MaxStreams: u.Limits.Streams, MaxAttachments: u.Attachments, Partition: u.Partition, Label: u.Label}
	for _, b := range u.Ports {
		s.Ports = append(s.Ports, b.String())
	}
	return s
}

// howToTakeOut says how a ULP may use a peer no more.
func howToTakeOut(cfg *config.Config, u config.ULP, peer string) string {
	rest, ok := u.WithoutPeer(peer)
	switch {
	case !cfg.IsInOwnFile(u):
		return fmt.Sprintf("take it out of %s and run `ironwarp reload`", u.Origin)
	case !ok:
		return "`ironwarp ulp rm " + u.Name + "`"
	}
	flags := func(flag string, was, is []string) (words string) {
		switch {
		case len(is) == len(was):
			return ""
		case len(is) == 0:
			return flag + " '' "
		}
		return flag + " " + strings.Join(is, " "+flag+" ") + " "
	}
	return "`ironwarp ulp set " + flags("--peer", u.Peers, rest.Peers) + flags("--export", u.Exports, rest.Exports) + u.Name + "`"
}

func ulpError(err error, name string) error {
	var e *api.Error
	switch {
	case err == nil, errors.As(err, &e):
		return err
	case errors.Is(err, config.ErrNotFound):
		return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("unknown ULP %q", name), Fix: "`ironwarp ulp ls` lists them"}
	}
	return configError(err)
}
