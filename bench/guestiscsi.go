package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// The initiators of Linux' kernel, in the virtual machine, as clients of our target and of others: iscsi_tcp
// beside Linux' own target (LIO), ib_iser over soft-iWARP beside tgt's. None is protected.

var iscsiGuest = guest{
	name: "the kernel's initiators", role: "guest-iscsi", modules: "siw rdma_ucm ib_uverbs ib_iser iscsi_tcp sd_mod dummy target_core_mod target_core_file iscsi_target_mod",
	programs: []string{"fio", "iscsid", "iscsiadm", "tgtd", "tgtadm"}, memory: 4 << 10,
	open: openBlock(kernelInitiators),
	// The kernel's initiators are in the first network namespace only. siw finds a device by its number, which is not
	// to be the same in two namespaces, and asks how much memory may be locked even of root.
	script: `export TMPDIR=/run
for n in 0 1 2 3; do ip -n A link add d$n type dummy; done
ip link add vi type veth peer name vt netns A
ip addr add ` + kernelInitiator + `/24 dev vi
ip -n A addr add ` + kernelTarget + `/24 dev vt
ip link set vi up
ip -n A link set vt up
rdma link add siwi type siw netdev vi || fail "there is no siw"
ip netns exec A rdma link add siwt type siw netdev vt || fail "there is no siw"
ulimit -l unlimited
mkdir -p /etc/iscsi /run/tgtd
echo InitiatorName=` + benchInitiator + ` >/etc/iscsi/initiatorname.iscsi
iscsid -f >/run/iscsid.log 2>&1 &
`,
}

const (
	kernelInitiator = "10.8.1.1"
	kernelTarget    = "10.8.1.2" // in namespace A
	tgtPort         = 3260       // which tgt cannot change for iSER
	lioPort         = 3261
	overTCPPort     = 3262 // of our target for iscsi_tcp
	overISERPort    = 3263 // and for ib_iser
)

var kernelInitiators = map[string]startServer{
	"target, iscsi_tcp": ourTargetFor("default", overTCPPort), "target, ib_iser": ourTargetFor("iser", overISERPort),
	"LIO, iscsi_tcp": startLIO, "tgtd, ib_iser": startTGTForISER,
}

func guestISCSIRows() (rows []row) {
	for _, j := range fioJobs {
		tcp := j.iscsiRow("iSCSI "+j.name+", iscsi_tcp / LIO", 0.5, "target, iscsi_tcp", "LIO, iscsi_tcp")
		tcp.note = "LIO works in the kernel"
		rows = append(rows, tcp, j.iscsiRow("iSER "+j.name+", ib_iser / tgtd", 1, "target, ib_iser", "tgtd, ib_iser"))
	}
	return rows
}

// ourTargetFor has a daemon in namespace A offer a disk to an interface of open-iscsi's.
func ourTargetFor(iface string, port int) startServer {
	return func(ctx context.Context, b *bench, dir, _ string) (*blockServer, error) {
		s, err := startTargetAt(ctx, b, dir, portal{address: fmt.Sprintf("%s:%d", kernelTarget, port)},
			fmt.Sprintf("listen: {addresses: [%[1]s]}\npeers: [{name: initiator, address: %[2]s, local_address: %[1]s, insecure_plaintext: true}]\n", kernelTarget, kernelInitiator), "ip", "netns", "exec", "A")
		if err != nil {
			return nil, err
		}
		return loginByKernel(ctx, s, iface)
	}
}

