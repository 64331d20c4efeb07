package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/urfave/cli/v2"
)

// peerFlag names the host whose pools are meant.
func peerFlag() cli.Flag {
	return &cli.StringFlag{Name: "peer", Usage: "of `PEER`, whose pool has to name this host in manage:"}
}

func qosFlags() []cli.Flag {
	return []cli.Flag{
		&cli.Int64Flag{Name: "iops", Usage: "at most `N` reads and writes a second; 0 is no limit, as with all of these"},
		&cli.Int64Flag{Name: "read-iops", Usage: "at most `N` reads a second"},
		&cli.Int64Flag{Name: "write-iops", Usage: "at most `N` writes a second"},
		&cli.StringFlag{Name: "bandwidth", Usage: "at most `SIZE` read and written a second, such as 100MiB"},
		&cli.StringFlag{Name: "read-bandwidth", Usage: "at most `SIZE` read a second"},
		&cli.StringFlag{Name: "write-bandwidth", Usage: "at most `SIZE` written a second"},
		&cli.DurationFlag{Name: "burst", Usage: "save up a limit's I/O for so much `TIME` (default: a second)"},
	}
}

// qosOf changes limits by the flags that were set.
func qosOf(c *cli.Context, q *api.QoS) error {
	for name, n := range map[string]*int64{"iops": &q.IOPS, "read-iops": &q.ReadIOPS, "write-iops": &q.WriteIOPS} {
		if c.IsSet(name) {
			*n = c.Int64(name)
		}
	}
	for name, n := range map[string]*int64{"bandwidth": &q.Bandwidth, "read-bandwidth": &q.ReadBandwidth, "write-bandwidth": &q.WriteBandwidth} {
		if !c.IsSet(name) {
			continue
		}
		v, err := config.ParseSize(c.String(name))
		if err != nil {
			return &usageError{msg: fmt.Sprintf("--%s: %v", name, err)}
		}
		*n = v
	}
	if c.IsSet("burst") {
		q.BurstSeconds = c.Duration("burst").Seconds()
	}
	return nil
}

// qosText is limits for people.
func qosText(q api.QoS) string {
	var parts []string
	add := func(n int64, format string, v any) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf(format, v))
		}
	}
	add(q.IOPS, "%d IOPS", q.IOPS)
	add(q.ReadIOPS, "%d reads/s", q.ReadIOPS)
	add(q.WriteIOPS, "%d writes/s", q.WriteIOPS)
	add(q.Bandwidth, "%s/s", bytesText(float64(q.Bandwidth)))
	add(q.ReadBandwidth, "read %s/s", bytesText(float64(q.ReadBandwidth)))
	add(q.WriteBandwidth, "write %s/s", bytesText(float64(q.WriteBandwidth)))
	return orDash(strings.Join(parts, ", "))
}

func (w *ironwarp) poolCommand() *cli.Command {
	return &cli.Command{
		Name: "pool", Usage: "storage from which volumes are made",
		Description: "pools: in the configuration declares them.",
		Subcommands: []*cli.Command{
			{Name: "ls", Usage: "list the pools", Flags: remote(peerFlag()), Action: w.poolList},
			{Name: "show", Usage: "show one", ArgsUsage: "NAME", Flags: remote(peerFlag()), Action: w.poolShow},
		},
	}
}

func (w *ironwarp) poolList(c *cli.Context) error {
	pools, err := w.client(c).Pools(c.Context, c.String("peer"))
	if err != nil {
		return err
	}
	return w.print(c, pools, func() {
		if len(pools) == 0 {
			w.printf("no pools; pools: in the configuration declares them\n")
			return
		}
		w.poolTable(pools)
	})
}

func (w *ironwarp) poolTable(pools []api.Pool) {
	t := w.sheet("pool", "driver", ">size", ">used", ">free", ">volumes", "alarm", "managed by", "?where")
	for _, p := range pools {
		t.row(p.Name, p.Driver, bytesText(float64(p.Size)), bytesText(float64(p.Used)), bytesText(float64(p.Free)), p.Volumes, w.alarmText(p.Alarm), orDash(strings.Join(p.Manage, " ")), p.Where)
	}
	t.print()
	for _, p := range pools {
		w.problem(p.Problem)
	}
}

