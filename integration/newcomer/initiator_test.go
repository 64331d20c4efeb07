package newcomer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/integration/vm"
)

// In the virtual machine insideVar is set, and binaryVar names the program.
const (
	insideVar = "IRONWARP_INSIDE"
	binaryVar = "IRONWARP_BINARY"
)

const initiatorScript = `
set -e
cd %s
mount --make-rshared /
mkdir -p /etc/iscsi
echo InitiatorName=iqn.2026-01.org.example:alpha >/etc/iscsi/initiatorname.iscsi
modprobe -a iscsi_tcp sd_mod sg ext4 crc32c_generic veth bridge tun nf_tables xfrm_user esp4 xfrm4_tunnel authenc seqiv echainiv gcm ghash_clmulni_intel aesni_intel hmac sha256_generic
/lib/systemd/systemd-udevd --daemon
export %s=1 %s=%s
exec %s -test.v -test.run '^TestDiskForAnyInitiator$'
`

// TestDiskForAnyInitiator follows README's section of that name to the letter, but for the packages, which are there, and
// the addresses: Linux' open-iscsi on alpha finds beta's target, logs in and has a file system on its disk, in ESP. What
// was written is still there after beta's SAs were deleted, its strongSwan and its daemon killed, and alpha has logged in
// anew with CHAP. sg3-utils reserve the disk and unmap blocks of it.
func TestDiskForAnyInitiator(t *testing.T) {
	if os.Getenv(insideVar) != "" {
		newInitiatorScene(t).run(t)
		return
	}
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("make interop has the kernel's initiator log in in a virtual machine; set %s to the directory of its own to do it here", vmVar)
	}
	for _, tool := range []string{"iscsiadm", "sg_persist"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs open-iscsi and sg3-utils: %v", err)
		}
	}
	t.Attr("row", "README's disk for any iSCSI initiator, to the letter: open-iscsi's discovery, login, a file system, in ESP; CHAP, persistent reservations and UNMAP by sg3-utils; fio verifies while SAs are deleted, and charon and the daemon are killed")
	binary, err := node.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	vm.RunTest(t, cache, vm.Options{Timeout: 14 * time.Minute, Memory: 2048}, func(here, self string) string {
		return fmt.Sprintf(initiatorScript, quote(here), insideVar, binaryVar, quote(binary), quote(self))
	})
}

// initiatorScene is beta with a disk, and alpha, whose kernel is the machine's.
type initiatorScene struct {
	alpha, beta *node.Node
	image       string
	wire        *lab.Capture
}

