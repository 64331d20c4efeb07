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
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/integration/vm"
	"github.com/ironwarp/ironwarp/nvme/target"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const (
	subsystemNQN = "nqn.2026-01.org.ironwarp:disk"
	nvmePortal   = "10.9.0.2:4420"
	// nvmeVar is set, with the namespace's file, in the process that is the target. SIGHUP has it look at the size of
	// the file.
	nvmeVar = "IRONWARP_SERVE_NVME"
	// nvmeHosts are the identities of two hosts, as options of nvme connect.
	nvmeHost  = "--hostnqn=nqn.2014-08.org.nvmexpress:uuid:11111111-1111-4111-8111-111111111111 --hostid=11111111-1111-4111-8111-111111111111"
	nvmeOther = "hostnqn=nqn.2014-08.org.nvmexpress:uuid:22222222-2222-4222-8222-222222222222,hostid=22222222-2222-4222-8222-222222222222"
)

// serveNVMe is the target: one subsystem with one namespace.
func serveNVMe(file string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	st, err := backing.Open(file, backing.Options{})
	if err != nil {
		return err
	}
	defer st.Close()
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
	srv := target.NewServer(target.Config{Logger: log})
	ns, err := target.NewNamespace(target.NamespaceConfig{Medium: st, Reservations: file + ".reservations"})
	if err != nil {
		return err
	}
	if err := errors.Join(srv.Set(target.Subsystem{NQN: subsystemNQN, Serial: "1"}), srv.Attach(subsystemNQN, 1, ns)); err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	go func() {
		for range hup {
			if _, err := st.Grow(); err != nil {
				log.Error("cannot grow", "error", err)
			}
			srv.Resized(subsystemNQN, 1)
		}
	}()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		return err
	}
	defer dev.Close()
	ulp, err := dev.NewULP("nvme", verbs.ULPConfig{})
	if err != nil {
		return err
	}
	at := netip.MustParseAddrPort(nvmePortal)
	ln, err := dev.Listen(ctx, at, verbs.ListenConfig{
		Transport: &transport.Config{Protector: transport.Plaintext(log, at.Addr().Prev())},
		OnFailed:  func(f transport.Flow, err error) { log.Info("a stream does not start", "flow", f, "error", err) },
	})
	if err != nil {
		return err
	}
	return srv.Serve(ctx, ln, ulp)
}

const nvmeScript = `
set -e
modprobe nvme_core multipath=0 # two hosts are in this one kernel, which would take them for two paths
modprobe -a veth siw rdma_ucm ib_uverbs nvme_rdma ext4 crc32c_generic
ip netns add B
ip link add va0 type veth peer name vb0 netns B
ip addr add 10.9.0.1/24 dev va0
ip -n B addr add 10.9.0.2/24 dev vb0
ip link set va0 up
ip -n B link set vb0 up
ip -n B link set lo up
rdma link add siwa type siw netdev va0
ulimit -l unlimited
export %s=1
cd %s
exec %s -test.v -test.timeout %s -test.run '^%s$'
`

// nvmeScene is the target in a process and a network namespace of its own, and Linux' host.
type nvmeScene struct{ scene }

func newNVMeScene(t *testing.T) *nvmeScene {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &nvmeScene{scene{t: t, file: "/dev/shm/disk"}}
	if err := errors.Join(os.WriteFile(s.file, nil, 0o600), os.Truncate(s.file, diskSize)); err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command("ip", "netns", "exec", "B", self)
	s.cmd.Env = append(os.Environ(), nvmeVar+"="+s.file)
	s.cmd.Stdout, s.cmd.Stderr = t.Output(), t.Output()
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("sh", "-c", "dmesg | grep -i -E 'nvme|siw' | tail -n 40").Output()
			t.Logf("%s", out)
		}
		s.stop()
	})
	s.run("sh", "-c", "until ip netns exec B cat /proc/net/tcp | grep -q ':1144 00000000:0000 0A'; do :; done")
	return s
}

// nvme runs nvme-cli.
func (s *nvmeScene) nvme(line string) string {
	s.t.Helper()
	return s.run("nvme", strings.Fields(line)...)
}

// keepAlive is the keep alive timeout in seconds, so that a machine that stands still for a while ends no controller: commands
// of nvme-cli to one that is connected again fail.
const keepAlive = 60

// connect connects the first host, and returns the disk that has come.
func (s *nvmeScene) connect(keepAlive int) string {
	s.t.Helper()
	return s.comes(func() {
		s.nvme(fmt.Sprintf("connect -t rdma -a 10.9.0.2 -s 4420 -n %s -i 2 -k %d -c 1 %s", subsystemNQN, keepAlive, nvmeHost))
	})
}

