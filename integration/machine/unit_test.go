package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

var program node.Program

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = program.Remove()
		os.Exit(code)
	}))
}

// maxExposure is the highest exposure that systemd-analyze may give the unit: the less
// the unit's process may do, the lower it is.
const maxExposure = 3.7

// install installs as `make install` and the operations manual do, and starts the units
// as Debian and IronWarp ship them.
func (m *Machine) install(t *testing.T) {
	t.Helper()
	m.Put(t, program.Path(t), "/usr/bin/ironwarp", 0o755)
	for _, unit := range []string{"ironwarp.service", "ironwarp.socket"} {
		m.Put(t, filepath.Join("../../packaging", unit), "/usr/lib/systemd/system/"+unit, 0o644)
	}
	m.Put(t, "../../packaging/ironwarp.yaml", "/etc/ironwarp/ironwarp.yaml", 0o600)
	m.Must(t, "ironwarp doctor --strongswan-conf >/etc/strongswan.d/ironwarp.conf || test -s /etc/strongswan.d/ironwarp.conf; systemctl daemon-reload; systemctl enable --now strongswan ironwarp; systemctl restart strongswan ironwarp")
}

// linked boots two machines and links them as README does.
func linked(t *testing.T) (alpha, beta *Machine) {
	t.Helper()
	l := lab.Start(t, lab.Config{NoCharon: true})
	all := Start(t, l, "../../.cache/machine")
	alpha, beta = all[0], all[1]
	t.Cleanup(func() {
		if t.Failed() {
			for _, m := range all {
				out, _ := m.Run(context.Background(), "journalctl --no-pager -n 60 -u ironwarp; systemctl --no-pager --failed")
				t.Logf("%s:\n%s", m.Host.Name(), out)
			}
		}
	})
	for _, m := range all {
		m.install(t)
	}
	alpha.Must(t, fmt.Sprintf("ironwarp peer add --generate-psk beta %v", beta.Host.Addr()))
	secret, err := alpha.RunWith(t.Context(), nil, "cat /etc/ironwarp/secrets/beta.psk")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := beta.RunWith(t.Context(), []byte(secret), fmt.Sprintf("ironwarp peer add --psk-file - alpha %v", alpha.Host.Addr())); err != nil {
		t.Fatal(out, err)
	}
	beta.Must(t, "mkdir -p /srv; truncate -s 16M /srv/docs.img; ironwarp export add --allow alpha docs /srv/docs.img")
	return alpha, beta
}

// The unit as shipped: everything the daemon does has to work with the unit's rights
// and no others.
func TestShippedUnitDoesItsWork(t *testing.T) {
	alpha, beta := linked(t)
	t.Run("a disk is attached, written and read", func(t *testing.T) {
		alpha.Eventually(t, "ironwarp attach beta/docs")
		alpha.Must(t, "ironwarp ping --count 3 beta")
	})
	t.Run("a block device is exported", func(t *testing.T) {
		out, err := beta.Run(t.Context(), "truncate -s 8M /srv/loop.img; losetup -f --show /srv/loop.img")
		if err != nil {
			t.Skipf("no loop device here: %v", err)
		}
		dev := strings.TrimSpace(out)
		t.Cleanup(func() { _, _ = beta.Run(t.Context(), "ironwarp export rm block; losetup -d "+dev) })
		beta.Eventually(t, "ironwarp export add --allow alpha block "+dev) // udev probes it first, and locks it
		alpha.Eventually(t, "ironwarp attach beta/block && ironwarp detach beta/block")
	})
	t.Run("users of a group attach", func(t *testing.T) {
		alpha.Must(t, `groupadd disks; useradd -G disks alice; useradd mallory; printf 'ulps:\n  - {name: shared, groups: [disks], exports: [beta/docs]}\n  - {name: mine, users: [mallory], exports: [beta/docs]}\n' >>/etc/ironwarp/ironwarp.yaml; ironwarp reload; ironwarp detach beta/docs || true`)
		for _, user := range []string{"alice", "mallory"} {
			alpha.Eventually(t, "setpriv --reuid "+user+" --regid "+user+" --init-groups ironwarp attach beta/docs")
			sock := alpha.Must(t, "ls -l /run/ironwarp/ulp/*/*.sock")
			mode, owner := "srw-rw-rw-", "root"
			if user == "mallory" {
				mode, owner = "srw-------", "mallory"
			}
			if !strings.HasPrefix(sock, mode) || strings.Fields(sock)[2] != owner {
				t.Errorf("the socket of %s is %s, want %s of %s", user, sock, mode, owner)
			}
			alpha.Must(t, "setpriv --reuid "+user+" --regid "+user+" --init-groups ironwarp detach beta/docs")
		}
	})
	t.Run("nothing was denied", func(t *testing.T) {
		for _, m := range []*Machine{alpha, beta} {
			out := m.Must(t, "journalctl --no-pager -u ironwarp -o cat")
			if bad := denied.FindString(out); bad != "" {
				t.Errorf("%s: %s", m.Host.Name(), bad)
			}
			m.Must(t, "systemctl is-active ironwarp; test $(systemctl show -P NRestarts ironwarp) = 0")
		}
	})
	t.Run("exposure", func(t *testing.T) {
		out := alpha.Must(t, "systemd-analyze security --no-pager ironwarp.service")
		last := exposure.FindStringSubmatch(out)
		if last == nil {
			t.Fatal(out)
		}
		if n, err := strconv.ParseFloat(last[1], 64); err != nil || n > maxExposure {
			t.Errorf("the exposure is %v (%v), at most %v is wanted:\n%s", n, err, maxExposure, out)
		}
	})
}

var (
	exposure = regexp.MustCompile(`Overall exposure level for ironwarp.service: ([0-9.]+)`)
	denied   = regexp.MustCompile(`(?m)^.*(operation not permitted|permission denied|read-only file system|function not implemented|SIGSYS).*$`)
)

// Debian's unit loads swanctl.conf at start and at reload, and unloads what is not
// in it.
func TestLinkOutlivesStrongSwansUnit(t *testing.T) {
	alpha, beta := linked(t)
	alpha.Eventually(t, "ironwarp ping --count 1 beta")
	try := func(m *Machine, verb string) {
		t.Helper()
		m.Must(t, "systemctl "+verb+" strongswan")
		// With new SAs, and not with those that still existed.
		alpha.Run(t.Context(), "ironwarp sa delete --ike beta")
		alpha.Eventually(t, "ironwarp ping --count 1 beta")
	}
	for range 3 {
		for _, m := range []*Machine{alpha, beta} {
			try(m, "reload")
			try(m, "restart")
		}
	}
	out := alpha.Must(t, "ironwarp peer show beta; journalctl --no-pager -u ironwarp -o cat")
	for _, want := range []string{"had lost its configuration", "systemctl reload strongswan"} {
		if !strings.Contains(out, want) {
			t.Errorf("nobody says %q:\n%s", want, out)
		}
	}
}
