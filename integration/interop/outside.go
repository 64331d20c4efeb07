package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// outside is a test program that runs on this host and boots machines of its own.
type outside struct {
	part     string
	log      string // the test program, and its log
	at       string // the folder that go test would run it in; "": that of the name below integration
	test     string
	limit    time.Duration
	title    string // of its results
	what     string // logged when it begins
	document string // what docs/interop.md has above its results
	// mayLack: a skip is not a failure, as it needs more than the listed packages.
	mayLack bool
	// apart: it is run only where its part is named, as it takes as long as all others
	// together.
	apart bool
	// long: it is run only with -whole, or where its part is named.
	long bool
	// here: it runs on this host, without a machine.
	here bool
}

var outsides = []outside{
	{part: partPower, log: "history", test: "TestRealPowerCut", limit: 15 * time.Minute, title: "power cuts",
		what: "a host whose power is cut", document: powerHead},
	{part: partDevice, log: "chaos", test: "TestBlockDevice", limit: 15 * time.Minute, title: "block devices",
		what: "a remote disk as a block device of the kernel", document: deviceHead},
	{part: partDevice, log: "chaos", test: "TestGuestOfAVhostUserDisk", limit: 10 * time.Minute, title: "disks of guests",
		what: "a guest of QEMU with a remote disk", document: guestHead},
	{part: partISCSI, log: "initiators", test: "TestKernelISER", limit: 10 * time.Minute, title: "the kernel's iSER initiator",
		what: "ib_iser over soft-iWARP", document: iscsiHead, mayLack: true},
	{part: partISCSI, log: "initiators", test: "TestKernelTCP", limit: 10 * time.Minute, title: "the kernel's iSCSI initiator",
		what: "iscsi_tcp", document: iscsiTCPHead, mayLack: true},
	{part: partISCSI, log: "initiators", test: "TestMultipath", limit: 20 * time.Minute, title: "multipath-tools",
		what: "multipath-tools with two portals", document: multipathHead, mayLack: true},
	{part: partISCSI, log: "initiators", test: "TestLibiscsiISER", limit: 20 * time.Minute, title: "libiscsi's suite over iSER",
		what: "libiscsi's suite over iSER", document: libiscsiHead, mayLack: true},
	{part: partISCSI, log: "initiators", test: "TestTGTISER", limit: 20 * time.Minute, title: "the tester of iSCSI targets over iSER",
		what: "ironwarp iscsi test against tgt over iSER", document: tgtISERHead, mayLack: true, long: true},
	{part: partISCSI, log: "initiators", test: "TestRDMATest", limit: 20 * time.Minute, title: "the tester of RDMA stacks",
		what: "ironwarp rdma test against soft-iWARP", document: rdmaTestHead, mayLack: true},
	{part: partISCSI, log: "newcomer", test: "TestDiskForAnyInitiator", limit: 15 * time.Minute, title: "a disk for any initiator",
		what: "README's disk for any iSCSI initiator", document: anyInitiatorHead, mayLack: true},
	{part: partNVMe, log: "initiators", test: "TestNVMe", limit: 12 * time.Minute, title: "the kernel's NVMe host",
		what: "nvme-rdma over soft-iWARP", document: nvmeHead, mayLack: true},
	{part: partPrograms, log: "programs", test: "TestPrograms", limit: 15 * time.Minute, title: "programs of others",
		what: "programs of libibverbs and librdmacm on this host", document: programsHead, mayLack: true, here: true},
	{part: partPrograms, log: "programs", test: "TestProgramsInIPsec", limit: 12 * time.Minute, title: "programs in IPsec",
		what: "programs on two hosts in namespaces, in IPsec", document: programsIPsecHead, mayLack: true, here: true},
	{part: partPrograms, log: "initiators", test: "TestProgramsAndSiw", limit: 10 * time.Minute, title: "programs and soft-iWARP",
		what: "the same programs with themselves on soft-iWARP", document: programsSiwHead, mayLack: true},
	{part: partSELinux, log: "selinux", test: "TestSELinux", limit: 6 * time.Minute, title: "labels",
		what: "labels and partitions with SELinux", document: selinuxHead, mayLack: true},
	{part: partSELinux, log: "selinux", test: "TestDaemon", limit: 6 * time.Minute, title: "daemons with labels",
		what: "daemons whose partition SELinux decides about", document: labelledDaemonsHead, mayLack: true},
	{part: partSELinux, log: "selinux", test: "TestAppArmor", limit: 6 * time.Minute, title: "labels with AppArmor",
		what: "labels with AppArmor", document: apparmorHead, mayLack: true, long: true},
	{part: partFabric, log: "ibsimnet", test: "TestOpenSM", limit: 5 * time.Minute, title: "opensm",
		what: "a subnet manager of others", document: openSMHead, mayLack: true, here: true},
	{part: partFabric, log: "ibsimnet", test: "TestStockPrograms", limit: 5 * time.Minute, title: "InfiniBand's programs",
		what: "saquery, sminfo, smpquery and ibaddr", document: stockHead, mayLack: true, here: true},
	{part: partFabric, log: "ibsimnet", test: "TestElectionWithOpenSM", limit: 5 * time.Minute, title: "an election with opensm",
		what: "an election with a subnet manager of others", document: electionHead, mayLack: true},
	{part: partCSI, log: "csi", at: "csi/driver", test: "TestKernelVolumes", limit: 20 * time.Minute, title: "volumes of the CSI driver",
		what: "the CSI driver with the kernel's nbd", document: csiHead, mayLack: true},
	{part: partMounted, log: "newcomer", test: "TestMountedDisk", limit: 20 * time.Minute, title: "hosts with systemd",
		what: "README's two hosts with systemd", document: mountedHead, mayLack: true, apart: true},
}

