package newcomer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/device"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/machine"
	"github.com/ironwarp/ironwarp/integration/vm"
)

// vmVar names the directory with the virtual machine; make interop sets it. In the
// virtual machine installedVar names what make install has installed.
const (
	vmVar        = "IRONWARP_VM_CACHE"
	installedVar = "IRONWARP_INSTALLED"
)

const insideScript = `
set -e
cd %s
mkdir -p /run/tmp
mount -t cgroup2 cgroup2 /sys/fs/cgroup
modprobe -a veth bridge tun xfrm_user nbd esp4 xfrm4_tunnel authenc seqiv echainiv gcm ghash_clmulni_intel aesni_intel hmac sha256_generic ext4
export TMPDIR=/run/tmp %s=%s %s=%s
exec %s -test.v -test.run '^TestMountedDisk$'
`

// installs finds the packages that README installs.
var installs = regexp.MustCompile(`apt-get install -y ([a-z0-9 -]+)`)

// TestMountedDisk follows README's two hosts in a virtual machine, whose kernel has ESP
// and nbd, to a file system on a disk of the other host's: systemd, strongSwan and
// IronWarp start as their packages' units. It stays mounted while either daemon is
// restarted, and is mounted again after alpha has been rebooted, and after its power was
// cut and it boots before beta's daemon. There is no network inside, so README's packages
// are in the machines from the start; and as emulated processors take long to build the
// program, it is built outside.
func TestMountedDisk(t *testing.T) {
	if root := os.Getenv(rootVar); root != "" {
		// The kernel's nbd answers in the first network namespace only.
		mounted(t, machine.StartIn(t, lab.Start(t, lab.Config{NoCharon: true, First: "alpha"}), root))
		return
	}
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("make interop mounts a disk in a virtual machine; set %s to the directory of its own to do it here", vmVar)
	}
	t.Attr("row", "README's two hosts with systemd, to the letter: a file system on `attach --device` is written and read, with new certificates too; it stays mounted over restarts of both daemons, and `_netdev` mounts it at boot, after a shutdown and a power cut, with the peer away as well")
	root := mountedRoot(t)
	installed := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "make", "-C", top, "--no-print-directory", "install", "DESTDIR="+installed).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	vm.RunTest(t, cache, vm.Options{Timeout: 19 * time.Minute, Memory: 3072}, func(here, self string) string {
		return fmt.Sprintf(insideScript, quote(here), rootVar, quote(root), installedVar, quote(installed), quote(self))
	})
}

