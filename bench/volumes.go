package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/nbd/nbdtest"
)

// What is measured of pools and volumes, on an XFS of its own.
const (
	poolBytes      = 16 << 30 // of a sparse file
	snapshotBytes  = 10 << 30
	snapshotStep   = 8 << 20 // one block is written in each: so many extents are shared
	volumesOfAHost = 1000
	volumeBytes    = 1 << 30
)

// NBD's commands.
const (
	nbdRead  = 0
	nbdWrite = 1
	nbdFlush = 3
)

// volumeRows have no rival: what is beside them is what a user waits for.
func volumeRows() []row {
	const many = "1,000 volumes on a host: "
	return []row{
		{name: "volume of a peer, from its creation to its first byte", unit: "ms", scale: 1e3, less: true, absolute: true, aim: 250, ours: ref{"first byte", "took"},
			note: "created, published, attached and read over the streams of loopback peers"},
		{name: "snapshot of a volume of 10 GiB", unit: "ms", scale: 1e3, less: true, absolute: true, aim: 250, ours: ref{"snapshot", "took"},
			note: fmt.Sprintf("thin, on XFS by FICLONE, of %d extents, while it is attached", snapshotBytes/snapshotStep)},
		{name: many + "start of the daemon, until all are offered", unit: "s", less: true, absolute: true, aim: 5, ours: ref{"many", "start"}},
		{name: many + "memory of the daemon", unit: "MiB", scale: 1.0 / (1 << 20), less: true, absolute: true, aim: 128, ours: ref{"many", "memory"}},
		{name: many + "reload", unit: "s", less: true, absolute: true, aim: 0.5, ours: ref{"many", "reload"}},
	}
}

// openVolumes starts two daemons, of which one manages the other's pool.
func openVolumes(ctx context.Context, b *bench, names []string) (_ []contender, _ io.Closer, err error) {
	dir, err := os.MkdirTemp("", "ironwarp-bench-")
	if err != nil {
		return nil, nil, err
	}
	open := closers{closeFunc(func() error { return os.RemoveAll(dir) })}
	defer func() {
		if err != nil {
			err = errors.Join(err, open.Close())
		}
	}()
	pool, err := mountXFS(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	open = append(open, pool)
	port, err := freePort()
	if err != nil {
		return nil, nil, err
	}
	v := &measuredVolumes{
		dir:    dir,
		server: &daemon{name: "server", binary: b.ironwarp, dir: filepath.Join(dir, "s")},
		client: &daemon{name: "client", binary: b.ironwarp, dir: filepath.Join(dir, "c")},
	}
	config := func(local, remote, peer string) string {
		return fmt.Sprintf("listen: {port: %d, addresses: [%s]}\npeers:\n  - {name: %s, address: %s, local_address: %s, port: %d, protection: loopback}\n", port, local, peer, remote, local, port)
	}
	const here, there = "127.0.0.1", "127.0.0.2"
	for d, c := range map[*daemon]string{v.server: config(here, there, "client") + fmt.Sprintf("pools:\n  - {name: pool, driver: file, path: %q, manage: [client]}\n", pool.at), v.client: config(there, here, "server")} {
		p, err := d.start(ctx, c)
		if err != nil {
			return nil, nil, err
		}
		open = append(open, p)
	}
	at := api.NewClient(v.client.socket())
	open = append(open, closeFunc(func() error { at.Close(); return nil }))
	v.at = at
	all := map[string]contender{
		"first byte": {"first byte", v.firstByte},
		"snapshot":   {"snapshot", v.snapshot},
		"many":       {"many", v.many},
	}
	var contenders []contender
	for _, n := range names {
		contenders = append(contenders, all[n])
	}
	return contenders, open, nil
}

// xfs is a mounted file system.
type xfs struct{ at string }

// Close unmounts it. It fails where that is not possible.
func (x xfs) Close() error { return exec.Command("umount", "-l", x.at).Run() }

// mountXFS mounts an empty XFS below dir. It fails with a leftOut where this machine has none.
func mountXFS(ctx context.Context, dir string) (x xfs, err error) {
	image := filepath.Join(dir, "xfs.img")
	x.at = filepath.Join(dir, "pool")
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, poolBytes), os.Mkdir(x.at, 0o700)); err != nil {
		return x, err
	}
	for _, argv := range [][]string{{"mkfs.xfs", "-q", image}, {"mount", "-o", "loop,nodev,nosuid", image, x.at}} {
		if out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return x, leftOut(fmt.Sprintf("there is no XFS of their own for volumes: `%s`: %v %s", strings.Join(argv, " "), err, out))
		}
	}
	return x, os.Chmod(x.at, 0o700)
}

// measuredVolumes are two daemons, and volumes that one makes at the other.
type measuredVolumes struct {
	server, client *daemon
	at             *api.Client
	made           int
	dir            string

	large     *nbdtest.Client // the volume of which snapshots are made, attached
	largeName string
}

