package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// Many disks: one daemon exports them, another has them all attached.

var diskCounts = []int{10, 100, 1000}

func disksOf(n int) string { return fmt.Sprintf("%d disks", n) }

var diskGrowth = []growth{
	{what: "start, for each export", metric: "start", unit: "ms", scale: 1e3},
	{what: "attach a disk", metric: "attach", unit: "ms", scale: 1e3},
	{what: "restart, for each attached disk", metric: "restart", unit: "ms", scale: 1e3},
	{what: "reload with one export's change, for each export", metric: "change", unit: "us", scale: 1e6},
	{what: "status, for each export", metric: "exports' status", unit: "us", scale: 1e6},
	{what: "status, for each attached disk", metric: "disks' status", unit: "us", scale: 1e6},
	{what: "memory of an export", metric: "exports' memory", unit: "KiB", scale: 1.0 / 1024},
	{what: "memory of an attached disk", metric: "disks' memory", unit: "KiB", scale: 1.0 / 1024},
	{what: "CPU of an idle export", metric: "exports' cpu", unit: "us/s", scale: 1e6},
	{what: "CPU of an idle attached disk", metric: "disks' cpu", unit: "us/s", scale: 1e6},
}

const (
	attachesAtOnce = 8
	disksIdle      = 3 * time.Second
	smallDisk      = 1 << 20 // bytes
)

func disksGroup() group {
	return group{name: "many disks", rounds: 1, cold: true, rows: growthRows(diskGrowth, diskCounts, disksOf), open: openGrowth(diskCounts, disksOf, measureDisks)}
}

func measureDisks(ctx context.Context, b *bench, dir string, n int) (_ metrics, err error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	images := filepath.Join(dir, "images")
	server := &daemon{name: "server", binary: b.ironwarp, dir: filepath.Join(dir, "s")}
	for _, d := range []string{images, filepath.Join(server.dir, "exports.d")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	name := func(i int) string { return fmt.Sprintf("disk%d", i) }
	for i := range n {
		image := filepath.Join(images, name(i))
		if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, smallDisk)); err != nil {
			return nil, err
		}
		declaration := fmt.Appendf(nil, "{name: %s, path: %q, allow: [client]}\n", name(i), image)
		if err := os.WriteFile(filepath.Join(server.dir, "exports.d", name(i)+".yaml"), declaration, 0o600); err != nil {
			return nil, err
		}
	}
	here, there := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	config := func(local, remote netip.Addr, peer string) string {
		return fmt.Sprintf("listen: {port: %d, addresses: [%s]}\npeers:\n  - {name: %s, address: %s, local_address: %s, port: %d, protection: loopback}\n", port, local, peer, remote, local, port)
	}
	per := float64(n)
	m := metrics{}
	start := time.Now()
	sp, err := server.start(ctx, config(here, there, "client"))
	if err != nil {
		return nil, err
	}
	defer sp.Close()
	m["start"] = time.Since(start).Seconds() / per
	client := &daemon{name: "client", binary: b.ironwarp, dir: filepath.Join(dir, "c")}
	cp, err := client.start(ctx, config(there, here, "server"))
	if err != nil {
		return nil, err
	}
	defer func() { cp.Close() }()
	at, from := api.NewClient(client.socket()), api.NewClient(server.socket())
	defer at.Close()
	defer from.Close()
	start = time.Now()
	if err := inParallel(n, attachesAtOnce, func(i int) error {
		_, err := at.Attach(ctx, api.AttachRequest{Peer: "server", Export: name(i), TimeoutSeconds: 60}, func(api.Event) {})
		return err
	}); err != nil {
		return nil, err
	}
	m["attach"] = time.Since(start).Seconds() / per
	cp.Close()
	at.Close()
	start = time.Now()
	if cp, err = client.again(ctx); err != nil {
		return nil, err
	}
	if err := waitFor(ctx, "all disks after a restart", 2*time.Minute, func() error {
		up := 0
		all, err := at.Attachments(ctx)
		for _, a := range all {
			if a.State == api.AttachReady {
				up++
			}
		}
		if err == nil && up < n {
			err = fmt.Errorf("%d of %d are attached", up, n)
		}
		return err
	}); err != nil {
		return nil, err
	}
	m["restart"] = time.Since(start).Seconds() / per
	for _, d := range []struct {
		of string
		p  *process
		c  *api.Client
	}{{"exports' ", sp, from}, {"disks' ", cp, at}} {
		idle, err := d.p.idle(ctx, n, disksIdle)
		if err != nil {
			return nil, err
		}
		m[d.of+"memory"], m[d.of+"cpu"] = idle["memory"], idle["cpu"]
		if m[d.of+"status"], err = shortest(n, 3, func() error { _, err := d.c.Status(ctx); return err }); err != nil {
			return nil, err
		}
	}
	writers, other := "one", "shared"
	m["change"], err = shortest(n, 3, func() error {
		writers, other = other, writers
		_, err := from.SetExport(ctx, name(0), api.ExportChange{Writers: &writers})
		return err
	})
	return m, err
}
