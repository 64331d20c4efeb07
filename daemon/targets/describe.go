package targets

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/iscsi/target"
)

// List describes all targets.
func (t *Targets) List() []api.Target {
	sessions := map[string]int{}
	for _, i := range t.server.Sessions() {
		if !i.Discovery {
			sessions[i.Target]++
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []api.Target{}
	for _, s := range slices.SortedFunc(maps.Values(t.all), byName) {
		info, _ := t.server.Info(s.cfg.IQN)
		v := api.Target{TargetSpec: Spec(s.cfg), Source: s.cfg.Origin.String(), State: api.TargetReady, Problem: s.secrets, Sessions: sessions[s.cfg.IQN], Logins: info.Logins, RefusedLogins: info.Refused}
		at := offered(&s.cfg)
		portals, problem := t.Of(&at)
		v.Portals, v.Problem = portals, cmp.Or(v.Problem, problem)
		for _, l := range s.cfg.LUNs {
			u := s.units[l.Number]
			x := api.LUN{LUNSpec: lunSpec(l), State: api.TargetReady, Problem: u.problem, IO: ioOf(info.LUNs[l.Number]), Latency: api.Latencies(info.Latency[l.Number])}
			switch {
			case u.medium == nil:
				x.State = api.TargetWaiting
			case u.lu == nil:
				x.State = api.TargetProblem
			}
			if u.medium != nil {
				x.UUID, x.Size = u.medium.Identity().Disk.String(), int64(u.medium.Geometry().Size)
			}
			v.Problem = cmp.Or(v.Problem, u.problem)
			v.Units = append(v.Units, x)
		}
		switch {
		case v.Problem != nil:
			v.State = api.TargetProblem
		case s.cfg.Redirect != "":
			v.State = api.TargetRedirecting
		case s.device == nil:
			v.State = api.TargetWaiting
		}
		out = append(out, v)
	}
	return out
}

func ioOf(i target.IO) api.IO {
	return api.IO{Reads: i.Reads, Writes: i.Writes, ReadBytes: i.ReadBytes, WriteBytes: i.WriteBytes, Errors: i.Errors}
}

// Sessions describes the sessions of initiators.
func (t *Targets) Sessions() []api.TargetSession {
	t.mu.Lock()
	names := map[string]string{}
	for _, s := range t.all {
		names[s.cfg.IQN] = s.cfg.Name
	}
	t.mu.Unlock()
	now := time.Now()
	out := []api.TargetSession{}
	for _, i := range t.server.Sessions() {
		v := api.TargetSession{ID: sessionID(i.TSIH), Target: names[i.Target], IQN: i.Target, Initiator: i.Initiator, ISID: fmt.Sprintf("%x", i.ISID), CHAP: i.CHAPName, Discovery: i.Discovery,
			Address: i.Origin.Remote.String(), Portal: i.Origin.Local.String(), AgeSeconds: now.Sub(i.Since).Seconds(), HeaderDigest: i.HeaderDigest, DataDigest: i.DataSums,
			Transport: i.Transport, Recovery: i.ErrorRecoveryLevel, Connections: i.Connections, Failed: i.Failed, InFlight: i.Active, IO: ioOf(i.IO)}
		if p, known := t.peerOf(i.Origin); known {
			v.Peer, v.Identity = p.Name, i.Origin.Peer
		}
		out = append(out, v)
	}
	return out
}

// Spec is the reverse of Declaration.
func Spec(c config.Target) api.TargetSpec {
	s := api.TargetSpec{Name: c.Name, IQN: c.IQN, Alias: c.Alias, Port: c.Port, Peers: append([]string{}, c.Peers...), Initiators: append([]string{}, c.Initiators...), ErrorRecoveryLevel: &c.Recovery, InsecureUndeclared: c.Undeclared, Redirect: c.Redirect, RedirectPermanent: c.Moved, Partition: c.Partition, Label: c.Label}
	for _, a := range c.Addresses {
		s.Addresses = append(s.Addresses, a.String())
	}
	if c.NoISER {
		s.ISER = new(bool)
	}
	for _, u := range c.CHAP {
		s.CHAP = append(s.CHAP, api.CHAPUser(u))
	}
	for _, l := range c.LUNs {
		s.LUNs = append(s.LUNs, lunSpec(l))
	}
	return s
}

func lunSpec(l config.LUN) api.LUNSpec {
	s := api.LUNSpec{Number: int(l.Number), Export: l.Export, Path: l.Path, BlockSize: int(cmp.Or(l.BlockSize, 512)), ReadOnly: l.ReadOnly, Removable: l.Removable, Sanitize: l.Sanitize}
	if l.Thick {
		s.Thin = new(false)
	}
	return s
}

// Declaration turns a request into a declaration. It fails if a word is impossible. Package config
// finds what is wrong with the whole when it is written.
func Declaration(s api.TargetSpec) (config.Target, error) {
	bad := func(format string, a ...any) (config.Target, error) {
		return config.Target{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, a...)}
	}
	if err := config.CheckTargetName(s.Name); err != nil {
		return bad("target name %q %s", s.Name, err)
	}
	if err := config.CheckIQN(s.IQN); err != nil {
		return bad("%q %s", s.IQN, err)
	}
	c := config.Target{Name: s.Name, IQN: s.IQN, Alias: s.Alias, Port: cmp.Or(s.Port, config.DefaultISCSIPort), Peers: s.Peers, Initiators: s.Initiators, Undeclared: s.InsecureUndeclared, NoISER: s.ISER != nil && !*s.ISER, Redirect: s.Redirect, Moved: s.RedirectPermanent, Recovery: config.DefaultErrorRecoveryLevel, Partition: s.Partition, Label: s.Label}
	if s.Redirect != "" {
		if err := config.CheckRedirect(s.Redirect); err != nil {
			return bad("redirect %q %s", s.Redirect, err)
		}
	}
	if l := s.ErrorRecoveryLevel; l != nil {
		if *l > config.MaxErrorRecoveryLevel {
			return bad("error recovery level %d of target %s; allowed: 0 to %d", *l, s.Name, config.MaxErrorRecoveryLevel)
		}
		c.Recovery = *l
	}
	for _, a := range s.Addresses {
		x, err := config.ParseAddr(a)
		if err != nil {
			return bad("a portal of target %s: %s", s.Name, err)
		}
		c.Addresses = append(c.Addresses, x)
	}
	for _, u := range s.CHAP {
		c.CHAP = append(c.CHAP, config.CHAPUser(u))
	}
	for _, l := range s.LUNs {
		x, err := LUN(l)
		if err != nil {
			return config.Target{}, err
		}
		c.LUNs = append(c.LUNs, x)
	}
	return c, nil
}

// LUN is Declaration for a LUN. It fails as that does.
func LUN(s api.LUNSpec) (config.LUN, error) {
	if s.Number < 0 || s.Number > config.MaxLUN {
		return config.LUN{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("LUN %d; allowed: 0 to %d", s.Number, config.MaxLUN)}
	}
	if s.BlockSize != 0 && s.BlockSize != 512 && s.BlockSize != 4096 {
		return config.LUN{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("block size %d; allowed: 512, 4096", s.BlockSize)}
	}
	l := config.LUN{Number: uint16(s.Number), Export: s.Export, Path: s.Path, ReadOnly: s.ReadOnly, Removable: s.Removable, Sanitize: s.Sanitize, Thick: s.Thin != nil && !*s.Thin}
	if s.BlockSize == 4096 {
		l.BlockSize = 4096
	}
	return l, nil
}
