package newcomer

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/machine"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

// The versions that TestPackages builds, of this tree.
const (
	earlier = "0.0.1"
	later   = "0.0.2"
)

// loadScript writes and verifies the attached disk, pass after pass, until there is /root/stop. Each pass connects to the
// NBD socket anew.
const loadScript = `rm -f /root/stop /root/passes; systemctl reset-failed load 2>/dev/null || true
systemd-run -q --unit=load sh -c 'while [ ! -e /root/stop ]; do fio --name=load --ioengine=nbd --uri="nbd+unix:///?socket=/run/ironwarp/nbd/beta-docs.sock" --rw=randwrite --bs=4k --size=4M --iodepth=16 --verify=crc32c --verify_fatal=1 --randrepeat=0 >/root/fio.log 2>&1 || exit 1; echo >>/root/passes; done'`

// clientScript writes and reads the attached disk over one connection, a line of /root/rounds for each round, until there is /root/stop.
const clientScript = `rm -f /root/stop; : >/root/rounds; systemctl reset-failed client 2>/dev/null || true
systemd-run -q --unit=client python3 -c '
import nbd, os
h = nbd.NBD()
h.connect_uri("nbd+unix:///docs?socket=/run/ironwarp/nbd/beta-docs.sock")
n = 0
with open("/root/rounds", "a", buffering=1) as rounds:
    while not os.path.exists("/root/stop"):
        text, at = n.to_bytes(8, "big") * 512, (8 << 20) + n % 64 * 4096
        h.pwrite(text, at)
        if h.pread(4096, at) != text:
            raise Exception("round %d reads something else" % n)
        n += 1
        rounds.write("%d\n" % n)
h.shutdown()
'`

// files lists all files of a machine but those in which dpkg, apt and systemd keep their own accounts, and logs.
const files = `find / /run/ironwarp -xdev \( -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache -o -path /var/log -o -path /root \) -prune -o -print 2>/dev/null | sort`

