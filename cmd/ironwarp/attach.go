package main

import (
	"cmp"
	"context"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/urfave/cli/v2"
)

func (w *ironwarp) attachCommand() *cli.Command {
	return &cli.Command{
		Name: "attach", Usage: "bring a peer's export up as a local NBD or vhost-user socket, or block device", ArgsUsage: "[PEER/EXPORT]",
		Description: "The attachment stays until `ironwarp detach`, also over restarts of the daemon. A file system on a block device may stay mounted meanwhile: its I/O waits.",
		Flags: remote(
			&cli.StringFlag{Name: "service", Usage: "ask the fabric's directory which peer has the export of this `NAME`, in place of PEER/EXPORT; while nobody uses the disk, it follows the name to another peer"},
			&cli.DurationFlag{Name: "timeout", Value: 45 * time.Second, Usage: "give up after this `TIME`"},
			&cli.BoolFlag{Name: "device", Usage: "make it a block device of the kernel's nbd driver, /dev/disk/by-ironwarp/PEER-EXPORT"},
			&cli.StringFlag{Name: "name", Usage: "with --device: `NAME` of the device below /dev/disk/by-ironwarp in place of PEER-EXPORT"},
			&cli.BoolFlag{Name: "migration", Usage: "although another host has it attached for writing, as a virtual machine moves from there; the export has to permit it"},
			&cli.BoolFlag{Name: "vhost-user", Usage: "make it a vhost-user-blk socket for QEMU and cloud-hypervisor, in place of an NBD socket"},
			&cli.StringFlag{Name: "vhost-socket", Usage: "with --vhost-user: the `PATH` of the socket"},
			&cli.StringFlag{Name: "partition", Usage: "`NAME` of the partition in which the peer offers it (default: that of the ULP, or of the service attachments)"},
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the path of the socket or device only"},
		),
		Action:       w.attach,
		BashComplete: w.completeOffers,
	}
}

// diskArg is the only argument, a disk.
func diskArg(c *cli.Context) (peer, export string, err error) {
	return api.SplitDisk(c.Args().First())
}

func (w *ironwarp) attach(c *cli.Context) error {
	service := c.String("service")
	var peer, export string
	switch {
	case service != "" && c.Args().Present():
		return &usageError{msg: "a disk is attached by the name of its service or by its peer and export, not both", fix: "leave one out"}
	case service == "" && !c.Args().Present():
		return &usageError{msg: "PEER/EXPORT is missing", fix: "name a disk, or with --service an export that the fabric's directory has"}
	case service == "":
		var err error
		if peer, export, err = diskArg(c); err != nil {
			return err
		}
	}
	p := &progress{w: w}
	req := api.AttachRequest{Peer: peer, Export: export, Service: service, Device: c.Bool("device"), Name: c.String("name"), Migration: c.Bool("migration"), VhostUser: c.Bool("vhost-user"), VhostSocket: c.String("vhost-socket"), Partition: c.String("partition"), TimeoutSeconds: c.Duration("timeout").Seconds()}
	at, err := w.client(c).Attach(c.Context, req, func(ev api.Event) {
		if !asJSON(c) {
			p.show(ev.Progress)
		}
	})
	p.end()
	if err != nil {
		return err
	}
	if c.Bool("quiet") && !asJSON(c) {
		w.printf("%s\n", cmp.Or(at.DeviceLink, at.VhostSocket, at.Socket))
		return nil
	}
	return w.print(c, at, func() { w.attached(at) })
}

func (w *ironwarp) attached(at api.Attachment) {
	mode := "read and write"
	if at.ReadOnly {
		mode = "read only"
	}
	w.printf("%s attached: %s, %s\n", w.bold(at.Name()), bytesText(float64(at.Size)), mode)
	if at.DeviceLink != "" {
		w.printf("block device: %s, now %s\n\n", at.DeviceLink, at.Device)
		w.printf("mount it     mount %s /mnt\n", at.DeviceLink)
		w.printf("at each boot echo '%s /mnt auto _netdev 0 2' >>/etc/fstab\n", at.DeviceLink)
		w.printf("detach it    ironwarp detach %s\n", at.Name())
		return
	}
	if at.VhostSocket != "" {
		w.printf("vhost-user socket: %s\n\n", at.VhostSocket)
		w.printf("use it       qemu-system-x86_64 -m 1G -object memory-backend-memfd,id=mem,size=1G,share=on -machine q35,memory-backend=mem \\\n")
		w.printf("               -chardev socket,id=disk,path=%s,reconnect=1 -device vhost-user-blk-pci,chardev=disk ...\n", at.VhostSocket)
		w.printf("detach it    ironwarp detach %s\n", at.Name())
		return
	}
	w.printf("NBD socket: %s\n\n", at.Socket)
	w.printf("copy it      nbdcopy '%s' %s.img\n", at.URI, at.Export)
	w.printf("look at it   qemu-img info '%s'\n", at.URI)
	w.printf("mount it     modprobe nbd && nbd-client -unix %s -name %s /dev/nbd0 && mount /dev/nbd0 /mnt\n", at.Socket, at.Export)
	w.printf("detach it    ironwarp detach %s\n", at.Name())
}