// mountedRoot is the file system of the two machines, with README's packages and what every
// machine has that mounts disks.
func mountedRoot(t *testing.T) string {
	packages := append(slices.Clone(bare), "udev") // without it no mount waits for its device
	for _, b := range of(readme(t), "Two hosts by hand") {
		for _, m := range installs.FindAllStringSubmatch(strings.Join(b.commands, "\n"), -1) {
			packages = append(packages, strings.Fields(m[1])...)
		}
	}
	root, err := filepath.Abs(machine.Root(t, filepath.Join(top, ".cache/machine"), packages, "r=$1\nmkdir -p \"$r/root/.ssh\"\n"+trust))
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// mounted follows README and uses the file system that it has mounted.
func mounted(t *testing.T, all []*machine.Machine) {
	at := named(t, all)
	tree, err := exec.Command("tar", "-C", os.Getenv(installedVar), "-c", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if _, err := m.RunWith(t.Context(), tree, "mkdir /srv/installed; tar -xC /srv/installed"); err != nil {
			t.Fatal(err)
		}
	}
	d := &mountedDisk{t, at["alpha"], at["beta"]}
	t.Cleanup(d.unplug)
	files := false
	for _, b := range of(readme(t), "Two hosts by hand") {
		on, err := b.hosts()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range on {
			begin := time.Now()
			follow(t, at[name], unbuilt(t, b.commands))
			t.Logf("it took %v", time.Since(begin).Round(time.Second))
		}
		if !files && strings.Contains(strings.Join(b.commands, "\n"), "mount ") {
			files = true
			d.write("before")
		}
	}
	if !files {
		t.Fatal("README mounts nothing")
	}
	d.write("certified")

	for _, m := range all {
		m.Must(t, "systemctl restart ironwarp")
		d.write("restarted-" + m.Host.Name())
	}
	d.alpha.ShutDown(t)
	if out := d.beta.Must(t, "dumpe2fs -h /srv/docs.img"); strings.Contains(out, "needs_recovery") {
		t.Errorf("the shutdown has not unmounted the disk:\n%s", out)
	}
	d.unplug()
	d.alpha.Boot(t)
	d.check("after a boot")
	d.write("booted")

	d.alpha.CutPower(t, d.unplug)
	d.beta.Must(t, "systemctl stop ironwarp")
	d.alpha.PowerOn(t)
	d.alpha.Eventually(t, "test $(systemctl show -P ActiveState ironwarp) = activating; test -S /run/ironwarp/ironwarp.sock; ironwarp ls | grep docs")
	if out, err := d.alpha.Run(t.Context(), "mountpoint -q /mnt"); err == nil {
		t.Errorf("mounted without its disk: %s", out)
	}
	d.beta.Must(t, "systemctl start ironwarp")
	d.alpha.Eventually(t, "mountpoint -q /mnt")
	d.check("after a power cut, with the peer away")
	d.write("cut")

	d.alpha.Must(t, "umount /mnt; ironwarp detach beta/docs")
	for _, sum := range d.sums() {
		out := d.beta.Must(t, "e2fsck -fn /srv/docs.img >&2; debugfs -R 'cat /"+sum[1]+"' /srv/docs.img 2>/dev/null | sha256sum")
		if !strings.Contains(out, sum[0]) {
			t.Errorf("beta's disk has another file %q than alpha has written: %q, want %s", sum[1], out, sum[0])
		}
	}
	for _, m := range all {
		m.Must(t, "systemctl is-active ironwarp strongswan; test $(systemctl show -P NRestarts ironwarp) = 0")
	}
}

// mountedDisk is beta's disk in alpha's /mnt.
type mountedDisk struct {
	t           *testing.T
	alpha, beta *machine.Machine
}

// write writes a file to the disk, notes its sum, and checks it and those before.
func (d *mountedDisk) write(name string) {
	d.t.Helper()
	d.alpha.Must(d.t, "mountpoint -q /mnt; cd /mnt; dd if=/dev/urandom of="+name+" bs=1M count=2 status=none; sync; sha256sum "+name+" >>/root/sums; echo 1 >/proc/sys/vm/drop_caches")
	d.check("with " + name)
}

// check tells whether alpha finds on the disk what it has written.
func (d *mountedDisk) check(when string) {
	d.t.Helper()
	if out, err := d.alpha.Run(d.t.Context(), "mountpoint /mnt; cd /mnt; sha256sum --quiet -c /root/sums"); err != nil {
		state, _ := d.alpha.Run(d.t.Context(), "systemctl --no-pager --failed; systemctl --no-pager list-units --all -t device,mount; udevadm info /dev/nbd0; journalctl --no-pager -n 40 -u mnt.mount -u 'systemd-fsck@*' -u ironwarp; ironwarp ls; ls -l /dev/disk/by-ironwarp")
		d.t.Fatalf("%s: %v %s\n%s", when, err, out, state)
	}
}

// sums are what write has noted, each a sum and a name.
func (d *mountedDisk) sums() (all [][]string) {
	for line := range strings.Lines(d.alpha.Must(d.t, "cat /root/sums")) {
		all = append(all, strings.Fields(line))
	}
	return all
}

// unplug takes from the kernel what a machine that is off has not got any more: its devices
// and its SAs.
func (d *mountedDisk) unplug() {
	if err := device.Kernel().Remove("beta-docs"); err != nil {
		d.t.Error(err)
	}
	for _, of := range []string{"state", "policy"} {
		if out, err := exec.Command("ip", "-n", d.alpha.Host.Namespace(), "xfrm", of, "flush").CombinedOutput(); err != nil {
			d.t.Errorf("%v: %s", err, out)
		}
	}
}

// unbuilt installs what was built outside instead of building the clone.
func unbuilt(t *testing.T, commands []string) []string {
	commands = slices.Clone(commands)
	for i, c := range commands {
		if strings.Contains(c, "git clone ") && strings.HasSuffix(c, "make install") || c == "cd ironwarp && make rdma install" {
			commands[i] = "cp -a --remove-destination /srv/installed/. /"
			t.Logf("%s, in place of %s", commands[i], c)
		}
	}
	return commands
}
