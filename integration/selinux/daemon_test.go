package selinux

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/fabric/policy/policytest"
	"github.com/ironwarp/ironwarp/fabric/selinux"
	"github.com/ironwarp/ironwarp/integration/vm"
)

// The labels of the daemons' test. Both daemons run in the test's process, which is kernel_t.
const (
	hpcLabel    = "system_u:system_r:hpc_t:s0"
	viewerLabel = "system_u:system_r:viewer_t:s0"
	storeLabel  = "system_u:system_r:store_t:s0"
	ownLabel    = "system_u:system_r:kernel_t:s0"
)

// labPolicies are who may use partition lab, by the policies' names.
var labPolicies = map[string][]string{
	"users":   {"hpc_t", "store_t"},
	"others":  {"kernel_t", "viewer_t", "store_t"},
	"daemons": {"hpc_t", "kernel_t"},
}

// labModule is the module of a policy.
func labModule(allowed []string) string {
	text := "module lab 1.0;\nrequire { class rdma_partition { modify }; type kernel_t; }\ntype hpc_t;\ntype viewer_t;\ntype store_t;\ntype lab_part_t;\n"
	for _, a := range allowed {
		text += "allow " + a + " lab_part_t : rdma_partition { modify };\n"
	}
	return text
}

// TestDaemon: daemons whose partition's label is decided about by the kernel.
func TestDaemon(t *testing.T) {
	t.Attr("row", "two daemons with a partition: one user's processes may use it or not, each by its label; under I/O a changed policy ends streams of the partition alone; "+
		"permissive mode lets pass, and log, audit and doctor say so; the daemon's own label counts where there is no other")
	dir := os.Getenv(insideVar)
	if dir == "" {
		bootDaemons(t)
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
		{"Users", usersOfOneULP},
		{"ChangedPolicy", changedPolicy},
		{"Permissive", permissiveMode},
		{"OwnLabel", daemonsLabel},
	} {
		t.Run(x.name, func(t *testing.T) { x.test(t, h) })
	}
}

