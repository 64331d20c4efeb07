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
modprobe -a veth bridge tun xfrm_user esp4 xfrm4_tunnel authenc seqiv echainiv gcm ghash_clmulni_intel aesni_intel hmac sha256_generic ext4
export TMPDIR=/run/tmp %s=%s %s=%s
exec %s -test.v -test.run '^TestMountedDisk$'
`

// installs finds the packages that README installs.
var installs = regexp.MustCompile(`apt-get install -y ([a-z0-9 -]+)`)

// TestMountedDisk follows README's two hosts in a virtual machine, whose kernel has ESP
// and nbd, to a file system on a disk of the other host's: systemd, strongSwan and
// IronWarp start as their packages' units. There is no network inside, so README's
// packages are in the machines from the start; and as emulated processors take long to
// build the program, it is built outside.
func TestMountedDisk(t *testing.T) {
	if root := os.Getenv(rootVar); root != "" {
		mounted(t, machine.StartIn(t, lab.Start(t, lab.Config{NoCharon: true}), root))
		return
	}
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("make interop mounts a disk in a virtual machine; set %s to the directory of its own to do it here", vmVar)
	}
	t.Attr("row", "README's two hosts with systemd, to the letter: a file system on the kernel's nbd is written and read, with new certificates too, and the other host's disk has it")
	root := mountedRoot(t)
	installed := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "make", "-C", top, "--no-print-directory", "install", "DESTDIR="+installed).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	vm.RunTest(t, cache, vm.Options{Timeout: 19 * time.Minute, Memory: 3072}, func(here, self string) string {
		return fmt.Sprintf(insideScript, quote(here), rootVar, quote(root), installedVar, quote(installed), quote(self))
	})
}

// mountedRoot is the file system of the two machines, with README's packages.
func mountedRoot(t *testing.T) string {
	packages := slices.Clone(bare)
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
	alpha, beta := at["alpha"], at["beta"]
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
			alpha.Must(t, "mountpoint -q /mnt; dd if=/dev/urandom of=/mnt/before bs=1M count=2 status=none; sync; cd /mnt; sha256sum before >/root/sums")
		}
	}
	if !files {
		t.Fatal("README mounts nothing")
	}
	var connect, mount string
	for _, b := range of(readme(t), "Two hosts by hand") {
		for _, c := range b.commands {
			switch {
			case strings.HasPrefix(c, "nbd-client "):
				connect = c
			case strings.HasPrefix(c, "mount "):
				mount = c
			}
		}
	}
	// nbd-client talks to the kernel's nbd in the initial network namespace.
	script := `cd /mnt
dd if=/dev/urandom of=after bs=1M count=2 status=none
sha256sum after >>/root/sums
sync
cd /
umount /mnt
nbd-client -d /dev/nbd0
systemctl restart ironwarp
ironwarp attach beta/docs || true
` + connect + "\n" + mount + `
cd /mnt
sha256sum --quiet -c /root/sums
cd /
umount /mnt
nbd-client -d /dev/nbd0
ironwarp detach beta/docs`
	if out, err := alpha.RunOnline(t.Context(), script); err != nil {
		t.Fatal(out, err)
	}
	want := strings.Fields(alpha.Must(t, "cat /root/sums"))
	for i := 0; i+1 < len(want); i += 2 {
		if got := strings.Fields(beta.Must(t, "e2fsck -fn /srv/docs.img >&2; debugfs -R 'cat /"+want[i+1]+"' /srv/docs.img 2>/dev/null | sha256sum")); got[len(got)-2] != want[i] {
			t.Errorf("beta's disk has another file %q than alpha has written: %q, want %s", want[i+1], got, want[i])
		}
	}
	for _, m := range all {
		m.Must(t, "systemctl is-active ironwarp strongswan; test $(systemctl show -P NRestarts ironwarp) = 0")
	}
}

// unbuilt installs what was built outside instead of building the clone.
func unbuilt(t *testing.T, commands []string) []string {
	commands = slices.Clone(commands)
	for i, c := range commands {
		if strings.Contains(c, "git clone ") && strings.HasSuffix(c, "make install") {
			commands[i] = "cp -a /srv/installed/. /"
			t.Logf("%s, in place of %s", commands[i], c)
		}
	}
	return commands
}
