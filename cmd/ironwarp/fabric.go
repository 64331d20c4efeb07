package main

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) fabricCommand() *cli.Command {
	view := func(name, usage string, action cli.ActionFunc) *cli.Command {
		return &cli.Command{Name: name, Usage: usage, Flags: remote(), Action: action}
	}
	return &cli.Command{
		Name: "fabric", Usage: "the directory of hosts and services",
		Description: "Some hosts keep a directory of the hosts of a fabric and of what they offer: `managers:` in the configuration. The directory tells and never\n" +
			"decides: who may use what is up to each host's own configuration.",
		Subcommands: []*cli.Command{
			view("status", "this host's part in the fabric", w.fabricStatus),
			{Name: "services", Usage: "list the exports and targets of all hosts, or those of a name", ArgsUsage: "[NAME]", Flags: remote(), Action: w.fabricServices},
			view("paths", "list the hosts that can be reached", w.fabricPaths),
			view("managers", "list the hosts that keep the directory", w.fabricManagers),
			view("subscriptions", "list who hears of which events; on a manager", w.fabricSubscriptions),
			view("guids", "list alias GUIDs, those of local users of hosts; on a manager", w.fabricGUIDs),
			view("groups", "list members of multicast groups; on a manager", w.fabricGroups),
			view("drops", "list whose requests were dropped in silence; on a manager", w.fabricDrops),
			{
				Name: "drain", Usage: "have a host take no new streams, through its agent; on a manager", ArgsUsage: "PEER", BashComplete: w.completePeers,
				Flags: remote(&cli.BoolFlag{Name: "off", Usage: "have it take them again"}), Action: w.fabricDrain,
			},
			{
				Name: "restrict", Usage: "have a host be in some of its partitions alone, through its agent; on a manager", ArgsUsage: "PEER [PARTITION]...", BashComplete: w.completePeers,
				Description: "What the host has in other partitions ends. Without a name it is in none. It comes into no partition that its own configuration does not have.",
				Flags:       remote(&cli.BoolFlag{Name: "all", Usage: "have it be in all of them again"}), Action: w.fabricRestrict,
			},
			{
				Name: "keys", Usage: "management keys",
				Subcommands: []*cli.Command{{
					Name: "rotate", Usage: "make new keys in this manager's files, and give the agents theirs", ArgsUsage: "[m_key|sm_key|sa_key]...", BashComplete: w.completeKeys,
					Description: "The files of keys have to be the same on all managers: copy them there, that of m_key too, over a channel that you trust, and run `ironwarp reload`.",
					Flags:       remote(), Action: w.fabricRotate,
				}},
			},
		},
	}
}

func (w *ironwarp) fabricStatus(c *cli.Context) error {
	s, err := w.client(c).Fabric(c.Context)
	if err != nil {
		return err
	}
	return w.print(c, s, func() {
		if !s.Enabled {
			w.printf("this host is in no fabric; `fabric: {managers: [IDENTITY]}` in the configuration names the hosts that keep its directory\n")
			w.problem(s.Problem)
			return
		}
		w.printf("identity   %s\nGUID       %s\n", s.Identity, s.GUID)
		part := "member"
		if s.Manager {
			part = "manager"
		}
		w.printf("part       %s\nmaster     %s\nagent      %s\n", part, cmp.Or(s.Master, "not known"), agentText(s))
		model := "off"
		if s.Model {
			model = "on"
		}
		w.printf("settings   %s, enhanced trust model %s\n", cmp.Or(s.Conf, "defaults"), model)
		for _, line := range s.Insecure {
			w.printf("%s\n", w.warn("INSECURE: "+line))
		}
		w.problem(s.Problem)
		w.printf("\n")
		w.managerTable(s.Managers)
	})
}

func agentText(s api.FabricStatus) string {
	switch {
	case !s.Agent:
		return "off"
	case s.Drained:
		return "on; a manager has drained this host, which takes no new streams"
	}
	return "on: managers may change this host's keys, drain it and restrict its partitions"
}

func (w *ironwarp) fabricManagers(c *cli.Context) error {
	s, err := w.client(c).Fabric(c.Context)
	if err != nil {
		return err
	}
	return w.print(c, api.Lists(s.Managers), func() { w.managerTable(s.Managers) })
}

func (w *ironwarp) managerTable(all []api.FabricManager) {
	t := w.sheet("manager", "peer", "state", ">priority", "?guid")
	for _, m := range all {
		t.row(m.Identity, cmp.Or(m.Peer, "this host"), m.State, m.Priority, m.GUID)
	}
	t.print()
	for _, m := range all {
		w.problem(m.Problem)
	}
}

