package machine

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/integration/lab"
)

//go:embed boot.sh
var bootScript string

// Machine is a booted machine. Its network is that of a lab's host.
type Machine struct {
	Host *lab.Host

	root   string // what it starts from
	dir    string // what it has changed
	cgroup string
	pid    int // of its process 1, in this machine's numbering
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start boots a machine in each host of a lab whose strongSwan does not run, for a
// test: it skips where there can be none.
func Start(t testing.TB, l *lab.Lab, cache string) []*Machine {
	t.Helper()
	return StartWith(t, l, cache, packages, "")
}

// StartWith is Start with other packages added to Debian's minimal ones; finish is a
// shell script that runs last on the file system, which is its $1.
func StartWith(t testing.TB, l *lab.Lab, cache string, packages []string, finish string) []*Machine {
	t.Helper()
	if _, err := cgroup2(); err != nil {
		t.Skip(err)
	}
	return StartIn(t, l, Root(t, cache, packages, finish))
}

// StartIn boots machines that start from a file system of Root's.
func StartIn(t testing.TB, l *lab.Lab, root string) []*Machine {
	t.Helper()
	cg, err := cgroup2()
	if err != nil {
		t.Skip(err)
	}
	all := make([]*Machine, len(l.Hosts()))
	booted := make([]error, len(all))
	var wg sync.WaitGroup
	for i, h := range l.Hosts() {
		m := &Machine{Host: h, cgroup: filepath.Join(cg, h.Namespace())}
		all[i] = m
		t.Cleanup(func() { m.end(t) })
		wg.Go(func() { booted[i] = m.boot(t.Context(), root) })
	}
	wg.Wait()
	for i, m := range all {
		if booted[i] != nil {
			t.Fatalf("boot %s: %v\n%s", m.Host.Name(), booted[i], m.console())
		}
	}
	return all
}

// cgroup2 is where cgroups of version 2 are mounted, which systemd needs.
func cgroup2() (string, error) {
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			return dir, nil
		}
	}
	return "", errors.New("there are no cgroups of version 2, which systemd needs")
}

// boot makes the machine's files and starts it.
func (m *Machine) boot(ctx context.Context, root string) error {
	// Not in the lab's directory, which may be on an overlay itself.
	dir, err := os.MkdirTemp("", "machine")
	if err != nil {
		return err
	}
	m.dir, m.root = dir, root
	if err := os.WriteFile(m.script(), []byte(bootScript), 0o700); err != nil {
		return err
	}
	if err := m.on(ctx); err != nil {
		return err
	}
	return m.booted(ctx)
}

func (m *Machine) script() string { return filepath.Join(m.dir, "boot.sh") }

// on starts the machine with the files it has, and waits for its systemd.
func (m *Machine) on(ctx context.Context) error {
	if err := os.Mkdir(m.cgroup, 0o755); err != nil {
		return err
	}
	console, err := os.OpenFile(filepath.Join(m.dir, "console"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer console.Close()
	// The shell joins the cgroup before the new cgroup namespace is made of it.
	const join = `echo $$ >"$1/cgroup.procs"; shift; exec "$@"`
	m.cmd = exec.Command("sh", "-c", join, "sh", m.cgroup, "ip", "netns", "exec", m.Host.Namespace(),
		"unshare", "-m", "-u", "-i", "-p", "-C", "--fork", "--kill-child", "sh", m.script(), m.root, m.dir, m.Host.Name())
	m.cmd.Stdout, m.cmd.Stderr = console, console
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	m.exited = make(chan struct{})
	go func() { _ = m.cmd.Wait(); close(m.exited) }()
	if err := m.until(ctx, func() bool { m.pid = m.first(); return m.pid != 0 }); err != nil {
		return fmt.Errorf("systemd has not begun: %w", err)
	}
	return nil
}

// booted waits until systemd has started its units.
func (m *Machine) booted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	var found string
	if err := m.until(ctx, func() bool {
		out, _ := m.Run(ctx, "systemctl is-system-running --wait")
		found = strings.TrimSpace(out)
		return found == "running" || found == "degraded"
	}); err != nil {
		return fmt.Errorf("%w: systemctl is-system-running: %s", err, found)
	}
	return nil
}

// ShutDown has systemd stop all units and end, for a test. Its files and its host's network
// stay, and so does what the kernel has of it.
func (m *Machine) ShutDown(t testing.TB) {
	t.Helper()
	m.Must(t, "systemctl poweroff --no-block")
	select {
	case <-m.exited:
	case <-time.After(shutdownTimeout):
		out, _ := m.Run(t.Context(), "systemctl list-jobs --no-pager; journalctl -b --no-pager -n 100")
		t.Fatalf("%s has not shut down:\n%s", m.Host.Name(), out)
	}
	m.off(t)
}

// CutPower ends all processes at once, for a test. What is left is as after ShutDown, and gone takes away what
// processes might wait for in their end.
func (m *Machine) CutPower(t testing.TB, gone func()) {
	t.Helper()
	m.kill()
	gone()
	m.off(t)
}

// kill kills the machine's process 1, if it is there, and with it all others.
func (m *Machine) kill() {
	if m.cmd == nil || m.cmd.Process == nil {
		return
	}
	if m.pid > 0 {
		_ = syscall.Kill(m.pid, syscall.SIGKILL)
	}
	_ = m.cmd.Process.Kill()
}

// off kills the machine, and waits until all of it has ended.
func (m *Machine) off(t testing.TB) {
	t.Helper()
	if m.kill(); m.cmd != nil && m.cmd.Process != nil {
		<-m.exited
	}
	m.cmd, m.pid = nil, 0
	// The kernel takes a moment to clean up what was in there.
	var err error
	for range 200 {
		if err = removeCgroups(m.cgroup); err == nil {
			return
		}
		<-time.After(pollEvery)
	}
	t.Errorf("end machine %s: %v", m.Host.Name(), err)
}

// PowerOn starts a machine that is off, for a test: its systemd has begun, no more.
func (m *Machine) PowerOn(t testing.TB) {
	t.Helper()
	if err := m.on(t.Context()); err != nil {
		t.Fatalf("start %s: %v\n%s", m.Host.Name(), err, m.console())
	}
}

// Boot is PowerOn, and waits until the machine has started its units.
func (m *Machine) Boot(t testing.TB) {
	t.Helper()
	m.PowerOn(t)
	if err := m.booted(t.Context()); err != nil {
		t.Fatalf("boot %s: %v\n%s", m.Host.Name(), err, m.console())
	}
}

// first finds the process that is number 1 in the machine.
func (m *Machine) first() int {
	pids, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", m.cmd.Process.Pid, m.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	for _, f := range strings.Fields(string(pids)) {
		pid, _ := strconv.Atoi(f)
		comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if strings.TrimSpace(string(comm)) == "systemd" {
			return pid
		}
	}
	return 0
}

