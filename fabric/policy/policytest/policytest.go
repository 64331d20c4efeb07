// Package policytest compiles policies for partitions by SELinux' own programs, and says
// what these allow, so that tests can compare with them what others decide.
package policytest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The programs, by their Debian packages checkpolicy, semodule-utils, policycoreutils, secilc and setools.
const (
	checkmodule = "checkmodule"
	pack        = "semodule_package"
	toCIL       = "/usr/libexec/selinux/hll/pp"
	compiler    = "secilc"
	python      = "/usr/bin/python3" // with sesearch's library
	sesearch    = "sesearch"
)

// limit bounds a run of one of them, on a busy host.
const limit = 2 * time.Minute

// Need skips the test unless all programs are there.
func Need(t testing.TB) {
	t.Helper()
	for _, p := range []string{checkmodule, pack, toCIL, compiler, python, sesearch} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skipf("needs %s: apt-get install checkpolicy semodule-utils policycoreutils secilc setools", p)
		}
	}
}

// run runs a program in dir, and returns its output. It fails with what the program has
// said.
func run(ctx context.Context, dir, program string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = dir
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(program), strings.Join(args, " "), err, said.Bytes(), out.Bytes())
	}
	return out.Bytes(), nil
}

// Check has checkmodule read a module, for multi-level security as most distributions' policies. It
// fails where checkmodule refuses it.
func Check(ctx context.Context, dir, text string) error {
	if err := os.WriteFile(filepath.Join(dir, "check.te"), []byte(text), 0o644); err != nil {
		return err
	}
	_, err := run(ctx, dir, checkmodule, "-M", "-m", "check.te")
	return err
}

// Options are what a policy has besides a module.
type Options struct {
	Without bool   // the class rdma_partition; the module has to be empty
	Unknown string // of what the policy does not know: allow or deny; "": allow
	More    string // statements in CIL
}

// roles are the contexts of the tests: system_u:system_r:TYPE:s0 and system_u:object_r:TYPE:s0, with
// categories up to c199, for each type.
const roles = `
(mls true)
(sensitivity s0)
(sensitivityorder (s0))
(sensitivitycategory s0 (range c0 c199))
(level low (s0))
(level high (s0 (range c0 c199)))
(levelrange all (low high))
(levelrange lowest (low low))
(user system_u)
(userrole system_u object_r)
(userrole system_u system_r)
(userlevel system_u low)
(userrange system_u all)
(role object_r)
(role system_r)
(type kernel_t)
(roletype object_r kernel_t)
(roletype system_r kernel_t)
(type required_t)
(typeattribute required)
(typeattribute cil_gen_require)
`

// initialSIDs are those of the kernel, in its order.
var initialSIDs = strings.Fields(`kernel security unlabeled fs file file_labels init any_socket port netif netmsg node
igmp_packet icmp_socket tcp_socket sysctl_modprobe sysctl sysctl_fs sysctl_kernel sysctl_net sysctl_net_unix
sysctl_vm sysctl_dev kmod policy scmp_packet devnull`)

// base is the policy in which a module is put. Every process but those of the tests is
// kernel_t; what the policy does not know, as all that the kernel asks for but a new label of a
// process, is allowed unless the options say otherwise.
func base(o Options) string {
	var b strings.Builder
	unknown := "allow"
	if o.Unknown != "" {
		unknown = o.Unknown
	}
	classes := "process rdma_partition"
	partition := "(class rdma_partition (modify))\n"
	if o.Without {
		classes, partition = "process", ""
	}
	fmt.Fprintf(&b, "(class process (transition dyntransition))\n%s(classorder (%s))\n(handleunknown %s)\n", partition, classes, unknown)
	for i := range 200 {
		fmt.Fprintf(&b, "(category c%d)\n", i)
	}
	b.WriteString("(categoryorder (")
	for i := range 200 {
		fmt.Fprintf(&b, "c%d ", i)
	}
	b.WriteString("))\n" + roles)
	for _, sid := range initialSIDs {
		fmt.Fprintf(&b, "(sid %s)\n(sidcontext %s (system_u system_r kernel_t lowest))\n", sid, sid)
	}
	fmt.Fprintf(&b, "(sidorder (%s))\n", strings.Join(initialSIDs, " "))
	fmt.Fprintf(&b, "(typeattribute everyone)\n(typeattributeset everyone (all))\n(roletype system_r everyone)\n(roletype object_r everyone)\n(allow kernel_t everyone (process (transition dyntransition)))\n%s\n", o.More)
	return b.String()
}

