// Package initiators has other people's iSCSI initiators use our target, in a virtual machine whose kernel
// has theirs: open-iscsi with the kernel's iscsi_tcp, and with its ib_iser over soft-iWARP; libiscsi's iSER; multipath-tools.
// And it judges soft-iWARP there by the command that is for that.
package initiators

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/integration/vm"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/scsi/lu"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// vmVar names the directory with the virtual machine; make interop sets it. insideVar is set in the
// machine, and serveVar, with the target's file, in the process that is the target there.
const (
	vmVar     = "IRONWARP_VM_CACHE"
	insideVar = "IRONWARP_INSIDE"
	serveVar  = "IRONWARP_SERVE"
)

const (
	targetName    = "iqn.2026-01.org.ironwarp:disk"
	initiatorName = "iqn.2026-01.org.ironwarp:initiator"
	portal        = "10.9.0.2:3260"
	secondPortal  = "10.9.1.2:3260"
	diskSize      = 64 << 20
)

// machineTime bounds a test in the machine.
const machineTime = 18 * time.Minute

func TestMain(m *testing.M) {
	if files := os.Getenv(serveVar); files != "" {
		if err := serve(filepath.SplitList(files)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if file := os.Getenv(nvmeVar); file != "" {
		if err := serveNVMe(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(liarVar) != "" {
		lie()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// kinds are what the units of serve are like, in the order of their numbers.
var kinds = [...]lu.Config{{}, {Removable: true, BlockSize: 4096}, {ReadOnly: true}}

// serve is the target: a unit for each file, one port for RDMA and for TCP.
func serve(files []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d := &lu.Device{}
	for i, file := range files {
		cfg := kinds[i]
		st, err := backing.Open(file, backing.Options{ReadOnly: cfg.ReadOnly})
		if err != nil {
			return err
		}
		defer st.Close()
		cfg.Medium = st
		u, err := lu.New(cfg)
		if err != nil {
			return err
		}
		if err := d.Add(uint16(i), u); err != nil {
			return err
		}
	}
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	cfg := target.Config{Logger: log}
	if len(files) > 1 {
		cfg.Ping = -1 // libiscsi's suite sleeps for longer than a ping waits
	}
	srv := target.NewServer(cfg)
	if err := srv.Add(&target.Target{Name: targetName, Device: d}); err != nil {
		return err
	}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return err
	}
	defer dev.Close()
	ulp, err := dev.NewULP("iscsi", verbs.ULPConfig{})
	if err != nil {
		return err
	}
	served := make(chan error)
	for _, at := range []netip.AddrPort{netip.MustParseAddrPort(portal), netip.MustParseAddrPort(secondPortal)} {
		ln, err := dev.Listen(ctx, at, verbs.ListenConfig{
			Transport: &transport.Config{Protector: transport.Plaintext(log, at.Addr().Prev())}, Streaming: true,
			OnFailed: func(f transport.Flow, err error) { log.Info("a stream does not start", "flow", f, "error", err) },
		})
		if err != nil {
			return err
		}
		go func() { served <- srv.ServeRDMA(ctx, ln, ulp) }()
	}
	return errors.Join(<-served, <-served)
}

const script = `
set -e
modprobe -a veth siw rdma_ucm ib_uverbs ib_iser iscsi_tcp sd_mod ext4 crc32c_generic
mkdir -p /etc/iscsi
echo InitiatorName=%s >/etc/iscsi/initiatorname.iscsi
ip netns add B
for n in 0 1; do
	ip link add va$n type veth peer name vb$n netns B
	ip addr add 10.9.$n.1/24 dev va$n
	ip -n B addr add 10.9.$n.2/24 dev vb$n
	ip link set va$n up
	ip -n B link set vb$n up
done
ip -n B link set lo up
rdma link add siwa type siw netdev va0
ulimit -l unlimited # siw does not ask whether it is root
iscsid -f >/run/iscsid.log 2>&1 &
%s
cd %s
exec %s -test.v -test.timeout %s -test.run '^%s$'
`

// inMachine runs the calling test in the virtual machine, with some variables of the environment, and returns what was
// printed there. It returns false there.
func inMachine(t *testing.T, variables ...string) (output string, ran bool) {
	t.Helper()
	return inMachineLike(t, vm.Options{Memory: 2048}, variables...)
}

// inMachineLike is inMachine with another machine.
func inMachineLike(t *testing.T, o vm.Options, variables ...string) (output string, ran bool) {
	t.Helper()
	if os.Getenv(insideVar) != "" {
		return "", false
	}
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("it needs a virtual machine whose kernel has iSCSI: set %s to the directory of make interop's", vmVar)
	}
	if _, err := exec.LookPath("iscsiadm"); err != nil {
		t.Skipf("needs open-iscsi: %v", err)
	}
	limit := machineTime
	if os.Getenv(suiteVar) != "" {
		limit = 40 * time.Minute
	}
	environment := "export " + insideVar + "=1"
	for _, name := range variables {
		environment += fmt.Sprintf(" %s='%s'", name, os.Getenv(name))
	}
	o.Timeout = limit + time.Minute
	return vm.RunTest(t, cache, o, func(here, self string) string {
		return fmt.Sprintf(script, initiatorName, environment, here, self, limit, t.Name())
	}), true
}

// scene is the target in a process and a network namespace of its own.
type scene struct {
	t    *testing.T
	file string // of the first unit
	cmd  *exec.Cmd
}

// newScene starts a target with so many units, each like its kind.
func newScene(t *testing.T, units int) *scene {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &scene{t: t, file: "/dev/shm/disk"}
	files := make([]string, units)
	for i := range files {
		files[i] = s.file
		if i > 0 {
			files[i] += fmt.Sprint(i)
		}
		if err := errors.Join(os.WriteFile(files[i], nil, 0o600), os.Truncate(files[i], diskSize)); err != nil {
			t.Fatal(err)
		}
	}
	s.cmd = exec.Command("ip", "netns", "exec", "B", self)
	s.cmd.Env = append(os.Environ(), serveVar+"="+strings.Join(files, string(filepath.ListSeparator)))
	s.cmd.Stdout, s.cmd.Stderr = t.Output(), t.Output()
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	s.run("sh", "-c", "until ip netns exec B cat /proc/net/tcp | grep -q ':0CBC 00000000:0000 0A'; do :; done")
	return s
}

// stop ends the target.
func (s *scene) stop() {
	if s.cmd.ProcessState != nil {
		return
	}
	s.cmd.Process.Signal(syscall.SIGTERM)
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the target: %v", err)
	}
}

// run runs a program, which has to succeed, and returns what it says.
func (s *scene) run(name string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		dmesg, _ := exec.Command("sh", "-c", "dmesg | tail -n 30; tail -n 20 /run/iscsid.log").Output()
		s.t.Fatalf("%s %v: %v\n%s\n%s", name, args, err, out, dmesg)
	}
	return string(out)
}

// login has the kernel log in by an interface of open-iscsi, default (TCP) or iser, and returns the disk.
func (s *scene) login(iface string, settings ...string) string {
	s.t.Helper()
	s.loginAt(portal, iface, settings...)
	return "/dev/" + strings.TrimSpace(s.run("sh", "-c", "until ls /sys/class/iscsi_session/*/device/target*/*/block/* >/dev/null 2>&1; do :; done; basename $(dirname $(ls -d /sys/class/iscsi_session/*/device/target*/*/block/sd*/size))"))
}

// loginAt is login at a portal.
func (s *scene) loginAt(at, iface string, settings ...string) {
	s.t.Helper()
	s.run("iscsiadm", "-m", "node", "-o", "new", "-T", targetName, "-p", at, "-I", iface)
	s.t.Cleanup(func() { exec.Command("iscsiadm", "-m", "node", "--logoutall=all").Run() }) // if the test has failed
	// I/O of a connection that was lost while the machine stood still waits for the next one.
	for _, kv := range append([]string{"node.session.timeo.replacement_timeout=120", "node.session.initial_login_retry_max=2", "node.conn[0].timeo.login_timeout=15"}, settings...) {
		name, value, _ := strings.Cut(kv, "=")
		s.run("iscsiadm", "-m", "node", "-T", targetName, "-p", at, "-I", iface, "-o", "update", "-n", name, "-v", value)
	}
	s.run("iscsiadm", "-m", "node", "-T", targetName, "-p", at, "-I", iface, "--login")
}

func (s *scene) logout(iface string) {
	s.t.Helper()
	s.run("iscsiadm", "-m", "node", "-T", targetName, "-p", portal, "-I", iface, "--logout")
	s.run("iscsiadm", "-m", "node", "-T", targetName, "-p", portal, "-I", iface, "-o", "delete")
}

// use has a file system made, filled and verified, and then the disk itself.
func (s *scene) use(disk string) {
	s.t.Helper()
	if vendor := s.run("cat", "/sys/block/"+filepath.Base(disk)+"/device/vendor"); !strings.Contains(vendor, "IronWarp") {
		s.t.Fatalf("another disk: %s", vendor)
	}
	dir := s.t.TempDir()
	s.run("mkfs.ext4", "-q", "-F", disk)
	s.run("mount", disk, dir)
	s.run("fio", "--name=files", "--directory="+dir, "--size=4m", "--nrfiles=4", "--rw=randwrite", "--bsrange=512-256k", "--blockalign=512", "--direct=1", "--ioengine=libaio",
		"--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--minimal", "--output=/dev/null")
	s.run("umount", dir)
	s.run("fsck.ext4", "-fn", disk)
	s.run("fio", "--name=disk", "--filename="+disk, "--size=8m", "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=libaio",
		"--iodepth=32", "--verify=crc32c", "--verify_fatal=1", "--minimal", "--output=/dev/null")
	s.run("fio", "--name=large", "--filename="+disk, "--size=16m", "--rw=write", "--bs=1m", "--direct=1", "--ioengine=libaio",
		"--iodepth=4", "--verify=crc32c", "--verify_fatal=1", "--minimal", "--output=/dev/null")
	s.run("cmp", disk, s.file)
}

// TestKernelISER: Linux' ib_iser over soft-iWARP finds the target, logs in, and what it writes is what it
// reads, and what is in the file.
func TestKernelISER(t *testing.T) {
	t.Attr("row", "ib_iser finds the target, logs in with RDMAExtensions=Yes in RDMA mode, and reads what it has written")
	if _, ran := inMachine(t); ran {
		return
	}
	s := newScene(t, 1)
	s.run("iscsiadm", "-m", "discoverydb", "-t", "st", "-p", portal, "-I", "iser", "-o", "new")
	s.run("iscsiadm", "-m", "discoverydb", "-t", "st", "-p", portal, "-I", "iser", "-o", "update", "-n", "discovery.sendtargets.use_discoveryd", "-v", "No")
	if found := s.run("iscsiadm", "-m", "discovery", "-t", "st", "-p", portal, "-I", "iser"); !strings.Contains(found, targetName) {
		t.Errorf("discovery finds %q", found)
	}
	s.use(s.login("iser"))
	t.Log(s.run("iscsiadm", "-m", "session", "-P", "2"))
	s.logout("iser")
	s.stop()
}

// TestKernelTCP: the kernel's iscsi_tcp with digests, at the same port.
func TestKernelTCP(t *testing.T) {
	t.Attr("row", "iscsi_tcp logs in with header and data digests, and reads what it has written")
	if _, ran := inMachine(t); ran {
		return
	}
	s := newScene(t, 1)
	s.use(s.login("default", "node.conn[0].iscsi.HeaderDigest=CRC32C", "node.conn[0].iscsi.DataDigest=CRC32C"))
	s.logout("default")
	s.stop()
}
