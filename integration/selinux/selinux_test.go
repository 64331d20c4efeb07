// Package selinux has fabric/selinux, and daemons with it, ask a kernel with SELinux: that of the virtual
// machine, with policies that SELinux' own programs have compiled on this host.
package selinux

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/fabric/policy"
	"github.com/ironwarp/ironwarp/fabric/policy/policytest"
	"github.com/ironwarp/ironwarp/fabric/selinux"
	"github.com/ironwarp/ironwarp/integration/vm"
)

// vmVar names the directory with the virtual machine; make interop sets it. insideVar is set
// in the machine, to the directory of the policies; socketVar in a process that connects
// to a socket there. See askVar too.
const (
	vmVar     = "IRONWARP_VM_CACHE"
	insideVar = "IRONWARP_POLICIES"
	socketVar = "IRONWARP_SOCKET"
)

// machineTime bounds the test in the machine, which takes some ten seconds there.
const machineTime = 4 * time.Minute

// randomPolicies is how many random policies the kernel loads.
const randomPolicies = 20

func TestMain(m *testing.M) {
	if socket := os.Getenv(socketVar); socket != "" {
		if err := connect(socket); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if text := os.Getenv(askVar); text != "" {
		if err := ask(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// example is the first policy, other the one that takes back what it allows and allows what it does not.
const (
	example = "module fabric 1.0;\nrequire { class rdma_partition { modify }; }\ntype solver_t;\ntype viewer_t;\ntype secret_t;\nallow solver_t secret_t : rdma_partition { modify };\n"
	other   = "module fabric 1.1;\nrequire { class rdma_partition { modify }; }\ntype solver_t;\ntype viewer_t;\ntype secret_t;\nallow viewer_t secret_t : rdma_partition { modify };\n"
	head    = "module fabric 1.0;\nrequire { type required_t; }\n"
)

// labelOf is the label of a type.
func labelOf(typ string) string { return "system_u:object_r:" + typ + ":s0" }

// TestSELinux: the kernel's decisions are asked for and kept as they have to be.
func TestSELinux(t *testing.T) {
	t.Attr("row", fmt.Sprintf("labels and partitions by the kernel: no policy, changed ones, permissive mode, unknown classes and labels, labels of processes; "+
		"the kernel, sesearch and our own engine agree about all pairs of types of %d random policies", randomPolicies))
	dir := os.Getenv(insideVar)
	if dir == "" {
		boot(t)
		return
	}
	m, ok := selinux.Active()
	if !ok {
		t.Fatal("SELinux is not active")
	}
	h := &host{Mount: m, dir: dir}
	for _, x := range []struct {
		name string
		test func(*testing.T, *host)
	}{
		{"NoPolicy", noPolicy}, // first: a policy can't be unloaded
		{"Load", load},
		{"Modes", modes},
		{"Unknown", unknown},
		{"Labels", labels},
		{"Peers", peers},
		{"Random", random},
	} {
		t.Run(x.name, func(t *testing.T) { x.test(t, h) })
	}
}

// TestAppArmor: a kernel with AppArmor, which has labels of processes too, is not taken for one with SELinux.
func TestAppArmor(t *testing.T) {
	t.Attr("row", "AppArmor, which has labels of processes as well, is not taken for SELinux")
	if os.Getenv(insideVar) == "" {
		vm.RunTest(t, cache(t), vm.Options{Timeout: machineTime + time.Minute, Kernel: "security=apparmor"}, script(t, "mkdir -p /sys/kernel/security", "none"))
		return
	}
	if lsm, err := os.ReadFile("/proc/self/attr/current"); err != nil || !strings.HasPrefix(string(lsm), "unconfined") {
		t.Fatalf("AppArmor is not active: %q, %v", lsm, err)
	}
	if m, ok := selinux.Active(); ok {
		t.Errorf("SELinux is said to be active: %v", m)
	}
	// Nor is a directory of that name.
	if err := unix.Mount("tmpfs", "/sys/fs", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir("/sys/fs/selinux", 0o755); err != nil {
		t.Fatal(err)
	}
	if m, ok := selinux.Active(); ok {
		t.Errorf("a directory is said to be SELinux: %v", m)
	}
}

// cache is the directory of the virtual machine.
func cache(t *testing.T) string {
	cache := os.Getenv(vmVar)
	if cache == "" {
		t.Skipf("it needs a virtual machine whose kernel has SELinux: set %s to the directory of make interop's", vmVar)
	}
	return cache
}

// script runs a command and then the calling test in the machine, with policies from a
// directory.
func script(t *testing.T, first, dir string) func(here, self string) string {
	return func(here, self string) string {
		return fmt.Sprintf("%s || exit 1\nexport %s='%s'\ncd '%s' && exec '%s' -test.v -test.timeout %v -test.run '^%s$'\n",
			first, insideVar, dir, here, self, machineTime, t.Name())
	}
}

// boot compiles the policies, and runs the test in the machine.
func boot(t *testing.T) {
	cache := cache(t)
	policytest.Need(t)
	dir := t.TempDir()
	compile := func(name, text string, o policytest.Options) (binary string, err error) {
		sub := filepath.Join(dir, name)
		if err := os.Mkdir(sub, 0o755); err != nil {
			return "", err
		}
		return policytest.Compile(t.Context(), sub, text, o)
	}
	for name, p := range map[string]struct {
		text string
		policytest.Options
	}{
		"example":    {example, policytest.Options{}},
		"other":      {other, policytest.Options{}},
		"permissive": {example, policytest.Options{More: "(typepermissive viewer_t)"}},
		"allow":      {"", policytest.Options{Without: true}},
		"deny":       {"", policytest.Options{Without: true, Unknown: "deny"}},
	} {
		if _, err := compile(name, p.text, p.Options); err != nil {
			t.Fatal(err)
		}
	}
	var binaries []string
	for seed := uint64(1 << 20); len(binaries) < randomPolicies; seed++ { // others than make test has
		name := "random" + strconv.Itoa(len(binaries))
		binary, err := compile(name, policytest.Draw(seed), policytest.Options{})
		if err != nil { // it violates a neverallow rule
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
			continue
		}
		binaries = append(binaries, binary)
	}
	found, err := policytest.Search(t.Context(), binaries...)
	if err != nil {
		t.Fatal(err)
	}
	for binary, d := range found {
		rows := make(map[string]bool)
		for pair, allowed := range d {
			rows[pair[0]+" "+pair[1]] = allowed
		}
		b, err := json.Marshal(rows)
		if err == nil {
			err = os.WriteFile(filepath.Join(filepath.Dir(binary), "sesearch.json"), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	vm.RunTest(t, cache, vm.Options{Timeout: machineTime + time.Minute, Kernel: "security=selinux"}, script(t, "mount -t selinuxfs selinuxfs /sys/fs/selinux", dir))
}

// host is the machine with its kernel.
type host struct {
	selinux.Mount
	dir string
}

// load loads a policy.
func (h *host) load(t testing.TB, name string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(h.dir, name, "policy.bin"))
	if err == nil {
		err = os.WriteFile("/sys/fs/selinux/load", b, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// enforce switches between enforcing and permissive; the test ends in permissive mode.
func (h *host) enforce(t testing.TB, mode string) {
	t.Helper()
	if err := os.WriteFile("/sys/fs/selinux/enforce", []byte(mode), 0); err != nil {
		t.Fatal(err)
	}
	if mode == "1" {
		t.Cleanup(func() { h.enforce(t, "0") })
	}
}

func (h *host) open(t testing.TB) *selinux.Decider {
	t.Helper()
	d, err := h.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

// wait returns when a change was reported.
func wait(t testing.TB, d *selinux.Decider) {
	t.Helper()
	select {
	case <-d.Changed():
	case <-time.After(30 * time.Second):
		t.Fatal("no change was reported")
	}
}

// decides fails unless the kernel says so.
func decides(t testing.TB, d policy.Decider, subject, partition string, want bool) {
	t.Helper()
	if got, err := d.MayModify(labelOf(subject), labelOf(partition)); got != want || err != nil {
		t.Errorf("%s may modify %s: %v, %v", subject, partition, got, err)
	}
}

// noPolicy: a kernel without a policy, which allows everything, lets nobody use a partition.
func noPolicy(t *testing.T, h *host) {
	d := h.open(t)
	if ok, err := d.MayModify(labelOf("solver_t"), labelOf("secret_t")); ok || !errors.Is(err, selinux.ErrNoPolicy) {
		t.Errorf("%v, %v", ok, err)
	}
	if s := d.Source(); s != "SELinux (permissive; SELinux has no policy loaded)" {
		t.Error(s)
	}
	h.load(t, "example")
	wait(t, d)
	decides(t, d, "solver_t", "secret_t", true)
}

// load: a label may use a partition until another policy is loaded, which is noticed at once and
// reported.
func load(t *testing.T, h *host) {
	h.load(t, "example")
	d := h.open(t)
	for range 2 { // the second time what was kept
		decides(t, d, "solver_t", "secret_t", true)
		decides(t, d, "viewer_t", "secret_t", false)
		decides(t, d, "secret_t", "solver_t", false)
		decides(t, d, "kernel_t", "secret_t", false)
	}
	h.load(t, "other")
	decides(t, d, "solver_t", "secret_t", false)
	decides(t, d, "viewer_t", "secret_t", true)
	wait(t, d)
	h.load(t, "example")
	wait(t, d)
	decides(t, d, "solver_t", "secret_t", true)
}

// modes: permissive and enforcing mode and permissive types are told apart, and changes of the mode
// reported.
func modes(t *testing.T, h *host) {
	h.load(t, "example")
	d := h.open(t)
	says := func(source string, solver, viewer bool) {
		t.Helper()
		if s := d.Source(); s != source {
			t.Errorf("source %q, want %q", s, source)
		}
		if got := d.Enforces(labelOf("solver_t")); got != solver {
			t.Errorf("%s: solver_t: %v", source, got)
		}
		if got := d.Enforces(labelOf("viewer_t")); got != viewer {
			t.Errorf("%s: viewer_t: %v", source, got)
		}
		decides(t, d, "solver_t", "secret_t", true) // by the policy, whatever is enforced
		decides(t, d, "viewer_t", "secret_t", false)
	}
	says("SELinux (permissive)", false, false)
	h.enforce(t, "1")
	wait(t, d)
	says("SELinux (enforcing)", true, true)
	h.load(t, "permissive")
	wait(t, d)
	says("SELinux (enforcing)", true, false)
	h.enforce(t, "0")
	wait(t, d)
	says("SELinux (permissive)", false, false)
}

// unknown: a policy without the class denies or allows as its handle_unknown says. The third kind,
// reject, is one that the kernel does not load.
func unknown(t *testing.T, h *host) {
	h.load(t, "example")
	d := h.open(t)
	decides(t, d, "solver_t", "secret_t", true)
	h.load(t, "deny")
	if ok, err := d.MayModify(labelOf("kernel_t"), labelOf("required_t")); ok || !errors.Is(err, selinux.ErrUnknownClass) {
		t.Errorf("%v, %v", ok, err)
	}
	if s := d.Source(); !strings.HasPrefix(s, "SELinux (permissive; the loaded policy has no class rdma_partition") {
		t.Error(s)
	}
	h.load(t, "allow")
	decides(t, d, "kernel_t", "required_t", true)
	if ok, err := d.MayModify(labelOf("solver_t"), labelOf("required_t")); ok || !errors.Is(err, selinux.ErrUnknownLabel) {
		t.Errorf("a label that does not exist: %v, %v", ok, err)
	}
	if s := d.Source(); s != "SELinux (permissive; its policy has no class rdma_partition and allows what it does not know)" {
		t.Error(s)
	}
	h.load(t, "example")
	decides(t, d, "viewer_t", "secret_t", false)
}

// labels: those that the policy does not have are named, and equal ones written alike.
func labels(t *testing.T, h *host) {
	h.load(t, "example")
	d := h.open(t)
	for _, label := range []string{"system_u:object_r:nobody_t:s0", "nobody_u:object_r:solver_t:s0", "system_u:object_r:solver_t", "system_u:object_r:solver_t:s1", "system_u:object_r:solver_t:s0:c200"} {
		for _, pair := range [][2]string{{label, labelOf("secret_t")}, {labelOf("solver_t"), label}} {
			ok, err := d.MayModify(pair[0], pair[1])
			if ok || !errors.Is(err, selinux.ErrUnknownLabel) || !strings.HasPrefix(err.Error(), label+": ") {
				t.Errorf("%v: %v, %v", pair, ok, err)
			}
		}
	}
	for label, want := range map[string]string{
		"system_u:object_r:solver_t:s0":             "system_u:object_r:solver_t:s0",
		"system_u:object_r:solver_t:s0:c2,c1,c0,c9": "system_u:object_r:solver_t:s0:c0.c2,c9",
		"system_u:object_r:solver_t:s0-s0":          "system_u:object_r:solver_t:s0",
	} {
		if got, err := h.Canonical(label); got != want || err != nil {
			t.Errorf("%s: %q, %v", label, got, err)
		}
	}
	// A P_Key's label by a file is written as the kernel writes it.
	p, err := policy.Parse("fabric.te", []byte(example+"#partcon 0x12 system_u:object_r:secret_t:s0-s0\n#partcon 0x13 nobody_u:object_r:secret_t\n"))
	if err != nil {
		t.Fatal(err)
	}
	labelled, err := h.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer labelled.Close()
	for pkey, want := range map[uint16]string{0x8012: labelOf("secret_t"), 0x0013: "nobody_u:object_r:secret_t", 0x0014: ""} {
		if got, ok := labelled.Partition(pkey); got != want || ok != (want != "") {
			t.Errorf("%#04x: %q, %v", pkey, got, ok)
		}
	}
}

// connect is what the other process does: it connects and sends the label under which it
// runs.
func connect(socket string) error {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer c.Close()
	m, ok := selinux.Active()
	if !ok {
		return errors.New("SELinux is not active")
	}
	label, err := m.OwnLabel()
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(label + "\n"))
	return err
}

// start starts this program under a label, as runcon does, with a variable that says what it is to do.
func start(label, variable string, out io.Writer) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), variable)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	// The label is of the next program that a child of this thread becomes.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const file = "/proc/thread-self/attr/exec"
	if err := os.WriteFile(file, []byte(label), 0); err != nil {
		return nil, err
	}
	defer os.WriteFile(file, nil, 0)
	return cmd, cmd.Start()
}

// peers: the label of the process at the other end of a socket is that under which it runs, however
// long it is.
func peers(t *testing.T, h *host) {
	h.load(t, "example")
	socket := filepath.Join(t.TempDir(), "socket")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if own, err := h.OwnLabel(); own != "system_u:system_r:kernel_t:s0" || err != nil {
		t.Errorf("this process: %q, %v", own, err)
	}
	var odd []string
	for i := 0; i < 200; i += 2 {
		odd = append(odd, "c"+strconv.Itoa(i))
	}
	for _, label := range []string{
		"system_u:system_r:solver_t:s0",
		"system_u:system_r:viewer_t:s0-s0:c0.c199",
		"system_u:system_r:solver_t:s0:" + strings.Join(odd, ","), // 450 bytes
	} {
		h.enforce(t, "1")
		cmd, err := start(label, socketVar+"="+socket, nil)
		if err != nil {
			t.Fatal(err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		got, err := h.PeerLabel(c.(*net.UnixConn))
		b := make([]byte, 4096)
		n, rerr := c.Read(b)
		if got != label || err != nil || string(b[:n]) != label+"\n" || rerr != nil {
			t.Errorf("runs under %s, is told as %q, %v; says itself %q, %v", label, got, err, b[:n], rerr)
		}
		c.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		if got, err := h.PeerLabel(c.(*net.UnixConn)); err == nil {
			t.Errorf("a closed socket has the label %q", got)
		}
	}
}

// random: the kernel decides as sesearch says and as our own engine does.
func random(t *testing.T, h *host) {
	h.load(t, "example")
	d := h.open(t)
	pairs, allowed := 0, 0
	for i := range randomPolicies {
		name := "random" + strconv.Itoa(i)
		text, err := os.ReadFile(filepath.Join(h.dir, name, "policy.te"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.Parse(name, text)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(h.dir, name, "sesearch.json"))
		if err != nil {
			t.Fatal(err)
		}
		var sesearch map[string]bool
		if err := json.Unmarshal(b, &sesearch); err != nil {
			t.Fatal(err)
		}
		h.load(t, name)
		for row, want := range sesearch {
			subject, partition, _ := strings.Cut(row, " ")
			decides(t, d, subject, partition, want)
			ours, err := p.MayModify(labelOf(subject), labelOf(partition))
			if ours != want || err != nil && !errors.Is(err, policy.ErrUnknownType) {
				t.Errorf("%s: %s may modify %s: our engine %v, %v; sesearch %v", name, subject, partition, ours, err, want)
			}
			pairs++
			if want {
				allowed++
			}
		}
	}
	t.Logf("%d pairs, %d allowed", pairs, allowed)
	if allowed < 30 || pairs < 2*allowed {
		t.Error("the policies are too much alike to prove anything")
	}
}