// lioTarget has namespace A offer a file by the kernel, through the page cache as the daemon does.
const lioTarget = `set -e
mkdir -p /run/configfs
mountpoint -q /run/configfs || mount -t configfs none /run/configfs
cd /run/configfs/target
mkdir -p core/fileio_0/disk
echo 'fd_dev_name=%[1]s,fd_dev_size=%[2]d,fd_buffered_io=1' >core/fileio_0/disk/control
echo 1 >core/fileio_0/disk/enable
mkdir -p iscsi
mkdir iscsi/%[3]s
cd iscsi/%[3]s
mkdir tpgt_1
cd tpgt_1
mkdir np/%[4]s lun/lun_0
ln -s /run/configfs/target/core/fileio_0/disk lun/lun_0/disk
echo 0 >attrib/authentication
echo 1 >attrib/generate_node_acls
echo 1 >attrib/cache_dynamic_acls
echo 0 >attrib/demo_mode_write_protect
echo CHAP,None >param/AuthMethod
echo 1 >enable
`

func startLIO(ctx context.Context, _ *bench, _, image string) (*blockServer, error) {
	s := &blockServer{iscsi: portal{address: fmt.Sprintf("%s:%d", kernelTarget, lioPort)}, closer: closers{}}
	script := fmt.Sprintf(lioTarget, image, imageSize, benchIQN, s.iscsi.address)
	if out, err := exec.CommandContext(ctx, "ip", "netns", "exec", "A", "sh", "-c", script).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("offer a file by the kernel's target: %w: %s", err, out)
	}
	return loginByKernel(ctx, s, "default")
}

// startTGTForISER starts tgt's daemon in namespace A, which offers image over iSER.
func startTGTForISER(ctx context.Context, _ *bench, dir, image string) (*blockServer, error) {
	control := "TGT_IPC_SOCKET=" + filepath.Join(dir, "tgtd-iser")
	p, err := startProcess("ip", "netns", "exec", "A", "env", control, "tgtd", "--foreground", "--iscsi", "portal=127.0.0.1:3264", "--iser", "nop=on,pool_sz_mb=128")
	if err != nil {
		return nil, err
	}
	s := &blockServer{iscsi: portal{fmt.Sprintf("%s:%d", kernelTarget, tgtPort), 1}, pids: []int{p.pid()}, closer: p}
	if err := p.ready(ctx, func() error {
		cmd := exec.CommandContext(ctx, "env", control, "tgtadm", "--lld", "iser", "--mode", "target", "--op", "show")
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := offerByTGT(ctx, control, "iser", image, s.iscsi, []string{"--mode", "target", "--op", "bind", "--initiator-name", benchInitiator}); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return loginByKernel(ctx, s, "iser")
}

// inFirst runs a program in the first network namespace, in which the kernel's initiators are; this one runs in B.
func inFirst(ctx context.Context, words ...string) error {
	out, err := exec.CommandContext(ctx, "nsenter", append([]string{"--net=/proc/1/ns/net"}, words...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%v: %w: %s", words, err, out)
	}
	return nil
}

// loginByKernel has the kernel log in to a server's target, and waits for the disk.
func loginByKernel(ctx context.Context, s *blockServer, iface string) (*blockServer, error) {
	node := []string{"iscsiadm", "-m", "node", "-T", benchIQN, "-p", s.iscsi.address, "-I", iface}
	err := inFirst(ctx, append(node, "-o", "new")...)
	if err == nil {
		err = inFirst(ctx, append(node, "--login")...)
	}
	if err != nil {
		return nil, errors.Join(err, s.closer.Close())
	}
	s.closer = closers{s.closer, closeFunc(func() error { return inFirst(context.Background(), append(node, "--logout")...) })}
	err = waitFor(ctx, "the disk of "+s.iscsi.address, time.Minute, func() error {
		out, err := exec.CommandContext(ctx, "sh", "-c", fmt.Sprintf(`for c in /sys/class/iscsi_connection/connection*; do
	[ "$(cat $c/persistent_address):$(cat $c/persistent_port)" = %s ] && ls -d $c/device/../target*/*/block/*
done`, s.iscsi.address)).Output()
		if s.device = "/dev/" + filepath.Base(strings.TrimSpace(string(out))); s.device == "/dev/." {
			return fmt.Errorf("there is none: %w", err)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, s.closer.Close())
	}
	s.iscsi = portal{} // the kernel alone uses it
	return s, nil
}