// attachNew makes a volume and attaches it.
func (v *measuredVolumes) attachNew(ctx context.Context, size int64) (*nbdtest.Client, string, error) {
	v.made++
	name := fmt.Sprintf("volume%d", v.made)
	if _, err := v.at.CreateVolume(ctx, "server", api.VolumeCreate{Pool: "pool", Name: name, Size: size}); err != nil {
		return nil, "", err
	}
	if _, err := v.at.PublishVolume(ctx, "server", name, api.VolumePublish{}); err != nil {
		return nil, "", err
	}
	a, err := v.at.Attach(ctx, api.AttachRequest{Peer: "server", Export: name, TimeoutSeconds: 60}, func(api.Event) {})
	if err != nil {
		return nil, "", err
	}
	c, err := net.Dial("unix", a.Socket)
	if err != nil {
		return nil, "", err
	}
	disk, err := nbdtest.Connect(c, name, false)
	return disk, name, err
}

// do carries out one request at a disk.
func do(disk *nbdtest.Client, typ uint16, off uint64, n uint32, payload []byte) error {
	r, err := disk.Do(0, typ, off, n, payload)
	if err == nil && r.Error != 0 {
		err = fmt.Errorf("NBD request of type %d at %d: error %d", typ, off, r.Error)
	}
	return err
}

func (v *measuredVolumes) firstByte(ctx context.Context) (metrics, error) {
	start := time.Now()
	disk, name, err := v.attachNew(ctx, volumeBytes)
	if err == nil {
		err = do(disk, nbdRead, 0, 4096, nil)
	}
	took := time.Since(start)
	if err == nil {
		disk.Close()
		err = v.at.Detach(ctx, "server", name, true)
	}
	return metrics{"took": took.Seconds()}, err
}

func (v *measuredVolumes) snapshot(ctx context.Context) (metrics, error) {
	if v.large == nil {
		disk, name, err := v.attachNew(ctx, snapshotBytes)
		block := make([]byte, 4096)
		for off := uint64(0); off < snapshotBytes && err == nil; off += snapshotStep {
			err = do(disk, nbdWrite, off, uint32(len(block)), block)
		}
		if err == nil {
			err = do(disk, nbdFlush, 0, 0, nil)
		}
		if err != nil {
			return nil, err
		}
		v.large, v.largeName = disk, name
	}
	// What was written since the one before has to be on the storage first.
	if err := do(v.large, nbdWrite, 0, 4096, make([]byte, 4096)); err != nil {
		return nil, err
	}
	v.made++
	name := fmt.Sprintf("snapshot%d", v.made)
	start := time.Now()
	_, err := v.at.SnapshotVolume(ctx, "server", v.largeName, api.VolumeSnapshot{Name: name})
	return metrics{"took": time.Since(start).Seconds()}, err
}

// many has a daemon of its own with many volumes, and starts that again.
func (v *measuredVolumes) many(ctx context.Context) (_ metrics, err error) {
	dir, err := os.MkdirTemp(v.dir, "")
	if err != nil {
		return nil, err
	}
	pool := filepath.Join(dir, "pool")
	if err := os.Mkdir(pool, 0o700); err != nil {
		return nil, err
	}
	d := &daemon{name: "many", binary: v.server.binary, dir: filepath.Join(dir, "d")}
	p, err := d.start(ctx, fmt.Sprintf("listen: {addresses: []}\npools:\n  - {name: pool, driver: file, path: %q}\n", pool))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	at := api.NewClient(d.socket())
	defer at.Close()
	if err := inParallel(volumesOfAHost, attachesAtOnce, func(i int) error {
		_, err := at.CreateVolume(ctx, "", api.VolumeCreate{Pool: "pool", Name: fmt.Sprintf("volume%d", i), Size: volumeBytes})
		return err
	}); err != nil {
		return nil, err
	}
	if err := p.Close(); err != nil {
		return nil, err
	}
	start := time.Now()
	if p, err = d.again(ctx); err != nil {
		return nil, err
	}
	if err := waitFor(ctx, "all volumes after a restart", 2*time.Minute, func() error {
		all, err := at.Volumes(ctx, "")
		ready := 0
		for _, v := range all {
			if v.State == api.ExportReady {
				ready++
			}
		}
		if err == nil && ready < volumesOfAHost {
			err = fmt.Errorf("%d of %d are offered", ready, volumesOfAHost)
		}
		return err
	}); err != nil {
		return nil, err
	}
	m := metrics{"start": time.Since(start).Seconds()}
	use, err := useOf(p.pid())
	if err != nil {
		return nil, err
	}
	m["memory"] = use.resident
	m["reload"], err = shortest(1, 3, func() error { _, err := at.Reload(ctx); return err })
	return m, err
}
