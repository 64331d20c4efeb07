package newcomer

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/machine"
	"github.com/ironwarp/ironwarp/ipsec/esp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func readme(t *testing.T) []block {
	t.Helper()
	return page(t, "README.md")
}

// page returns the blocks of a document.
func page(t *testing.T, name string) []block {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(top, name))
	if err != nil {
		t.Fatal(err)
	}
	return blocks(string(b))
}

// TestReadmeSaysWhereEachCommandIsToBeRun is what the machines rely on.
func TestReadmeSaysWhereEachCommandIsToBeRun(t *testing.T) {
	all := readme(t)
	if demo := of(all, "See it work"); len(demo) == 0 || !slices.Contains(demo[0].commands, "make demo") {
		t.Errorf("there is no `make demo` in %q", demo)
	}
	var seen []string
	by := of(all, "Two hosts by hand")
	for _, p := range tasks {
		by = append(by, page(t, p)...)
	}
	for _, b := range by {
		on, err := b.hosts()
		if err != nil {
			t.Error(err)
		}
		seen = append(seen, on...)
		if c := strings.Join(b.commands, "\n"); online(b.commands) && (strings.Contains(c, "scp ") || strings.Contains(c, "192.0.2.")) {
			t.Errorf("%q fetches something and is about the other host, too: separate the two", b.heading)
		}
	}
	if !slices.Contains(seen, "alpha") || !slices.Contains(seen, "beta") {
		t.Errorf("commands for %v only", seen)
	}
}

func TestBlocksAreReadWithTheirHeadings(t *testing.T) {
	all := blocks("# T\n\ntext\n## A\n```\none\n\ntwo && three\n```\n### On beta, which\n```sh\nfour\n```\n## B: on alpha\n```\nfive\n```\n### on alpha and on beta\n```\nsix\n```\n")
	if len(all) != 4 || !slices.Equal(all[0].commands, []string{"one", "two && three"}) || all[1].section != "A" || all[2].heading != "B: on alpha" {
		t.Fatalf("%+v", all)
	}
	for i, want := range []string{"", "[beta]", "[alpha]", ""} {
		on, err := all[i].hosts()
		if (err != nil) != (want == "") || want != "" && fmt.Sprint(on) != want {
			t.Errorf("%q: %v, %v", all[i].heading, on, err)
		}
	}
	if typed, left := withoutNBD([]string{"a", "ironwarp attach --device b/c", "mount"}); !slices.Equal(typed, []string{"a", "ironwarp attach b/c"}) || !slices.Equal(left, []string{"mount"}) {
		t.Errorf("%q, %q", typed, left)
	}
}

// bare are the packages of a machine beside Debian's least. The last line is what
// a kernel without ESP takes (docs/operations.md).
var bare = []string{"ca-certificates", "git", "make", "systemd-sysv", "dbus", "iproute2", "kmod", "procps", "openssh-server", "openssh-client",
	"libcharon-extra-plugins", "libstrongswan-extra-plugins"}

// finish gives a file system this machine's ways to Debian's mirror and to Go's modules, and its Go where nobody looks for one.
const finish = `r=$1
mkdir -p "$r/srv/go" "$r/root/.config/go" "$r/root/.ssh"
cp -a "$(go env GOROOT)/." "$r/srv/go/"
rm -f "$r/etc/apt/sources.list"
cp /etc/apt/sources.list.d/*.sources "$r/etc/apt/sources.list.d/"
cp -r /etc/apt/apt.conf.d/. "$r/etc/apt/apt.conf.d/"
rm -f "$r"/etc/apt/apt.conf.d/20packagekit "$r"/etc/apt/apt.conf.d/50appstream
cp -rL /etc/ssl/certs/. "$r/etc/ssl/certs/" || true
cp /etc/resolv.conf "$r/etc/resolv.conf"
for v in GOPROXY GOSUMDB GONOSUMDB; do echo "$v=$(go env $v)"; done >"$r/root/.config/go/env"
` + trust