func (w *ironwarp) alarmText(percent int) string {
	if percent == 0 {
		return "-"
	}
	return w.warn(fmt.Sprintf("%d%% full", percent))
}

func (w *ironwarp) poolShow(c *cli.Context) error {
	p, err := w.client(c).Pool(c.Context, c.String("peer"), c.Args().First())
	if err != nil {
		return err
	}
	return w.print(c, p, func() {
		w.printf("pool %s: %s at %s\n", p.Name, p.Driver, p.Where)
		w.printf("size %s, used %s, free %s; alarm: %s\n", bytesText(float64(p.Size)), bytesText(float64(p.Used)), bytesText(float64(p.Free)), w.alarmText(p.Alarm))
		w.printf("%d of at most %d volumes and snapshots; it can do: %s\n", p.Volumes, p.Quota, orDash(strings.Join(p.Features, ", ")))
		w.printf("managed by this host, and by: %s\n", orDash(strings.Join(p.Manage, ", ")))
		w.problem(p.Problem)
	})
}

func (w *ironwarp) volumeCommand() *cli.Command {
	sizes := "SIZE is a number of bytes, or one with KiB, MiB, GiB or TiB."
	return &cli.Command{
		Name: "volume", Usage: "volumes of this host's pools, or of a peer's",
		Description: "A volume is an export by itself. Once it is published to a peer, that attaches it with `ironwarp attach`.",
		Subcommands: []*cli.Command{
			{Name: "create", Usage: "make a volume", ArgsUsage: "POOL NAME SIZE", Description: sizes, Action: w.volumeCreate,
				Flags: remote(append(qosFlags(), peerFlag(),
					&cli.StringFlag{Name: "writers", Usage: "how many may have it attached for writing: `one` (the default); migration or shared, as of an export"})...)},
			{Name: "clone", Usage: "make a volume that begins with what another volume or a snapshot holds", ArgsUsage: "FROM NAME", Action: w.volumeClone,
				Flags: remote(append(qosFlags(), peerFlag(), &cli.StringFlag{Name: "size", Usage: "`SIZE` of the new one, if it is to be larger"})...)},
			{Name: "snapshot", Usage: "keep what a volume holds now", ArgsUsage: "NAME SNAPSHOT", Flags: remote(peerFlag()), Action: w.volumeSnapshot,
				Description: "Writes wait for a moment, and everything that was acknowledged is in the snapshot: it is what a crash of its user would leave."},
			{Name: "rm", Usage: "remove a volume or snapshot for good", ArgsUsage: "NAME", Action: w.volumeRemove,
				Flags: remote(peerFlag(), &cli.BoolFlag{Name: "if-exists", Usage: "one that is not there is no error"})},
			{Name: "ls", Usage: "list volumes and snapshots", Flags: remote(peerFlag()), Action: w.volumeList},
			{Name: "show", Usage: "show one", ArgsUsage: "NAME", Flags: remote(peerFlag()), Action: w.volumeShow},
			{Name: "expand", Usage: "make a volume larger, which peers that have it attached see", ArgsUsage: "NAME SIZE", Description: sizes, Flags: remote(peerFlag()), Action: w.volumeExpand},
			{Name: "publish", Usage: "let a peer attach a volume", ArgsUsage: "NAME [PEER]", Action: w.volumePublish,
				Description: "PEER is a peer of the volume's host, by its name there or as id:IDENTITY. Without it, with --peer, it is this host.",
				Flags: remote(peerFlag(), &cli.BoolFlag{Name: "read-only", Usage: "for reading only"},
					&cli.BoolFlag{Name: "shared", Usage: "others that have it published with --shared may write at the same time"})},
			{Name: "unpublish", Usage: "make sure that a peer attaches a volume no more and that nothing of it is written any more", ArgsUsage: "NAME [PEER]", Action: w.volumeUnpublish,
				Description: "With status 0 nothing of the peer reaches the volume any more; with 8 it is fenced, and I/O that it had begun has not ended in time:\nthen nobody else is to write until the command succeeds.",
				Flags:       remote(peerFlag(), &cli.DurationFlag{Name: "timeout", Value: time.Minute, Usage: "give up waiting for the peer's I/O after this `TIME`"})},
			{Name: "qos", Usage: "limit a volume's I/O, also while it is in use", ArgsUsage: "NAME", Description: "Limits without a flag stay as they are; 0 takes one away. I/O beyond a limit waits.",
				Flags: remote(append(qosFlags(), peerFlag())...), Action: w.volumeQoS},
		},
	}
}

