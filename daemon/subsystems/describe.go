package subsystems

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/nvme/target"
)

// List describes all subsystems.
func (s *Subsystems) List() []api.NVMeSubsystem {
	controllers := map[string]int{}
	for _, i := range s.server.Controllers() {
		controllers[i.Subsystem]++
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []api.NVMeSubsystem{}
	for _, x := range slices.SortedFunc(maps.Values(s.all), byName) {
		v := api.NVMeSubsystem{NVMeSubsystemSpec: Spec(x.cfg), Source: x.cfg.Origin.String(), State: api.TargetReady, Controllers: controllers[x.cfg.NQN]}
		v.Connects, v.Refused = s.server.Connects(x.cfg.NQN)
		at := offered(&x.cfg)
		portals, problem := s.Of(&at)
		v.Portals, v.Problem = portals, cmp.Or(v.Problem, problem)
		for _, n := range x.cfg.Namespaces {
			u := api.NVMeNamespace{NVMeNamespaceSpec: namespaceSpec(n), State: api.TargetWaiting}
			if sp := x.spaces[n.NSID]; sp != nil {
				u.Problem = sp.problem
				switch {
				case sp.problem != nil:
					u.State = api.TargetProblem
				case sp.ns != nil:
					u.State = api.TargetReady
				}
				if sp.ns != nil {
					st := sp.ns.Stats()
					u.IO, u.Latency = ioOf(st.IO), api.Latencies(st.Latency)
				}
			}
			if m := s.storage[n.Export]; m != nil {
				u.UUID, u.Size = m.Identity().Disk.String(), int64(m.Geometry().Size)
			}
			v.Problem = cmp.Or(v.Problem, u.Problem)
			if u.State == api.TargetWaiting {
				v.State = api.TargetWaiting
			}
			v.Units = append(v.Units, u)
		}
		if v.Problem != nil {
			v.State = api.TargetProblem
		}
		out = append(out, v)
	}
	return out
}

// Controllers describes the controllers of hosts.
func (s *Subsystems) Controllers() []api.NVMeController {
	s.mu.Lock()
	names := map[string]string{}
	for _, x := range s.all {
		names[x.cfg.NQN] = x.cfg.Name
	}
	s.mu.Unlock()
	now := time.Now()
	out := []api.NVMeController{}
	for _, i := range s.server.Controllers() {
		v := api.NVMeController{ID: int(i.ID), Subsystem: names[i.Subsystem], Discovery: i.Subsystem == "", Host: printable.Text(i.HostNQN), HostID: i.HostID.String(),
			Address: i.Origin.Remote.String(), Portal: i.Origin.Local.String(), AgeSeconds: now.Sub(i.Since).Seconds(), KeepAliveSeconds: i.KeepAlive.Seconds(), Queues: i.Queues, InFlight: i.Active,
			IO: ioOf(i.IO)}
		if p, known := s.peerOf(i.Origin); known {
			v.Peer, v.Identity = p.Name, i.Origin.Peer
		}
		out = append(out, v)
	}
	return out
}

// Spec is the reverse of Declaration.
func Spec(c config.Subsystem) api.NVMeSubsystemSpec {
	s := api.NVMeSubsystemSpec{Name: c.Name, NQN: c.NQN, Port: c.Port, Peers: append([]string{}, c.Peers...), Hosts: append([]string{}, c.Hosts...), InsecureUndeclared: c.Undeclared, Namespaces: []api.NVMeNamespaceSpec{}}
	for _, a := range c.Addresses {
		s.Addresses = append(s.Addresses, a.String())
	}
	for _, n := range c.Namespaces {
		s.Namespaces = append(s.Namespaces, namespaceSpec(n))
	}
	return s
}

func namespaceSpec(n config.Namespace) api.NVMeNamespaceSpec {
	s := api.NVMeNamespaceSpec{NSID: int(n.NSID), Export: n.Export, Path: n.Path, BlockSize: int(cmp.Or(n.BlockSize, 512)), ReadOnly: n.ReadOnly}
	if n.Thick {
		s.Thin = new(false)
	}
	return s
}

// Declaration turns a request into a declaration. It fails if a word is impossible. Package config finds what is wrong
// with the whole when it is written.
func Declaration(s api.NVMeSubsystemSpec) (config.Subsystem, error) {
	bad := func(format string, a ...any) (config.Subsystem, error) {
		return config.Subsystem{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf(format, a...)}
	}
	if err := config.CheckSubsystemName(s.Name); err != nil {
		return bad("subsystem name %q %s", s.Name, err)
	}
	if err := config.CheckNQN(s.NQN); err != nil {
		return bad("%q %s", s.NQN, err)
	}
	c := config.Subsystem{Name: s.Name, NQN: s.NQN, Port: cmp.Or(s.Port, config.DefaultNVMePort), Peers: s.Peers, Hosts: s.Hosts, Undeclared: s.InsecureUndeclared}
	for _, a := range s.Addresses {
		x, err := config.ParseAddr(a)
		if err != nil {
			return bad("a portal of subsystem %s: %s", s.Name, err)
		}
		c.Addresses = append(c.Addresses, x)
	}
	for _, n := range s.Namespaces {
		switch {
		case n.NSID < 1 || n.NSID > config.MaxNSID:
			return bad("namespace %d; allowed: 1 to %d", n.NSID, config.MaxNSID)
		case n.BlockSize != 0 && n.BlockSize != 512 && n.BlockSize != 4096:
			return bad("block size %d; allowed: 512, 4096", n.BlockSize)
		}
		x := config.Namespace{NSID: uint32(n.NSID), Export: n.Export, Path: n.Path, ReadOnly: n.ReadOnly, Thick: n.Thin != nil && !*n.Thin}
		if n.BlockSize == 4096 {
			x.BlockSize = 4096
		}
		c.Namespaces = append(c.Namespaces, x)
	}
	return c, nil
}

func ioOf(i target.IO) api.IO {
	return api.IO{Reads: i.Reads, Writes: i.Writes, ReadBytes: i.ReadBytes, WriteBytes: i.WriteBytes, Errors: i.Errors}
}