// bootDaemons compiles the policies, and runs the test in the machine.
func bootDaemons(t *testing.T) {
	cache := cache(t)
	policytest.Need(t)
	dir := t.TempDir()
	for name, allowed := range labPolicies {
		sub := filepath.Join(dir, name)
		err := os.Mkdir(sub, 0o755)
		if err == nil {
			_, err = policytest.Compile(t.Context(), sub, labModule(allowed), policytest.Options{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	vm.RunTest(t, cache, vm.Options{Timeout: machineTime + time.Minute, Kernel: "security=selinux"}, script(t, "mount -t selinuxfs selinuxfs /sys/fs/selinux", dir))
}

// storeService is what gives beta's exports a label of their own.
const storeService = "services: {exports: {label: '" + storeLabel + "'}}\n"

// usersOfOneULP: of two processes of one user the policy lets one use the partition, by its label and not by that of the daemon,
// and the other is told why not.
func usersOfOneULP(t *testing.T, h *host) {
	h.load(t, "users")
	h.enforce(t, "1")
	alpha, _ := newPair(t, storeService)
	alpha.refuses(viewerLabel, "docs")
	at := alpha.attachAs(hpcLabel, inLab("docs"))
	if err := write(alpha.disk(at)); err != nil {
		t.Fatal(err)
	}
	alpha.hasOnly(hpcLabel)
	alpha.refuses(viewerLabel, "docs") // though the same user has it attached
	_, err := alpha.api.Attach(t.Context(), inLab("notes"), nil)
	var e *api.Error
	if !errors.As(err, &e) {
		t.Fatalf("the daemon's own process, whose label the policy denies: %v", err)
	}
	alpha.refused(e, ownLabel)

	// The other way round: that the daemon's label and another process' are allowed helps it nothing.
	h.load(t, "others")
	alpha.refuses(hpcLabel, "notes")
	alpha.attachAs(viewerLabel, inLab("notes"))
	until(t, "only the other's streams are left", func() bool { return len(alpha.streams(labelled(hpcLabel))) == 0 })
	alpha.hasOnly(viewerLabel)

	// A disk keeps its label: this daemon has been asked by nobody.
	h.load(t, "users")
	alpha.restart()
	alpha.hasOnly(hpcLabel)
	if err := write(alpha.disk(at)); err != nil {
		t.Fatal(err)
	}
}

// changedPolicy: under I/O a policy is loaded that denies the label of who has attached a disk. The streams of the partition
// end, and those of none go on; the disk goes on with the policy of before.
func changedPolicy(t *testing.T, h *host) {
	h.load(t, "users")
	h.enforce(t, "1")
	alpha, _ := newPair(t, storeService)
	plain := inLab("plain")
	plain.Partition = ""
	in := newWriter(t, "the disk of the partition", alpha.disk(alpha.attachAs(hpcLabel, inLab("docs"))))
	out := newWriter(t, "the disk of no partition", alpha.disk(alpha.attachAs(hpcLabel, plain)))
	in.goesOn()
	out.goesOn()
	before := alpha.streams(inPartition(""))
	if n := alpha.denials(); n != 0 || len(before) == 0 {
		t.Errorf("before: %d denials; streams of no partition: %v", n, before)
	}
	h.load(t, "others")
	until(t, "the partition has no stream", func() bool { return len(alpha.streams(inPartition("lab"))) == 0 })
	until(t, "it is counted", func() bool { return alpha.denials() > 0 })
	done := in.done.Load()
	out.goesOn()
	if now := in.done.Load(); now != done {
		t.Errorf("the disk of the partition was written to %d times more", now-done)
	}
	if got := alpha.streams(inPartition("")); !slices.Equal(got, before) {
		t.Errorf("streams of no partition: %v, and before %v", got, before)
	}
	h.load(t, "users")
	in.goesOn()
	alpha.hasOnly(hpcLabel)
}

// permissiveMode: what is denied is let pass, and everybody who asks is told so, until SELinux enforces again.
func permissiveMode(t *testing.T, h *host) {
	h.load(t, "users")
	h.enforce(t, "1")
	alpha, _ := newPair(t, storeService)
	alpha.attachAs(hpcLabel, inLab("docs"))
	alpha.refuses(viewerLabel, "notes")
	if audit, examined := alpha.permissive(); audit || examined {
		t.Errorf("enforcing, and permissive by the audit: %v, by the doctor: %v", audit, examined)
	}
	h.enforce(t, "0")
	at := alpha.attachAs(viewerLabel, inLab("notes"))
	if err := write(alpha.disk(at)); err != nil {
		t.Fatal(err)
	}
	if audit, examined := alpha.permissive(); !audit || !examined {
		t.Errorf("permissive by the audit: %v, by the doctor: %v", audit, examined)
	}
	if s := alpha.status().Permissive; !strings.HasPrefix(s, "SELinux (permissive), for label ") {
		t.Errorf("the status says %q", s)
	}
	until(t, "the log says so", func() bool {
		log := alpha.log.String()
		return strings.Contains(log, `policy="SELinux (permissive)"`) && strings.Contains(log, `"permissive: denied, and let pass" label=`+viewerLabel)
	})
	kept := alpha.streams(labelled(hpcLabel))
	if len(kept) == 0 || len(alpha.streams(labelled(viewerLabel))) == 0 {
		t.Errorf("streams: %+v", alpha.status().Streams)
	}
	h.enforce(t, "1")
	until(t, "the streams that were let pass end", func() bool { return len(alpha.streams(labelled(viewerLabel))) == 0 })
	if got := alpha.streams(labelled(hpcLabel)); !slices.Equal(got, kept) {
		t.Errorf("streams of the label that is allowed: %v, and before %v", got, kept)
	}
}

// daemonsLabel: what nothing else gives a label has that of the daemon's process.
func daemonsLabel(t *testing.T, h *host) {
	h.load(t, "users")
	h.enforce(t, "1")
	alpha, beta := newPair(t, "")
	if u := beta.exportInLab("docs"); u.Label != ownLabel || u.Permitted || !strings.Contains(u.Denied, ownLabel) {
		t.Errorf("the export without a label: %+v", u)
	}
	q := inLab("docs")
	q.TimeoutSeconds = 2
	if alpha.ask(hpcLabel, q).Failed == nil {
		t.Error("beta serves its export with a label that may not use the partition")
	}
	h.load(t, "daemons")
	if err := write(alpha.disk(alpha.attachAs(hpcLabel, inLab("docs")))); err != nil {
		t.Fatal(err)
	}
	if u := beta.exportInLab("docs"); u.Label != ownLabel || u.Denied != "" {
		t.Errorf("the export without a label: %+v", u)
	}
	alpha.hasOnly(hpcLabel)
	beta.hasOnly("") // the default one
}