// TestPackages installs, upgrades, removes and purges the packages on bare machines, as docs/packages.md says.
func TestPackages(t *testing.T) {
	stamp(t)
	debs := t.TempDir()
	for _, v := range []string{earlier, later} {
		cmd := exec.CommandContext(t.Context(), "make", "-C", top, "--no-print-directory", "packages", "VERSION="+v, "OUT="+filepath.Join(debs, v))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	l := lab.Start(t, lab.Config{NoCharon: true})
	all := machine.StartWith(t, l, filepath.Join(top, ".cache/machine"), bare, finish)
	at := named(t, all)
	alpha, beta := at["alpha"], at["beta"]
	deb := func(v string) string { return fmt.Sprintf("/srv/ironwarp_%s_%s.deb", v, runtime.GOARCH) }
	for _, m := range all {
		for _, v := range []string{earlier, later} {
			m.Put(t, filepath.Join(debs, v, filepath.Base(deb(v))), deb(v), 0o644)
		}
	}
	install := func(m *machine.Machine, v string) { follow(t, m, []string{"apt-get install -y " + deb(v)}) }

	// beta has strongSwan already, so that what the package itself brings can be told.
	follow(t, beta, []string{"apt-get install -y charon-systemd libstrongswan-standard-plugins udev"})
	before := beta.Must(t, files)
	if !strings.Contains(before, "/usr/sbin/swanctl\n") || strings.Contains(before, "ironwarp\n") {
		t.Fatalf("these are not the files of a machine with strongSwan and without IronWarp:\n%s", before)
	}
	follow(t, alpha, []string{"apt-get install -y --no-install-recommends fio python3-libnbd"})
	for _, m := range all {
		install(m, earlier)
		m.Must(t, "systemctl is-active ironwarp ironwarp.socket strongswan; systemctl is-enabled ironwarp ironwarp.socket; test $(stat -c %a /etc/ironwarp/ironwarp.yaml) = 600")
		if esp.ProbeKernel() != nil {
			m.Must(t, "ironwarp doctor --strongswan-conf >/etc/strongswan.d/ironwarp.conf || test -s /etc/strongswan.d/ironwarp.conf; systemctl restart strongswan ironwarp")
		}
		m.Must(t, "echo '# mine' >>/etc/ironwarp/ironwarp.yaml; ironwarp reload")
		out, err := m.Run(t.Context(), "ironwarp doctor")
		t.Logf("doctor on %s: %v\n%s", m.Host.Name(), err, out)
		if strings.Contains(out, "FAIL") || strings.Contains(out, "not running") {
			t.Errorf("doctor is not content on %s", m.Host.Name())
		}
	}
	alpha.Must(t, "ironwarp peer add --generate-psk beta 192.0.2.2")
	secret := alpha.Must(t, "cat /etc/ironwarp/secrets/beta.psk")
	if out, err := beta.RunWith(t.Context(), []byte(secret), "ironwarp peer add --psk-file - alpha 192.0.2.1"); err != nil {
		t.Fatal(out, err)
	}
	beta.Must(t, "truncate -s 16M /srv/docs.img; ironwarp export add --allow alpha docs /srv/docs.img")
	alpha.Eventually(t, "ironwarp attach beta/docs")

	load := &packageLoad{t, alpha}
	load.begin()
	load.passes("on the earlier version")
	for _, m := range all {
		pid := m.Must(t, "systemctl show -P MainPID ironwarp")
		install(m, later)
		if now := m.Must(t, "systemctl show -P MainPID ironwarp"); now != pid {
			t.Errorf("the upgrade has restarted the daemon of %s: process %s, before it %s", m.Host.Name(), now, pid)
		}
		speaks(t, m, later, earlier)
		m.Must(t, "tail -n 1 /etc/ironwarp/ironwarp.yaml | grep -x '# mine'; test $(stat -c %a /etc/ironwarp/ironwarp.yaml) = 600; systemctl reload ironwarp")
		load.passes("with the packages of " + m.Host.Name() + " upgraded")
	}
	beta.Must(t, "systemctl restart ironwarp")
	speaks(t, beta, later, later)
	load.passes("with the exporting daemon restarted")
	load.end()
	// A client that is connected notices no restart.
	alpha.Must(t, clientScript)
	for i := range 3 {
		alpha.Eventually(t, "test -s /root/rounds || ! systemctl is-active client")
		alpha.Must(t, "systemctl restart ironwarp; : >/root/rounds")
		alpha.Eventually(t, "test -s /root/rounds || ! systemctl is-active client")
		if out, err := alpha.Run(t.Context(), "systemctl is-active client"); err != nil {
			log, _ := alpha.Run(t.Context(), "journalctl --no-pager -n 40 -u ironwarp -u client")
			t.Fatalf("restart %d has ended a client's connection: %s\n%s", i, out, log)
		}
	}
	speaks(t, alpha, later, later)
	alpha.Must(t, "touch /root/stop")
	alpha.Eventually(t, `test "$(systemctl show -P ActiveState client)" != active`)
	alpha.Must(t, `test "$(systemctl show -P Result client)" = success`)
	alpha.Eventually(t, "ironwarp ls | grep docs; test -S /run/ironwarp/nbd/beta-docs.sock; ironwarp ping --count 1 beta")
	load.begin()
	load.passes("with both restarted")
	load.end()
	for _, m := range all {
		m.Must(t, "test $(systemctl show -P NRestarts ironwarp) = 0")
	}

	// What an administrator has disabled stays so.
	alpha.Must(t, "systemctl disable ironwarp.service ironwarp.socket; dpkg -i "+deb(later)+"; ! systemctl is-enabled ironwarp.service; systemctl is-active ironwarp")

	// Removed, it leaves what is the administrator's, and goes on with it when it is back.
	beta.Must(t, "apt-get remove -y ironwarp; ! systemctl is-active ironwarp; ! pgrep -x ironwarp; test ! -e /usr/bin/ironwarp; test ! -e /run/ironwarp; test -s /etc/ironwarp/secrets/alpha.psk; test -d /var/lib/ironwarp")
	install(beta, later)
	beta.Must(t, "systemctl is-active ironwarp; systemctl is-enabled ironwarp; ironwarp peer show alpha; ironwarp export ls | grep docs")
	alpha.Eventually(t, "ironwarp ping --count 1 beta")

	if installed := beta.Must(t, files); !strings.Contains(installed, "\n/usr/bin/ironwarp\n") || !strings.Contains(installed, "\n/etc/ironwarp/secrets/alpha.psk\n") {
		t.Fatalf("the list of files has not what is installed:\n%s", installed)
	}
	beta.Must(t, "apt-get purge -y ironwarp; ! dpkg -s ironwarp 2>/dev/null; rm -f /etc/strongswan.d/ironwarp.conf /srv/docs.img /srv/ironwarp_*.deb; systemctl is-active strongswan")
	after := beta.Must(t, files)
	had := make(map[string]bool)
	for line := range strings.Lines(before) {
		had[line] = true
	}
	for line := range strings.Lines(after) {
		if !had[line] {
			t.Errorf("the purge has left %s", line)
		}
		delete(had, line)
	}
	for line := range had {
		if !strings.HasPrefix(line, "/srv/") {
			t.Errorf("%s is gone, and was there before", strings.TrimSpace(line))
		}
	}
	rpmScripts(t, beta, debs)
}

// rpmScripts installs, upgrades and removes the rpm by Debian's rpm, which runs its scripts: no machine is at hand where
// it is at home.
func rpmScripts(t *testing.T, m *machine.Machine, built string) {
	t.Helper()
	follow(t, m, []string{"apt-get install -y --no-install-recommends rpm"})
	for _, v := range []string{earlier, later} {
		found, err := filepath.Glob(filepath.Join(built, v, "ironwarp-[0-9]*.rpm"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%v, %v", found, err)
		}
		m.Put(t, found[0], "/srv/"+v+".rpm", 0o644)
	}
	const rpm = "rpm --nodeps --force-debian "
	m.Must(t, rpm+"-i /srv/"+earlier+".rpm; systemctl is-enabled ironwarp.service; ! systemctl is-active ironwarp; systemctl start ironwarp; echo '# mine' >>/etc/ironwarp/ironwarp.yaml")
	pid := m.Must(t, "systemctl show -P MainPID ironwarp")
	m.Must(t, rpm+"-U /srv/"+later+".rpm; tail -n 1 /etc/ironwarp/ironwarp.yaml | grep -x '# mine'; systemctl is-active ironwarp; systemctl is-enabled ironwarp")
	if now := m.Must(t, "systemctl show -P MainPID ironwarp"); now != pid {
		t.Errorf("the rpm's upgrade has restarted the daemon: process %s, before it %s", now, pid)
	}
	speaks(t, m, later, earlier)
	m.Must(t, rpm+"-e ironwarp; ! systemctl is-active ironwarp; ! pgrep -x ironwarp; test ! -e /usr/bin/ironwarp; test ! -e /run/ironwarp; ! ls /etc/systemd/system/*.wants/ironwarp.*; tail -n 1 /etc/ironwarp/ironwarp.yaml.rpmsave | grep -x '# mine'")
}

// speaks fails the test unless the command and the daemon of a machine are of these versions.
func speaks(t *testing.T, m *machine.Machine, command, daemon string) {
	t.Helper()
	var out string
	m.Eventually(t, "ironwarp version")
	out = m.Must(t, "ironwarp version")
	var found []string
	for _, v := range versions.FindAllStringSubmatch(out, -1) {
		found = append(found, v[1])
	}
	if fmt.Sprint(found) != fmt.Sprint([]string{command, daemon}) {
		t.Errorf("%s: the versions are %v, want %s and %s of the daemon:\n%s", m.Host.Name(), found, command, daemon, out)
	}
}

var versions = regexp.MustCompile(`\b(0\.0\.[0-9]+)\b`)

// packageLoad is the verified I/O of alpha's disk.
type packageLoad struct {
	t     *testing.T
	alpha *machine.Machine
}

func (l *packageLoad) begin() {
	l.t.Helper()
	l.alpha.Must(l.t, loadScript)
}

// passes waits until two passes have ended from now on: the second has begun after now.
func (l *packageLoad) passes(when string) {
	l.t.Helper()
	l.alpha.Must(l.t, "wc -l </root/passes >/root/passed 2>/dev/null || echo 0 >/root/passed")
	l.alpha.Eventually(l.t, `test "$(systemctl show -P ActiveState load)" != active || test $(wc -l </root/passes) -ge $(($(cat /root/passed) + 2))`)
	if out, err := l.alpha.Run(l.t.Context(), "systemctl is-active load"); err != nil {
		log, _ := l.alpha.Run(l.t.Context(), "tail -n 30 /root/fio.log; journalctl --no-pager -n 30 -u ironwarp")
		l.t.Fatalf("I/O has failed %s: %s\n%s", when, out, log)
	}
	l.t.Logf("I/O goes on %s", when)
}

// end ends the load, which must not have failed.
func (l *packageLoad) end() {
	l.t.Helper()
	l.alpha.Must(l.t, "touch /root/stop")
	l.alpha.Eventually(l.t, `test "$(systemctl show -P ActiveState load)" != active`)
	l.alpha.Must(l.t, `test "$(systemctl show -P Result load)" = success; systemctl reset-failed load 2>/dev/null || true`)
}