// trust makes hosts that let each other's root in.
const trust = `ssh-keygen -q -t ed25519 -N '' -f "$r/root/.ssh/id_ed25519" 2>/dev/null || chroot "$r" ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
cp "$r/root/.ssh/id_ed25519.pub" "$r/root/.ssh/authorized_keys"
printf 'Host *\n\tStrictHostKeyChecking no\n\tLogLevel ERROR\n' >"$r/root/.ssh/config"
chmod 700 "$r/root/.ssh"
`

const address = "https://github.com/ironwarp/ironwarp"

// machines boots bare machines, on which a clone from GitHub gets this repository's
// last commit.
func machines(t *testing.T) []*machine.Machine {
	t.Helper()
	stamp(t)
	l := lab.Start(t, lab.Config{NoCharon: true})
	all := machine.StartWith(t, l, filepath.Join(top, ".cache/machine"), bare, finish)
	bundle := filepath.Join(t.TempDir(), "bundle")
	if _, err := git(t, "bundle", "create", "-q", bundle, "HEAD"); err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		m.Put(t, bundle, "/srv/ironwarp.bundle", 0o644)
		m.Must(t, "git config --global url.file:///srv/ironwarp.git.insteadOf "+address+"; git clone -q --bare /srv/ironwarp.bundle /srv/ironwarp.git 2>/dev/null || "+
			"{ git init -q --bare /srv/ironwarp.git; git -C /srv/ironwarp.git fetch -q /srv/ironwarp.bundle HEAD:refs/heads/main; git -C /srv/ironwarp.git symbolic-ref HEAD refs/heads/main; }")
	}
	t.Logf("instead of %s the machines clone this repository's HEAD", address)
	return all
}

// rootVar names the file system of the machines in the virtual machine of
// TestMountedDisk. It has all packages, and no way to more.
const rootVar = "IRONWARP_MACHINE_ROOT"