func newInitiatorScene(t *testing.T) *initiatorScene {
	l, binary := lab.Start(t, lab.Config{First: "alpha"}), os.Getenv(binaryVar)
	s := &initiatorScene{alpha: node.New(l.Host("alpha"), binary), beta: node.New(l.Host("beta"), binary)}
	for _, n := range []*node.Node{s.alpha, s.beta} {
		t.Cleanup(func() {
			if err := n.Stop(); err != nil {
				t.Error(err)
			}
			if t.Failed() {
				t.Logf("the daemon of %s:\n%s", n.Name(), n.LogTail(8000))
			}
		})
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if s.wire, err = s.alpha.Capture(t.Context(), lab.CaptureOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := node.Join(t.Context(), s.alpha, s.beta, "--iscsi-port", "3260"); err != nil {
		t.Fatal(err)
	}
	// alpha's /run is its own: udev is this machine's.
	udev := filepath.Join(s.alpha.RunDir(), "udev")
	if err := errors.Join(os.Mkdir(udev, 0o755), os.Mkdir(filepath.Join(s.alpha.RunDir(), "lock"), 0o755)); err != nil {
		t.Fatal(err)
	}
	s.command(t, "mount --bind /run/udev "+udev)
	t.Cleanup(func() { s.command(t, "umount "+udev) })
	s.image = filepath.Join(s.beta.Dir(), "disk.img")
	s.command(t, "truncate -s 64M "+s.image)
	return s
}

// command runs a script in the machine, which is also alpha.
func (s *initiatorScene) command(t *testing.T, script string) {
	t.Helper()
	if out, err := exec.Command("sh", "-ec", script).CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", script, err, out)
	}
}

// on runs commands on a host.
func (s *initiatorScene) on(t *testing.T, n *node.Node, commands ...string) string {
	t.Helper()
	script := strings.Join(commands, "\n")
	if !strings.Contains(script, "auth.password") {
		t.Logf("%s# %s", n.Name(), script)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	out, err := n.Run(ctx, "bash", "-ec", "ironwarp() { \"$"+binaryVar+"\" \"$@\"; }\n"+script)
	if err != nil {
		log, _ := exec.Command("sh", "-c", "dmesg | tail -n 20; ls -l /dev/disk/by-path").CombinedOutput()
		t.Fatalf("%v\n%s", err, log)
	}
	return out
}

func (s *initiatorScene) run(t *testing.T) {
	daemon := s.alpha.Command(t.Context(), "iscsid", "-f")
	daemon.Stdout, daemon.Stderr = t.Output(), t.Output()
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if t.Failed() { // what still waits for the disk would keep the machine from its end
			_, _ = s.alpha.Run(context.Background(), "iscsiadm", "-m", "node", "--logoutall=all")
		}
		_ = daemon.Process.Kill()
		_ = daemon.Wait()
	}()
	blocks := of(readme(t), "A disk for any iSCSI initiator")
	if len(blocks) != 2 {
		t.Fatalf("README has %d blocks of commands there, where beta's and alpha's are looked for", len(blocks))
	}
	here := strings.NewReplacer("192.0.2.2", s.beta.Addr().String(), "/srv/disk.img", s.image, "apt-get ", ": apt-get ")
	var commands [2][]string
	for i, b := range blocks {
		for _, c := range b.commands {
			commands[i] = append(commands[i], here.Replace(c))
		}
	}
	s.on(t, s.beta, commands[0]...)
	sums := filepath.Join(s.alpha.Dir(), "sums")
	s.on(t, s.alpha, append(commands[1], "dd if=/dev/urandom of=/mnt/file bs=64k count=8 status=none", "sha256sum /mnt/file >"+sums, "umount /mnt")...)
	disk := "/dev/disk/by-path/ip-" + s.beta.Addr().String() + ":3260-iscsi-iqn.2026-01.org.example:disk-lun-0"

	t.Log("sg3-utils")
	s.on(t, s.alpha,
		"sg_persist -n --out --register --param-sark=0x17 "+disk,
		"sg_persist -n --out --reserve --param-rk=0x17 --prout-type=5 "+disk,
		"sg_persist -n --in --read-reservation "+disk+" | grep -i 'key *= *0x17'",
		"sg_persist -n --out --clear --param-rk=0x17 "+disk,
		"dd if=/dev/urandom of="+disk+" bs=512 seek=120000 count=8 oflag=direct status=none",
		"sg_xcopy if="+disk+" iflag=xcopy skip=120000 of="+disk+" seek=121000 bs=512 count=8",
		`blocks() { dd if="$1" bs=512 skip="$2" count=8 iflag=direct status=none | sha256sum; }`,
		`test "$(blocks `+disk+` 120000)" = "$(blocks `+disk+` 121000)"`,
		"sg_unmap --lba=121000 --num=8 "+disk,
		`test "$(blocks `+disk+` 121000)" = "$(head -c 4096 /dev/zero | sha256sum)"`)

	t.Log("faults under verified I/O, behind the file system's blocks")
	stop := filepath.Join(s.alpha.Dir(), "stop")
	fio := s.alpha.Command(t.Context(), "bash", "-ec", "d=$(readlink -f "+disk+"); until test -e "+stop+"; do fio --name=v --filename=$d"+
		" --offset=40m --size=2m --rw=randwrite --bs=4k --direct=1 --ioengine=libaio --iodepth=8 --verify=crc32c --verify_fatal=1 --minimal --output=/dev/null; done")
	fio.Stdout, fio.Stderr = t.Output(), t.Output()
	if err := fio.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- fio.Wait() }()
	for _, f := range []struct {
		name string
		do   func() error
	}{
		{"beta deletes the SAs", func() error { return s.deleteSAs(t, s.beta, "alpha") }},
		{"alpha deletes the SAs", func() error { return s.deleteSAs(t, s.alpha, "beta") }},
		{"beta's strongSwan is killed", func() error { return s.beta.RestartCharon(t.Context()) }},
		{"beta's daemon is killed", func() error { s.beta.Kill(); return s.beta.Start(t.Context()) }},
	} {
		if err := f.do(); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		begun := time.Now()
		s.flows(t, ended)
		t.Logf("%s: I/O goes on %v later", f.name, time.Since(begun).Round(time.Second))
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("fio: %v", err)
	}
	s.on(t, s.alpha, "iscsiadm -m node --logoutall=all")

	t.Log("CHAP")
	private := "iqn.2026-01.org.example:private"
	itsDisk := strings.Replace(disk, "example:disk", "example:private", 1)
	file := filepath.Join(s.beta.Dir(), "alice.secret")
	secret := strings.TrimSpace(s.on(t, s.beta, "ironwarp target chap generate --show "+file+" | tail -n 1"))
	s.on(t, s.beta, "ironwarp target rm disk", "ironwarp target add --peer alpha --iqn "+private+" --chap-user alice --chap-secret-file "+file+" --path "+s.image+" private")
	admin := "iscsiadm -m node -T " + private + " -p " + s.beta.Addr().String()
	s.on(t, s.alpha, "iscsiadm -m discovery -t sendtargets -p "+s.beta.Addr().String(),
		"! "+admin+" --login", // who knows no secret
		admin+" -o update -n node.session.auth.authmethod -v CHAP",
		admin+" -o update -n node.session.auth.username -v alice",
		admin+" -o update -n node.session.auth.password -v wrong-wrong-wrong",
		"! "+admin+" --login")
	s.on(t, s.alpha, admin+" -o update -n node.session.auth.password -v "+secret, admin+" --login", "udevadm wait --timeout=30 "+itsDisk,
		"mount "+itsDisk+" /mnt", "sha256sum --quiet -c "+sums, "umount /mnt", "iscsiadm -m node --logoutall=all")
	counts, err := s.wire.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if n := counts.ClearTCP[config.DefaultISCSIPort]; n != 0 || counts.ESP == 0 {
		t.Errorf("%d clear packets of the port, %d of ESP", n, counts.ESP)
	}
}

// deleteSAs has a host delete its SAs with a peer. An emulated machine beside a load may take longer for that than the
// command waits; it is asked again then.
func (s *initiatorScene) deleteSAs(t *testing.T, n *node.Node, peer string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var last error
	err := node.Until(ctx, func() (bool, error) {
		_, last = n.Ironwarp(ctx, nil, "sa", "delete", peer)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	return nil
}

// flows waits until the disk has been read and written anew.
func (s *initiatorScene) flows(t *testing.T, ended <-chan error) {
	t.Helper()
	const enough = 64 << 10 // bytes
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var base uint64
	known := false
	if err := node.Until(ctx, func() (bool, error) {
		select {
		case err := <-ended:
			return false, fmt.Errorf("fio has ended: %w", err)
		default:
		}
		v, err := s.beta.Client().Target(ctx, "disk")
		if err != nil || len(v.Units) == 0 {
			return false, nil // it may be away for the moment
		}
		moved := v.Units[0].IO.ReadBytes + v.Units[0].IO.WriteBytes
		if !known || moved < base {
			base, known = moved, true
		}
		return moved >= base+enough, nil
	}); err != nil {
		t.Fatalf("no I/O: %v", err)
	}
}