func (m *Machine) until(ctx context.Context, ok func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for !ok() {
		select {
		case <-m.exited:
			return errors.New("it ended at once")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}

// Run runs a shell script in the machine as root and returns both outputs. It fails
// with ctx's error, and where the script ends with a status other than 0.
func (m *Machine) Run(ctx context.Context, script string) (string, error) {
	return m.RunWith(ctx, nil, script)
}

// RunWith is Run with something to read. It fails as Run does.
func (m *Machine) RunWith(ctx context.Context, stdin []byte, script string) (string, error) {
	return m.run(ctx, stdin, script, "-n")
}

// RunOnline is Run with this machine's network in place of the machine's own, for what
// it fetches from the Internet. It fails as Run does.
func (m *Machine) RunOnline(ctx context.Context, script string) (string, error) {
	return m.run(ctx, nil, script)
}

func (m *Machine) run(ctx context.Context, stdin []byte, script string, more ...string) (string, error) {
	// -r, -w: where the tests run in a chroot, the root of the machine's mount namespace is the host's, and where we stand is not in the machine.
	args := append([]string{"-t", strconv.Itoa(m.pid), "-m", "-r", "-w", "-u", "-i", "-p", "-C"}, more...)
	cmd := exec.CommandContext(ctx, "nsenter", append(args, "--", "/usr/bin/env", "-i",
		"HOME=/root", "LANG=C.UTF-8", "TERM=dumb", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-ec", "cd /root; "+script)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &out, outputTime
	cmd.Stdin = bytes.NewReader(stdin)
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s on %s: %w\n%s", script, m.Host.Name(), err, bytes.TrimSpace(out.Bytes()))
	}
	return out.String(), nil
}

// Must is Run for a test.
func (m *Machine) Must(t testing.TB, script string) string {
	t.Helper()
	out, err := m.Run(t.Context(), script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Eventually runs a script until it succeeds.
func (m *Machine) Eventually(t testing.TB, script string) {
	t.Helper()
	var last error
	if err := m.until(t.Context(), func() bool { _, last = m.Run(t.Context(), script); return last == nil }); err != nil {
		t.Fatalf("never happened: %v: %v", err, last)
	}
}

// Put copies a file of this machine into it.
func (m *Machine) Put(t testing.TB, from, to string, mode os.FileMode) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	m.Write(t, b, to, mode)
}

// Write writes a file in it.
func (m *Machine) Write(t testing.TB, b []byte, to string, mode os.FileMode) {
	t.Helper()
	if _, err := m.RunWith(t.Context(), b, fmt.Sprintf("mkdir -p %s; cat >%s.new; chmod %o %s.new; mv %s.new %s", filepath.Dir(to), to, mode, to, to, to)); err != nil {
		t.Fatal(err)
	}
}

func (m *Machine) console() string {
	b, _ := os.ReadFile(filepath.Join(m.dir, "console"))
	return string(b)
}

// end ends the machine and removes its files.
func (m *Machine) end(t testing.TB) {
	m.off(t)
	if err := os.RemoveAll(m.dir); err != nil {
		t.Errorf("clear machine %s away: %v", m.Host.Name(), err)
	}
}

func removeCgroups(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			err = errors.Join(err, removeCgroups(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

const (
	bootTimeout = 10 * time.Minute
	// shutdownTimeout is longer than systemd's, after which it kills what does not end.
	shutdownTimeout = 3 * time.Minute
	pollEvery       = 50 * time.Millisecond
	// outputTime is how long others may hold the output of a command that has ended.
	outputTime = 10 * time.Second
)