var moduleName = regexp.MustCompile(`(?m)^(?:module|MODULE)\s+(\S+)\s`)

// Compile makes a policy that the kernel can load, of a module of the name at the
// beginning of a line of text (no module: ""), in an empty directory. It fails where one of the programs refuses
// the module, as secilc does where a neverallow rule is violated.
func Compile(ctx context.Context, dir, text string, o Options) (binary string, err error) {
	sources := []string{"base.cil"}
	if err := os.WriteFile(filepath.Join(dir, "base.cil"), []byte(base(o)), 0o644); err != nil {
		return "", err
	}
	if text != "" {
		m := moduleName.FindStringSubmatch(text)
		if m == nil {
			return "", errors.New("the module has no name at the beginning of a line")
		}
		if err := os.WriteFile(filepath.Join(dir, "policy.te"), []byte(text), 0o644); err != nil {
			return "", err
		}
		mod := m[1] + ".mod"
		if _, err := run(ctx, dir, checkmodule, "-M", "-m", "-o", mod, "policy.te"); err != nil {
			return "", err
		}
		if _, err := run(ctx, dir, pack, "-o", "policy.pp", "-m", mod); err != nil {
			return "", err
		}
		if _, err := run(ctx, dir, toCIL, "policy.pp", "policy.cil"); err != nil {
			return "", err
		}
		sources = append(sources, "policy.cil")
	}
	// Version 33 is what Debian 12's kernel loads.
	if _, err := run(ctx, dir, compiler, append([]string{"-c", "33", "-o", "policy.bin", "-f", os.DevNull}, sources...)...); err != nil {
		return "", err
	}
	return filepath.Join(dir, "policy.bin"), nil
}

// Decisions are what a policy allows: subjects and partitions, by their types.
type Decisions map[[2]string]bool

// script prints for each policy its path, its types, and what it allows.
const script = `
import setools, sys
for path in sys.argv[1:]:
    p = setools.SELinuxPolicy(path)
    print("policy", path)
    for t in p.types():
        print("type", t)
    for r in p.terules():
        if str(r.ruletype) == "allow" and str(r.tclass) == "rdma_partition" and "modify" in r.perms:
            for s in r.source.expand():
                for t in r.target.expand():
                    print("allow", s, t)
`

// Search reads compiled policies by the library of sesearch: what each says of every pair
// of its types. It fails where the library can't read one.
func Search(ctx context.Context, binaries ...string) (map[string]Decisions, error) {
	out, err := run(ctx, "", python, append([]string{"-c", script}, binaries...)...)
	if err != nil {
		return nil, err
	}
	all := make(map[string]Decisions)
	var d Decisions
	var types []string
	for line := range strings.Lines(string(out)) {
		switch f := strings.Fields(line); f[0] {
		case "policy":
			d, types = make(Decisions), nil
			all[f[1]] = d
		case "type":
			types = append(types, f[1])
			for _, t := range types {
				d[[2]string{f[1], t}], d[[2]string{t, f[1]}] = false, false
			}
		case "allow":
			d[[2]string{f[1], f[2]}] = true
		}
	}
	return all, nil
}

// Sesearch returns the allow rules for partitions of a compiled policy as sesearch prints
// them, for one pair of types. It fails where sesearch can't read the policy.
func Sesearch(ctx context.Context, binary, subject, partition string) (string, error) {
	out, err := run(ctx, "", sesearch, "-A", "-s", subject, "-t", partition, "-c", "rdma_partition", "-p", "modify", binary)
	return strings.TrimSpace(string(out)), err
}