func (w *ironwarp) volumeCreate(c *cli.Context) error {
	a := c.Args()
	size, err := config.ParseSize(a.Get(2))
	if err != nil {
		return &usageError{msg: err.Error()}
	}
	q := api.VolumeCreate{Pool: a.Get(0), Name: a.Get(1), Size: size, Writers: c.String("writers")}
	return w.makeVolume(c, q)
}

func (w *ironwarp) volumeClone(c *cli.Context) error {
	from, err := w.client(c).Volume(c.Context, c.String("peer"), c.Args().Get(0))
	if err != nil {
		return err
	}
	q := api.VolumeCreate{Pool: from.Pool, Name: c.Args().Get(1), From: from.Name}
	if s := c.String("size"); s != "" {
		if q.Size, err = config.ParseSize(s); err != nil {
			return &usageError{msg: "--size: " + err.Error()}
		}
	}
	return w.makeVolume(c, q)
}

func (w *ironwarp) makeVolume(c *cli.Context, q api.VolumeCreate) error {
	if err := qosOf(c, &q.QoS); err != nil {
		return err
	}
	v, err := w.client(c).CreateVolume(c.Context, c.String("peer"), q)
	if err != nil {
		return err
	}
	return w.print(c, v, func() {
		next := fmt.Sprintf("`ironwarp volume publish %s PEER` lets a peer attach it", v.Name)
		if host := c.String("peer"); host != "" {
			next = fmt.Sprintf("`ironwarp volume publish --peer %s %s` lets this host attach it", host, v.Name)
		}
		w.printf("volume %s of %s is in pool %s; %s\n", v.Name, bytesText(float64(v.Size)), v.Pool, next)
		w.problem(v.Problem)
	})
}

func (w *ironwarp) volumeSnapshot(c *cli.Context) error {
	v, err := w.client(c).SnapshotVolume(c.Context, c.String("peer"), c.Args().Get(0), api.VolumeSnapshot{Name: c.Args().Get(1)})
	if err != nil {
		return err
	}
	return w.print(c, v, func() {
		w.printf("snapshot %s holds what %s held; `ironwarp volume clone %s NAME` makes a volume of it\n", v.Name, v.Source, v.Name)
	})
}

func (w *ironwarp) volumeRemove(c *cli.Context) error {
	name := c.Args().First()
	err := w.client(c).RemoveVolume(c.Context, c.String("peer"), name)
	if c.Bool("if-exists") && errors.Is(err, &api.Error{Code: api.CodeNotFound}) {
		err = nil
	}
	if err != nil {
		return err
	}
	return w.print(c, struct{}{}, func() { w.printf("volume %s is removed\n", name) })
}

func (w *ironwarp) volumeList(c *cli.Context) error {
	volumes, err := w.client(c).Volumes(c.Context, c.String("peer"))
	if err != nil {
		return err
	}
	return w.print(c, volumes, func() {
		if len(volumes) == 0 {
			w.printf("no volumes; make one with `ironwarp volume create POOL NAME SIZE`\n")
			return
		}
		t := w.sheet("volume", "pool", "kind", ">size", ">used", "state", "published to", "?from", "?limits")
		for _, v := range volumes {
			t.row(v.Name, v.Pool, v.Kind, bytesText(float64(v.Size)), bytesText(float64(v.Used)), w.stateText(orDash(v.State)), orDash(leasesText(v.Allow)), orDash(v.Source), qosText(v.QoS))
		}
		t.print()
		for _, v := range volumes {
			w.problem(v.Problem)
		}
	})
}