func (w *ironwarp) fabricServices(c *cli.Context) error {
	name := c.Args().First()
	all, err := w.client(c).FabricServices(c.Context, name)
	if err != nil {
		return err
	}
	return w.print(c, api.Lists(all), func() {
		if len(all) == 0 {
			w.printf("the directory has no such service\n")
			return
		}
		t := w.sheet("service", "kind", "host", "disk", ">size", "?lease", "?carriers", "?id")
		for _, s := range all {
			host, disk := s.Host, "-"
			if s.Peer != "" {
				host = s.Peer
				if s.Export != "" {
					disk = s.Peer + "/" + s.Export
				}
			} else if !s.Usable {
				host += " (no peer of this host)"
			}
			size := "-"
			if s.Size > 0 {
				size = bytesText(float64(s.Size))
			}
			t.row(s.Name, s.Kind, host, disk, size, leaseText(s.LeaseSeconds), orDash(strings.Join(s.Carriers, " ")), s.ID)
		}
		t.print()
	})
}

// leaseText is for how long a service stays in the directory without being renewed.
func leaseText(seconds uint32) string {
	if seconds == math.MaxUint32 {
		return "for ever"
	}
	return ageText(float64(seconds))
}

func (w *ironwarp) fabricPaths(c *cli.Context) error {
	none := "the directory knows no host"
	return list(w, c, (*api.Client).FabricPaths, none, func(all []api.FabricPath) {
		t := w.sheet("host", ">lid", ">mtu", "router", "?guid")
		for _, p := range all {
			t.row(orDash(p.Peer), p.LID, p.MTU, yesText(p.Router), p.Host)
		}
		t.print()
	})
}

func (w *ironwarp) fabricSubscriptions(c *cli.Context) error {
	return list(w, c, (*api.Client).FabricSubscriptions, "nobody hears of events", func(all []api.FabricSubscription) {
		t := w.sheet("host", "events", "of", "vport", "?guid")
		for _, s := range all {
			t.row(orDash(s.Peer), s.Trap, s.From, orDash(s.VPort), s.Host)
		}
		t.print()
	})
}

func (w *ironwarp) fabricGUIDs(c *cli.Context) error {
	return list(w, c, (*api.Client).FabricGUIDs, "no host has alias GUIDs", func(all []api.FabricGUID) {
		t := w.sheet("alias", "host", ">index", "?guid")
		for _, g := range all {
			t.row(g.GUID, orDash(g.Peer), g.Index, g.Host)
		}
		t.print()
	})
}

func (w *ironwarp) fabricGroups(c *cli.Context) error {
	return list(w, c, (*api.Client).FabricGroups, "no multicast group has members", func(all []api.FabricGroup) {
		t := w.sheet("group", ">mlid", "p_key", "member", "state", "?port")
		for _, g := range all {
			t.row(g.GID, g.LID, fmt.Sprintf("%#04x", g.PKey), orDash(g.Peer), g.State, g.Member)
		}
		t.print()
	})
}

func (w *ironwarp) fabricDrops(c *cli.Context) error {
	return list(w, c, (*api.Client).FabricDrops, "no request was dropped", func(all []api.FabricDrops) {
		t := w.sheet("requester", ">dropped", ">ago", "the last, and why", "?guid")
		for _, d := range all {
			t.row(orDash(d.Peer), d.Count, ageText(d.Age), d.Last, d.Host)
		}
		t.print()
	})
}

func (w *ironwarp) fabricDrain(c *cli.Context) error {
	q := api.FabricDrainRequest{Peer: c.Args().First(), Drain: !c.Bool("off")}
	if err := w.client(c).DrainFabricHost(c.Context, q); err != nil {
		return err
	}
	return w.print(c, q, func() {
		if q.Drain {
			w.printf("%s takes no new streams; those that are up go on\n", q.Peer)
		} else {
			w.printf("%s takes new streams again\n", q.Peer)
		}
	})
}

func (w *ironwarp) fabricRestrict(c *cli.Context) error {
	q := api.FabricPartitionsRequest{Peer: c.Args().First(), Partitions: c.Args().Tail(), All: c.Bool("all")}
	if q.All && len(q.Partitions) > 0 {
		return &usageError{msg: "all partitions, or some", fix: "leave --all or the names out"}
	}
	if err := w.client(c).SetFabricPartitions(c.Context, q); err != nil {
		return err
	}
	return w.print(c, q, func() {
		switch {
		case q.All:
			w.printf("%s is in all of its partitions\n", q.Peer)
		case len(q.Partitions) == 0:
			w.printf("%s is in no partition\n", q.Peer)
		default:
			w.printf("%s is in %s alone\n", q.Peer, strings.Join(q.Partitions, ", "))
		}
	})
}

func (w *ironwarp) fabricRotate(c *cli.Context) error {
	v, err := w.client(c).RotateFabricKeys(c.Context, api.FabricKeyRequest{Keys: c.Args().Slice()})
	if err != nil {
		return err
	}
	return w.print(c, v, func() {
		for _, f := range v.Files {
			w.printf("new key in %s\n", f)
		}
		for _, h := range v.Hosts {
			w.printf("%s has its new m_key\n", h)
		}
		for _, h := range v.Missed {
			w.printf("%s\n", w.warn(h))
		}
	})
}