// connectOther connects the other host, for which nvme-cli takes the connection of the first.
func (s *nvmeScene) connectOther() string {
	s.t.Helper()
	return s.comes(func() {
		s.run("sh", "-c", fmt.Sprintf("exec 3<>/dev/nvme-fabrics && echo transport=rdma,traddr=10.9.0.2,trsvcid=4420,nqn=%s,nr_io_queues=1,keep_alive_tmo=%d,%s >&3 && cat <&3", subsystemNQN, keepAlive, nvmeOther))
	})
}

// comes returns the disk that comes by a connection.
func (s *nvmeScene) comes(connect func()) string {
	s.t.Helper()
	before := s.run("sh", "-c", "ls /sys/class/nvme 2>/dev/null || true")
	connect()
	for _, name := range strings.Fields(s.run("ls", "/sys/class/nvme")) {
		if !strings.Contains(" "+strings.Join(strings.Fields(before), " ")+" ", " "+name+" ") {
			s.t.Cleanup(func() { exec.Command("nvme", "disconnect", "-d", name).Run() }) // if the test has failed
			return s.disk(name)
		}
	}
	s.t.Fatal("there is no controller")
	return ""
}

// disk is the block device of a controller.
func (s *nvmeScene) disk(controller string) string {
	s.t.Helper()
	return "/dev/" + strings.TrimSpace(s.run("sh", "-c", fmt.Sprintf("until ls -d /sys/class/nvme/%s/nvme*n* >/dev/null 2>&1; do :; done; basename /sys/class/nvme/%s/nvme*n* | sed s/c[0-9]*n/n/", controller, controller)))
}

// TestNVMe: Linux' nvme-rdma over soft-iWARP finds the subsystem and attaches its namespace; what it writes is what it
// reads and what is in the file, also while its cable is cut; it sees the namespace grow, and a reservation keeps
// another host from writing.
func TestNVMe(t *testing.T) {
	t.Attr("row", "nvme-rdma: `nvme discover`, `nvme connect -t rdma`, a file system and fio verified, also while the cable is cut; the namespace grows; reservations of two hosts; `nvme disconnect`")
	if os.Getenv(insideVar) == "" {
		cache := os.Getenv(vmVar)
		if cache == "" {
			t.Skipf("it needs a virtual machine whose kernel has nvme-rdma: set %s to the directory of make interop's", vmVar)
		}
		if _, err := exec.LookPath("nvme"); err != nil {
			t.Skipf("needs nvme-cli: %v", err)
		}
		vm.RunTest(t, cache, vm.Options{Memory: 2048, Timeout: machineTime + time.Minute}, func(here, self string) string {
			return fmt.Sprintf(nvmeScript, insideVar, here, self, machineTime, t.Name())
		})
		return
	}
	s := newNVMeScene(t)
	if found := s.nvme("discover -t rdma -a 10.9.0.2 -s 4420 " + nvmeHost); !strings.Contains(found, subsystemNQN) || !strings.Contains(found, "iwarp") {
		t.Errorf("discovery finds %s", found)
	}
	disk := s.connect(keepAlive)
	for _, line := range []string{"id-ctrl ", "id-ns ", "ns-descs ", "smart-log ", "error-log ", "fw-log ", "effects-log ", "changed-ns-list-log ", "get-feature -f 7 "} {
		if out, err := exec.Command("nvme", strings.Fields(line+disk)...).CombinedOutput(); err != nil {
			t.Errorf("nvme %s: %v: %s", line, err, out)
		}
	}
	s.useNVMe(disk)
	s.reservations(disk)
	s.grow(disk)
	s.nvme("disconnect -n " + subsystemNQN)
	s.cut(s.connect(5))
	s.nvme("disconnect -n " + subsystemNQN)
	s.stop()
}