// leasesText is to whom a volume is published.
func leasesText(leases []api.PeerLease) string {
	var parts []string
	for _, l := range leases {
		s := l.Peer
		for _, m := range []struct {
			is   bool
			text string
		}{{l.ReadOnly, "ro"}, {l.Shared, "shared"}, {l.Leaving, "leaving"}} {
			if m.is {
				s += ":" + m.text
			}
		}
		parts = append(parts, s)
	}
	return strings.Join(parts, " ")
}

func (w *ironwarp) volumeShow(c *cli.Context) error {
	v, err := w.client(c).Volume(c.Context, c.String("peer"), c.Args().First())
	if err != nil {
		return err
	}
	return w.print(c, v, func() {
		w.printf("%s %s of pool %s, %s (%s used), UUID %s\n", v.Kind, v.Name, v.Pool, bytesText(float64(v.Size)), bytesText(float64(v.Used)), v.UUID)
		if v.Source != "" {
			w.printf("made of %s, ", v.Source)
		}
		w.printf("made at %s\n", v.Created.Local().Format(time.DateTime))
		if v.Kind == api.KindVolume {
			w.printf("export %s, generation %d; published to: %s\n", orDash(v.Export), v.Generation, orDash(leasesText(v.Allow)))
			w.printf("limits: %s\n", qosText(v.QoS))
		}
		w.problem(v.Problem)
	})
}

func (w *ironwarp) volumeExpand(c *cli.Context) error {
	size, err := config.ParseSize(c.Args().Get(1))
	if err != nil {
		return &usageError{msg: err.Error()}
	}
	v, err := w.client(c).ExpandVolume(c.Context, c.String("peer"), c.Args().Get(0), api.VolumeExpand{Size: size})
	if err != nil {
		return err
	}
	return w.print(c, v, func() { w.printf("volume %s has %s (%d bytes)\n", v.Name, bytesText(float64(v.Size)), v.Size) })
}

func (w *ironwarp) volumePublish(c *cli.Context) error {
	name, to := c.Args().Get(0), c.Args().Get(1)
	p, err := w.client(c).PublishVolume(c.Context, c.String("peer"), name, api.VolumePublish{Peer: to, ReadOnly: c.Bool("read-only"), Shared: c.Bool("shared")})
	if err != nil {
		return err
	}
	return w.print(c, p, func() {
		w.printf("volume %s is published, in generation %d", name, p.Generation)
		if host := c.String("peer"); host != "" && to == "" {
			w.printf("; `ironwarp attach %s/%s` attaches it", host, p.Export)
		}
		w.printf("\n")
	})
}

func (w *ironwarp) volumeUnpublish(c *cli.Context) error {
	name := c.Args().Get(0)
	f, err := w.client(c).UnpublishVolume(c.Context, c.String("peer"), name, api.VolumeUnpublish{Peer: c.Args().Get(1), TimeoutSeconds: c.Duration("timeout").Seconds()})
	if err != nil {
		return err
	}
	return w.print(c, f, func() {
		w.printf("nothing of %s reaches volume %s any more (generation %d; I/Os under way that have ended: %d)\n", f.Peer, name, f.Generation, f.Drained)
	})
}

func (w *ironwarp) volumeQoS(c *cli.Context) error {
	name, peer := c.Args().First(), c.String("peer")
	v, err := w.client(c).Volume(c.Context, peer, name)
	if err != nil {
		return err
	}
	q := v.QoS
	if err := qosOf(c, &q); err != nil {
		return err
	}
	if v, err = w.client(c).SetVolumeQoS(c.Context, peer, name, q); err != nil {
		return err
	}
	return w.print(c, v, func() { w.printf("limits of volume %s: %s\n", v.Name, qosText(v.QoS)) })
}
