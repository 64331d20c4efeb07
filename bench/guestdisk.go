package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// What Linux itself has for remote block devices, in the virtual machine: NVMe/TCP, and RNBD
// over soft-RoCE (rxe), as rivals of a disk that is attached as a device of the kernel's nbd.
// None is protected.

var diskGuest = guest{
	name: "kernel NVMe/TCP and RNBD", role: "guest-disk", modules: "nbd nvmet nvmet-tcp nvme-tcp loop dummy rdma_rxe rnbd-server rnbd-client",
	programs: []string{"fio"}, memory: 3 << 10,
	open: openBlock(guestDisks),
	// The root is an overlay, of whose files the kernel's servers find that they are empty.
	script: "export TMPDIR=/run\n",
}

var guestDisks = map[string]startServer{"device": startDevice, "kernel NVMe": startNVMe, "kernel RNBD": startRNBD}

const (
	guestClient = "10.9.0.2" // in namespace B
	nvmePort    = 4420       // IANA's
	rnbdHost    = "10.8.0.1" // of a soft-RoCE device, outside the namespaces
)

func guestDiskRows() (rows []row) {
	for _, rival := range [...]struct{ name, server string }{{"kernel NVMe/TCP", "kernel NVMe"}, {"kernel RNBD over rxe", "kernel RNBD"}} {
		for _, r := range fioRows() {
			if job, ok := strings.CutSuffix(r.name, " / nbdkit"); ok {
				job = strings.TrimPrefix(job, "fio ")
				r.name, r.aim = "fio "+job+", block device / "+rival.name, 1
				r.ours.contender, r.rival = "device/"+job, []ref{{rival.server + "/" + job, r.ours.metric}}
				rows = append(rows, r)
			}
		}
	}
	return rows
}

// startDevice starts a daemon in each namespace and attaches the disk as a block device.
func startDevice(ctx context.Context, b *bench, dir, image string) (*blockServer, error) {
	start := func(name, at, peer, remote string, prefix ...string) (*daemon, string) {
		return &daemon{name: name, binary: b.ironwarp, dir: filepath.Join(dir, name), prefix: prefix},
			fmt.Sprintf("listen: {addresses: [%s]}\npeers:\n  - {name: %s, address: %s, local_address: %s, insecure_plaintext: true}\n", at, peer, remote, at)
	}
	server, exporting := start("server", guestServer, "client", guestClient, "ip", "netns", "exec", "A")
	client, attaching := start("client", guestClient, "server", guestServer)
	s, err := attach(ctx, server, exporting+exportOf(image), client, attaching, "--device")
	if err == nil {
		// A device that waits for its daemon would keep the machine from its end.
		s.closer = closers{s.closer, closeFunc(func() error {
			_, err := client.cli(context.Background(), "detach", "server/disk")
			return err
		})}
	}
	return s, err
}

// nvmeTarget has namespace A offer a file, through the page cache as the daemon does.
const nvmeTarget = `set -e
mkdir -p /run/configfs
mount -t configfs none /run/configfs
cd /run/configfs/nvmet
mkdir subsystems/disk subsystems/disk/namespaces/1 ports/1
echo 1 >subsystems/disk/attr_allow_any_host
cd subsystems/disk/namespaces/1
printf %%s '%s' >device_path
echo 1 >buffered_io
echo 1 >enable
cd ../../../../ports/1
echo tcp >addr_trtype
echo ipv4 >addr_adrfam
echo %s >addr_traddr
echo %d >addr_trsvcid
ln -s /run/configfs/nvmet/subsystems/disk subsystems/disk
`

func startNVMe(ctx context.Context, _ *bench, _, image string) (*blockServer, error) {
	if out, err := exec.CommandContext(ctx, "ip", "netns", "exec", "A", "sh", "-c", fmt.Sprintf(nvmeTarget, image, guestServer, nvmePort)).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("offer a file over NVMe/TCP: %w: %s", err, out)
	}
	f, err := os.OpenFile("/dev/nvme-fabrics", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	_, err = fmt.Fprintf(f, "transport=tcp,traddr=%s,trsvcid=%d,nqn=disk", guestServer, nvmePort)
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("connect NVMe/TCP: %w", err)
	}
	return openKernelDisk(ctx, "/dev/nvme*n1")
}

// rnbdServer offers a file by Linux' RNBD, whose server and client know no namespaces, and
// maps the disk on the same host: rxe hands such packets over without UDP.
const rnbdServer = `set -e
ip link add rdma0 type dummy
ip addr add %[1]s/24 dev rdma0
ip link set rdma0 up
rdma link add rxe0 type rxe netdev rdma0
loop=$(losetup --find --show '%[2]s')
echo "sessname=bench path=ip:%[1]s@ip:%[1]s device_path=$loop access_mode=rw" >/sys/class/rnbd-client/ctl/map_device
`

func startRNBD(ctx context.Context, _ *bench, _, image string) (*blockServer, error) {
	// This program runs in namespace B; the machine's first process does not.
	cmd := exec.CommandContext(ctx, "nsenter", "--net=/proc/1/ns/net", "sh", "-c", fmt.Sprintf(rnbdServer, rnbdHost, image))
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("offer a file over RNBD: %w: %s", err, out)
	}
	return openKernelDisk(ctx, "/dev/rnbd*")
}

// openKernelDisk waits until the only block device of a pattern has the image's size.
func openKernelDisk(ctx context.Context, pattern string) (*blockServer, error) {
	s := &blockServer{closer: closers{}}
	return s, waitFor(ctx, "the device "+pattern, time.Minute, func() error {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) != 1 {
			return errors.Join(err, fmt.Errorf("the devices are %q", found))
		}
		s.device = found[0]
		f, err := os.Open(s.device)
		if err != nil {
			return err
		}
		defer f.Close()
		size, err := f.Seek(0, io.SeekEnd)
		if err == nil && size != imageSize {
			err = fmt.Errorf("%s has %d bytes", s.device, size)
		}
		return err
	})
}