// useNVMe has a file system made, filled and verified, and then the disk itself.
func (s *nvmeScene) useNVMe(disk string) {
	s.t.Helper()
	dir := s.t.TempDir()
	s.run("mkfs.ext4", "-q", "-F", disk)
	s.run("mount", disk, dir)
	s.run("fio", "--name=files", "--directory="+dir, "--size=4m", "--nrfiles=4", "--rw=randwrite", "--bsrange=512-256k", "--blockalign=512", "--direct=1", "--ioengine=libaio",
		"--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--minimal", "--output=/dev/null")
	s.run("fstrim", dir)
	s.run("umount", dir)
	s.run("fsck.ext4", "-fn", disk)
	s.run("fio", "--name=disk", "--filename="+disk, "--size=8m", "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=libaio",
		"--iodepth=32", "--verify=crc32c", "--verify_fatal=1", "--minimal", "--output=/dev/null")
	s.run("fio", "--name=large", "--filename="+disk, "--size=16m", "--rw=write", "--bs=1m", "--direct=1", "--ioengine=libaio",
		"--iodepth=4", "--verify=crc32c", "--verify_fatal=1", "--minimal", "--output=/dev/null")
	s.run("blkdiscard", "--zeroout", "--offset", "1048576", "--length", "1048576", disk)
	s.run("blkdiscard", "--offset", "4194304", "--length", "4194304", disk)
	s.run("cmp", disk, s.file)
}

// reservations has two hosts register, and one reserve.
func (s *nvmeScene) reservations(disk string) {
	s.t.Helper()
	other := s.connectOther()
	s.nvme("resv-register " + disk + " -n 1 --nrkey=0xa --rrega=0")
	s.nvme("resv-register " + other + " -n 1 --nrkey=0xb --rrega=0")
	s.nvme("resv-acquire " + disk + " -n 1 --crkey=0xa --rtype=1 --racqa=0")
	if out, err := exec.Command("dd", "if=/dev/zero", "of="+other, "bs=4k", "count=1", "oflag=direct").CombinedOutput(); err == nil {
		s.t.Errorf("another host writes in spite of a reservation: %s", out)
	}
	s.run("dd", "if="+other, "of=/dev/null", "bs=4k", "count=1", "iflag=direct")
	if report := s.nvme("resv-report " + disk + " -n 1 -e"); !regexp.MustCompile(`(?m)^regctl\s*: 2$`).MatchString(report) {
		s.t.Errorf("the report: %s", report)
	}
	s.nvme("resv-acquire " + other + " -n 1 --crkey=0xb --prkey=0xa --rtype=1 --racqa=2")
	s.run("dd", "if=/dev/zero", "of="+other, "bs=4k", "count=1", "oflag=direct")
	if out, err := exec.Command("dd", "if=/dev/zero", "of="+disk, "bs=4k", "count=1", "oflag=direct").CombinedOutput(); err == nil {
		s.t.Errorf("a host that was preempted writes: %s", out)
	}
	s.nvme("resv-release " + other + " -n 1 --crkey=0xb --rtype=1 --rrela=1")
	s.nvme("disconnect -d " + strings.TrimSuffix(filepath.Base(other), "n1"))
}

// grow makes the file longer, which the host is told.
func (s *nvmeScene) grow(disk string) {
	s.t.Helper()
	if err := os.Truncate(s.file, diskSize+16<<20); err != nil {
		s.t.Fatal(err)
	}
	s.run("sh", "-c", fmt.Sprintf("kill -HUP $(pgrep -P %d || echo %d)", s.cmd.Process.Pid, s.cmd.Process.Pid))
	s.run("timeout", "60", "sh", "-c", fmt.Sprintf("until [ $(cat /sys/block/%s/size) = %d ]; do :; done", filepath.Base(disk), (diskSize+16<<20)/512))
}

// cut takes the cable away while fio writes and verifies, for longer than the keep alive timeout and for less.
func (s *nvmeScene) cut(disk string) {
	s.t.Helper()
	fio := exec.CommandContext(s.t.Context(), "fio", "--name=cut", "--filename="+disk, "--size=8m", "--rw=randwrite", "--bs=4k", "--direct=1", "--ioengine=libaio",
		"--iodepth=16", "--verify=crc32c", "--verify_fatal=1", "--time_based", "--runtime=60", "--verify_backlog=64")
	out, err := os.Create(filepath.Join(s.t.TempDir(), "fio"))
	if err != nil {
		s.t.Fatal(err)
	}
	fio.Stdout, fio.Stderr = out, out
	if err := fio.Start(); err != nil {
		s.t.Fatal(err)
	}
	for _, seconds := range []string{"2", "12"} {
		s.run("sh", "-c", "sleep 5; ip -n B link set vb0 down; sleep "+seconds+"; ip -n B link set vb0 up")
	}
	if err := fio.Wait(); err != nil {
		b, _ := os.ReadFile(out.Name())
		s.t.Errorf("fio: %v\n%s", err, b)
	}
	s.run("sync")
	s.run("cmp", disk, s.file)
}