func (w *ironwarp) detachCommand() *cli.Command {
	return &cli.Command{
		Name: "detach", Usage: "end an attachment", ArgsUsage: "PEER/EXPORT",
		Flags: remote(
			&cli.BoolFlag{Name: "force", Usage: "also when NBD clients are connected, or the device is in use: their I/O fails"},
			&cli.StringFlag{Name: "ulp", Usage: "detach the disk of a local user's `ULP`; only root may"},
		),
		Action:       w.detach,
		BashComplete: w.completeAttachments,
	}
}

func (w *ironwarp) detach(c *cli.Context) error {
	peer, export, err := diskArg(c)
	if err != nil {
		return err
	}
	if ulp := c.String("ulp"); ulp != "" {
		err = w.client(c).DetachOf(c.Context, ulp, peer, export, c.Bool("force"))
	} else {
		err = w.client(c).Detach(c.Context, peer, export, c.Bool("force"))
	}
	if err != nil {
		return err
	}
	name := peer + "/" + export
	return w.print(c, struct {
		Detached string `json:"detached"`
	}{name}, func() { w.printf("%s detached\n", name) })
}

func (w *ironwarp) lsCommand() *cli.Command {
	return &cli.Command{Name: "ls", Usage: "list the attached disks, or what a peer offers", ArgsUsage: "[PEER]", BashComplete: w.completePeers,
		Flags: remote(&cli.StringFlag{Name: "partition", Usage: "what the peer offers in this partition, by its `NAME`"}), Action: func(c *cli.Context) error {
			if peer := c.Args().First(); peer != "" {
				return w.offers(c, peer)
			}
			return list(w, c, (*api.Client).Attachments, "nothing is attached; attach a disk with `ironwarp attach PEER/EXPORT`", w.attachmentTable)
		}}
}

func (w *ironwarp) offers(c *cli.Context, peer string) error {
	get := func(cl *api.Client, ctx context.Context) ([]api.Offer, error) {
		return cl.OffersIn(ctx, peer, c.String("partition"))
	}
	none := peer + " offers nothing to this host; its administrator does that with `ironwarp export add --allow THIS_HOST NAME PATH`"
	return list(w, c, get, none, func(offers []api.Offer) {
		t := w.sheet("disk", ">size", "mode", "attached")
		for _, o := range offers {
			attached := "no"
			if o.Attached {
				attached = "yes"
			}
			t.row(peer+"/"+o.Name, bytesText(float64(o.Size)), modeText(o.ReadOnly), attached)
		}
		t.print()
	})
}

func (w *ironwarp) attachmentTable(list []api.Attachment) {
	owners := ofULPs(list)
	head := []string{"disk", ">size", "mode", "state", ">age", "?>clients", "?>reads/s", ">read", "?>writes/s", ">written", ">errors", "?place"}
	if owners {
		head = append([]string{"ulp"}, head...)
	}
	t := w.sheet(head...)
	for _, at := range list {
		state := w.stateText(at.State)
		if at.State == api.AttachStalled {
			state = w.bad(at.State + " " + ageText(at.OldestIOSeconds))
		}
		row := []any{at.Name(), bytesText(float64(at.Size)), modeText(at.ReadOnly), state, ageText(at.AgeSeconds), at.Clients,
			countText(at.IO.ReadsPerSec), rateText(at.IO.ReadBytesSec), countText(at.IO.WritesPerSec), rateText(at.IO.WriteBytesSec), at.IO.Errors, cmp.Or(at.Device, at.VhostSocket, at.Socket)}
		if owners {
			row = append([]any{ownerText(at)}, row...)
		}
		t.row(row...)
	}
	t.print()
	for _, at := range list {
		w.problem(at.Problem)
	}
}