// outsideOutcome is the result of one.
type outsideOutcome struct {
	outside
	tests []Test
	trouble
}

// dir is where its files are in a run's directory.
func (o outside) dir(run string) string { return filepath.Join(run, o.part, o.test) }

// outside runs one, with the virtual machine in the cache.
func (l *lab) outside(ctx context.Context, what outside, cache, out string) (o outsideOutcome, err error) {
	o.outside = what
	out = o.dir(out)
	if err := os.MkdirAll(out, 0o755); err != nil {
		return o, err
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	log, err := os.Create(filepath.Join(out, o.log+".log"))
	if err != nil {
		return o, err
	}
	defer log.Close()
	begin := time.Now()
	cmd := exec.CommandContext(ctx, l.program(o.log), "-test.v", "-test.run", "^"+o.test+"$")
	cmd.Dir = cmp.Or(o.at, filepath.Join("integration", o.log)) // as go test does
	cmd.Env = append(os.Environ(), "IRONWARP_VM_CACHE="+cache)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return o, err
	}
	l.took(strings.TrimPrefix(o.test, "Test"), time.Since(begin), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	status := fmt.Sprintln(cmd.ProcessState.ExitCode())
	if err := os.WriteFile(filepath.Join(out, o.log+".status"), []byte(status), 0o644); err != nil {
		return o, err
	}
	o.tests, err = o.readProgram(out, o.log)
	return o, err
}

// chosen reports whether it is to be run.
func (o outside) chosen(a arguments) bool {
	if (o.apart || o.long && !a.whole) && a.part != o.part {
		return false
	}
	return a.includes(o.part) && regexp.MustCompile(a.only).MatchString(o.test)
}

func (o *outsideOutcome) passed() int {
	n, _, _ := countTests(o.tests)
	return n
}

// unexpected names what is not as expected, and what was skipped though nothing is
// missing.
func (o *outsideOutcome) unexpected() []string {
	names := slices.Concat(namesOf(o.tests, resultFail), o.broken)
	if !o.mayLack {
		names = append(names, namesOf(o.tests, resultSkip)...)
	}
	return names
}

// skipped counts the tests for which this host lacks something.
func (o *outsideOutcome) skipped() int {
	_, _, skipped := countTests(o.tests)
	if !o.mayLack {
		return 0
	}
	return skipped
}

// print reports the results in short and failures in full, with the logs in dir.
func (o *outsideOutcome) print(w io.Writer, dir string) {
	printRows(w, o.title, rowsOf(o.tests))
	o.trouble.print(w)
	log, _ := os.ReadFile(filepath.Join(o.dir(dir), o.log+".log"))
	for _, t := range o.tests {
		if t.Result == resultFail {
			fmt.Fprintf(w, "\n%s: FAILED\n%s\n", t.Name, complaints(string(log), t.Name))
		}
	}
}

// writeDocument is its part of docs/interop.md.
func (o *outsideOutcome) writeDocument(w io.Writer) {
	fmt.Fprint(w, o.document)
	documentRows(w, "what", rowsOf(o.tests))
}

const powerHead = `
## Power cuts

The exporting host is a virtual machine, whose clients attach from outside. QEMU is killed under their writes and booted again with
what its disks had been given; what clients were told before and after has to be what one disk could have told them
([security.md](security.md#what-is-written-stays)).

`

const deviceHead = `
## Block devices

In the virtual machine, whose kernel has nbd, a disk is attached as a block device with ext4 on it, on which fio writes and verifies
files meanwhile.

`

const guestHead = `
## Disks of guests

A guest of QEMU has a disk of the exporting host's through the attaching host's vhost-user socket; fio writes and verifies it in the guest
meanwhile, and in the end the exported file is compared with what the guest reads.

`

const iscsiHead = `
## The kernel's iSER initiator

In the virtual machine the kernel's ib_iser, which open-iscsi has log in over soft-iWARP, uses our iSCSI target in a network namespace of its
own. ext4 is made on the disk; fio writes and verifies files and the disk; in the end the disk is compared with the target's file.

`

const iscsiTCPHead = `
## The kernel's iSCSI initiator

The same with iscsi_tcp, with digests, at the same port.

`

const multipathHead = `
## Multipath

In the virtual machine iscsi_tcp logs in at two portals of our target, by two wires, and multipath-tools make one disk of the two, with ALUA. fio
writes and verifies a file system on it while either wire is down in turn; in the end the disk is compared with the target's file. Meanwhile
the disk is reserved, by persistent reservations of both paths.

`

const nvmeHead = `
## The kernel's NVMe host

In the virtual machine Linux' nvme-rdma attaches a namespace of package nvme/target over soft-iWARP, in another network namespace, with nvme-cli ([nvme.md](nvme.md)).

`

const libiscsiHead = `
## libiscsi's suite over iSER

In the virtual machine libiscsi's own iSER, on Linux' verbs and soft-iWARP, runs its suite, a process for each test, against our target. libiscsi 1.19 frees a
connection that its thread still uses, and then crashes, whatever the target: a library put in front keeps it.

`

const tgtISERHead = `
## The tester of iSCSI targets over iSER

In the virtual machine the cases of ` + "`ironwarp iscsi test`" + ` judge tgt's target in a network namespace of its own, over iSER on soft-iWARP: it has to fail the cases of
[iscsitest.md](iscsitest.md) and no other.

`

const rdmaTestHead = `
## The tester of RDMA stacks

In the virtual machine ` + "`ironwarp rdma test`" + ` judges soft-iWARP, with the agent in a network namespace of its own, and an agent that tells wrong lengths.

`

const programsHead = `
## Programs of others

On this host, over loopback, programs of libibverbs and librdmacm run on IronWarp's own libibverbs ([programs.md](programs.md)): perftest, the tools of
librdmacm with its sockets, fio.

`

const programsIPsecHead = `
## Programs in IPsec

On two hosts in network namespaces, with a daemon and a strongSwan each, programs of root and of another user reach each other by either
host's dialling. SAs are deleted under ib_write_bw, daemons are stopped and killed, streams killed and a peer blocked; a program has ports that
it may not have, or asks nobody. Each packet on the wire is judged: nothing of it may be in clear.

`

const programsSiwHead = `
## Programs and soft-iWARP

In the virtual machine, in two network namespaces, rping, perftest and others run on IronWarp in one and on the kernel's soft-iWARP in the
other, in both roles.

`

const selinuxHead = `
## Labels

In the virtual machine, whose kernel has SELinux, package fabric/selinux asks the kernel which labels may use which partitions
([fabric.md](fabric.md)), by policies that checkmodule and secilc have compiled.

`

const labelledDaemonsHead = `
## Daemons with labels

There two daemons have a partition whose label that kernel decides about. One user's processes run under different labels and attach disks of it; policies are loaded and SELinux' mode is
switched under I/O.

`

const apparmorHead = `
## Labels with AppArmor

The same kernel with AppArmor instead.

`

const csiHead = `
## Volumes of the CSI driver

In the virtual machine the driver mounts volumes of two pools by the kernel's nbd ([kubernetes.md](kubernetes.md)): of files on XFS, which it snapshots by reflinks, and of thin logical volumes.

`

const openSMHead = `
## Another subnet manager

On this host opensm manages a network of ibsim's. What it answers to some 70 requests is what our directory answers without the enhanced trust model, but for
differences that the table names with their reasons (` + "`integration/ibsimnet/rules_test.go`" + `).

`

const stockHead = `
## InfiniBand's programs

On this host Debian's saquery, sminfo, smpquery and ibaddr ask our directory, manager and agents, by way of libumad2sim and a server that takes ibsim's place.
libumad2sim drops the last 32 bytes of each MAD and knows nothing of RMPP: for long tables a library of our own behind it restores both.

`

const electionHead = `
## An election with another subnet manager

On this host opensm and IronWarp's manager share a network of ibsim's, and agree by SMInfo which of them is the master.

`

const anyInitiatorHead = `
## A disk for any initiator

In the virtual machine the commands of "A disk for any iSCSI initiator" in [README.md](../README.md) are run as they stand there, but for
the packages and the addresses, on two hosts with a daemon and a strongSwan each: open-iscsi finds the disk in ESP and has a file system on
it. sg3-utils reserve the disk, copy and unmap blocks. fio writes and verifies while the SAs are deleted from either host, and strongSwan and
the daemon of the exporting host are killed; nothing of it may be in clear on the wire. In the end open-iscsi logs in with CHAP.

`

const mountedHead = `
## Hosts with systemd

In the virtual machine are two machines whose process 1 is Debian's systemd; on these the commands of "Two hosts by hand" in
[README.md](../README.md) are run as they stand there, but that the program has been built before and the packages are installed. The disk stays mounted while
either daemon is restarted; it is unmounted by a shutdown and mounted by the next boot, and mounted again after a power cut, as soon as the other host's daemon, which was
away, is back.

`