// follow runs commands as somebody types them into a shell.
func follow(t *testing.T, m *machine.Machine, commands []string) string {
	t.Helper()
	out, away, err := try(t, m, commands)
	switch {
	case away:
		t.Skipf("what the commands fetch can't be reached: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	return out
}

// try is follow that leaves failures to the caller. away reports that what the commands fetch can't be reached.
func try(t *testing.T, m *machine.Machine, commands []string) (out string, away bool, err error) {
	t.Helper()
	run := m.Run
	if online(commands) {
		run = m.RunOnline
		t.Logf("%s, with this machine's network:", m.Host.Name())
	}
	t.Logf("%s# %s", m.Host.Name(), strings.Join(commands, "\n\t"))
	if os.Getenv(rootVar) == "" && slices.ContainsFunc(commands, func(c string) bool { return strings.Contains(c, "apt-get ") }) {
		if _, err := m.RunOnline(t.Context(), "apt-get -qq -o APT::Update::Error-Mode=any update"); err != nil {
			t.Skipf("Debian's mirror can't be reached: %v", err)
		}
	}
	typed := strings.Join(commands, "\n") + "\n"
	typed = strings.ReplaceAll(typed, " &\n", " >/dev/null 2>&1 &\n") // a terminal does not wait for what is in the background, and this would
	out, err = run(t.Context(), "export PATH=/usr/local/go/bin:$PATH DEBIAN_FRONTEND=noninteractive; bash -ec "+quote(typed))
	return out, err != nil && online(commands) && unreachable.MatchString(out), err
}

// unreachable is what apt-get, curl and go say of a network that is not there. What is
// there and lacks a package is said otherwise, and a failure.
var unreachable = regexp.MustCompile(`Temporary failure resolving|Could not connect to|Could not resolve host|Failed to connect|Connection timed out|Operation timed out|dial tcp`)

// getGo gets Go as README says: from go.dev, or from Go's module proxy if that can't be reached. Where neither can, it is this
// machine's Go.
func getGo(t *testing.T, m *machine.Machine) {
	t.Helper()
	ways := of(readme(t), "Go")
	if len(ways) != 2 {
		t.Fatalf("README has %d ways to get Go, where two are looked for", len(ways))
	}
	for _, w := range ways {
		_, away, err := try(t, m, w.commands)
		switch {
		case err == nil:
			return
		case !away:
			t.Fatal(err)
		}
		t.Logf("that can't be reached from here: %v", err)
	}
	t.Log("instead of that it is this machine's Go")
	m.Must(t, "cp -a /srv/go /usr/local/go")
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

var clone = "git clone -q " + address + " && cd ironwarp && "

func TestDemo(t *testing.T) {
	m := machines(t)[0]
	getGo(t, m)
	out := follow(t, m, []string{clone + of(readme(t), "See it work")[0].commands[0]})
	t.Log(out[max(0, len(out)-3000):])
	if !strings.Contains(out, "ok    the copy's SHA-256") || strings.Contains(out, "FAIL") {
		t.Error("the demonstration's claims do not hold")
	}
}

// fastPart are the packages that between them need every program of the list for
// `make test`: strongSwan, tcpdump, nbdinfo, nbdcopy, qemu-img, fio.
const fastPart = "./ipsec ./nbd ./integration/lab ./integration/demo"

// missing is what a skip says when its package is not on the list.
var missing = regexp.MustCompile(`(?m)^.*(apt install|apt-get install|executable file not found).*$`)

func TestTest(t *testing.T) {
	m := machines(t)[0]
	getGo(t, m)
	out := follow(t, m, []string{clone + "make test PKG='" + fastPart + "'"})
	t.Log(out[max(0, len(out)-3000):])
	if line := missing.FindString(out); line != "" {
		t.Errorf("a test was skipped for want of a program that `make test` has to install: %s", line)
	}
	if !regexp.MustCompile(`[1-9]\d* passed, 0 failed`).MatchString(out) {
		t.Error("make test does not say that nothing failed")
	}
}

// named gives machines README's names and addresses.
func named(t *testing.T, all []*machine.Machine) map[string]*machine.Machine {
	t.Helper()
	for i, m := range all {
		out, err := exec.Command("ip", "-n", m.Host.Namespace(), "addr", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", m.Host.Dev()).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		t.Cleanup(func() {
			if t.Failed() {
				out, _ := m.Run(context.Background(), "journalctl --no-pager -n 40 -u ironwarp -u strongswan")
				t.Logf("%s:\n%s", m.Host.Name(), out)
			}
		})
	}
	return map[string]*machine.Machine{"alpha": all[0], "beta": all[1]}
}

func TestTwoHosts(t *testing.T) {
	all := machines(t)
	at := named(t, all)
	for _, m := range all {
		getGo(t, m)
	}
	for i, b := range of(readme(t), "Two hosts by hand") {
		on, err := b.hosts()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range on {
			commands := b.commands
			if typed, left := withoutNBD(commands); left != nil && !hasNBD() {
				t.Logf("this machine's kernel has no nbd: the disk is attached as a socket, and left out is\n\t%s", strings.Join(left, "\n\t"))
				commands = typed
			}
			follow(t, at[name], commands)
			if i == 0 {
				withoutESP(t, at[name])
			}
		}
	}
	for _, b := range of(readme(t), "RDMA programs between the hosts") {
		on, err := b.hosts()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range on {
			if out := follow(t, at[name], b.commands); name == "alpha" && len(on) == 1 && (!strings.Contains(out, "rdma-ping-2") || !strings.Contains(out, "BW average")) {
				t.Errorf("the programs on alpha say:\n%s", out)
			}
		}
	}
	t.Log(at["alpha"].Must(t, "ironwarp status; ironwarp ping --count 3 beta"))
	if out := at["alpha"].Must(t, "ironwarp --json status"); !strings.Contains(out, `"docs"`) {
		t.Errorf("alpha has not attached docs: %s", out)
	}
}

// withoutESP does on a kernel without ESP what docs/operations.md says.
func withoutESP(t *testing.T, m *machine.Machine) {
	t.Helper()
	if esp.ProbeKernel() != nil {
		t.Log("this machine's kernel has no ESP: strongSwan is told to do it, as docs/operations.md says")
		m.Must(t, "ironwarp doctor --strongswan-conf >/etc/strongswan.d/ironwarp.conf || test -s /etc/strongswan.d/ironwarp.conf; systemctl restart strongswan ironwarp")
	}
}

// hasNBD tells whether the machines' kernel, which is this one's, has nbd.
func hasNBD() bool {
	return exec.Command("modprobe", "nbd").Run() == nil
}
