package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed sctp.sh
var sctpScript string

// machineSCTP limits the time of the machine whose kernel has SCTP. Without -whole
// its runs take some 15 minutes beside another machine.
const machineSCTP = 70 * time.Minute

// sctpPrograms are the test programs that run there. The first ones, which wait for
// retransmissions most of the time, do so side by side, the others one after the
// other.
var sctpPrograms = []struct {
	name  string // of the program and of its log
	tests string // those of its tests that run there
	skip  string // except these
	large string // and except these without -whole: combinations of what also runs alone, and all of chaos, as the demo runs
	limit time.Duration
	aside bool // it runs beside the next
}{
	{"ksctp", ".", "", "ConformanceOfOurEndpointInUDPAndTheKernels/2 % loss|ConformanceOfOurEndpointInUDPAndTheKernels/good wire, the kernel dials", 25 * time.Minute, true},
	{"transport", ".", "", "", 25 * time.Minute, true},
	{"verbs", "OverSCTPBetweenHosts|OverSCTPOnBadWires|ImpairedWireLosesPackets", "", "BetweenHosts$/sctp-udp|BetweenHosts$/sctp IPv6|OnBadWires/a delay|OnBadWires/reordering|OnBadWires/duplication|OnBadWires/[0-9] % loss|OnBadWires/sctp-udp all of that", 25 * time.Minute, true},
	{"ipsectest", associations, besides, "Phase2DeleteLeavesAssociationsUp/SCTP in UDP|Phase2DeleteLeavesAssociationsUp/kernel SCTP IKEv1|KernelSCTPAssociationKeepsItsGuard/IPv6|KernelSCTPAssociationKeepsItsGuard/IPv4, dialled there|BlockedPeerReachesNothing/kernel SCTP IPv6|PeerWithoutAnSAIsNotAnswered/kernel SCTP IPv6", 35 * time.Minute, false},
	{"chaos", "KernelSCTP", "", "StormOfDeletes|FailsOver", 25 * time.Minute, false},
	{"peers", "WhatIsQueued|NarrowerThanItsEnds|CaptureIsInClear", "/tcp$|/_tcp$|/_sctp-udp$|/^tcp_|/^sctp-udp_", "NarrowerThanItsEnds/sctp later|WhatIsQueuedForARemovedPeerIsNeverSent/removed from the files", 15 * time.Minute, false},
}

// associations are the tests of package ipsectest about the kernel's SCTP inside of its
// ESP, without those that make test runs with SCTP in UDP and userland ESP, and without
// deletes during set-up, which rely on timing that the emulated machine's slow
// exchanges do not keep.
const (
	associations = "Phase2DeleteLeavesAssociationsUp|ControlAnAssociation|AssociationSurvivesEveryLoss|AssociationsSurviveOverIPv6|ClearAssociationIsNotAdmitted|BlockedPeerReachesNothing|PeerWithoutAnSAIsNotAnswered|GatewaysTunnel|ControlAGateway|KernelSCTP|MultihomedAssociation|PeerOfAnAssociationThatRebooted"
	besides      = "/SCTP in UDP IKEv1|/SCTP in UDP IPv|/SCTP in UDP$|/^TCP|Phase2DeleteLeavesAssociationsUp/IKE/set-up"
)

// logDemo is the log of the demo, and of its files.
const (
	logDemo  = "demo"
	demoTime = 10 * time.Minute
	demoRow  = "the demo, `make demo TRANSPORT=sctp`: a disk is copied and written while child SAs are deleted and strongSwan is killed"
)

// sctpOutcome is the result of the machine whose kernel has SCTP.
type sctpOutcome struct {
	dir   string // its files
	tests []Test
	trouble
}

// sctpScriptFor runs the tests that match only ("": all, and the demo) in the guest,
// with the largest tables in full if whole.
func (l *lab) sctpScriptFor(only string, whole bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\nexport IRONWARP_BINARY=%s\n", programsScript, sctpScript, quote(l.binary))
	for i, p := range sctpPrograms {
		tests, skip := only, p.skip
		if tests == "" {
			tests = p.tests
			if !whole {
				skip = skipLarge(p.large, skip)
			}
		}
		end := ""
		if p.aside {
			end = " &"
		} else if i > 0 && sctpPrograms[i-1].aside {
			b.WriteString("wait\n")
		}
		fmt.Fprintf(&b, "run %s %d %s -test.v -test.run %s -test.skip %s%s\n", p.name, int(allowed(p.limit, whole).Seconds()), quote(l.program(p.name)), quote(tests), quote(skip), end)
	}
	if only == "" {
		fmt.Fprintf(&b, "run %s %d %s -quick -transport sctp -ironwarp %s\n", logDemo, int(allowed(demoTime, whole).Seconds()), quote(l.program("demo")), quote(l.binary))
		for _, p := range sctpPrograms {
			fmt.Fprintf(&b, "again %s %d %s -test.v -test.skip %s\n", p.name, int(allowed(p.limit, whole).Seconds()), quote(l.program(p.name)), quote(p.skip))
		}
	}
	b.WriteString("finish\n")
	return b.String()
}

// sctpCrashed matches a crash of the guest's kernel in its SCTP: an oops whose call trace leads through it. Linux
// 6.1.192 follows a null pointer below sctp_rcv, rarely, where packets are corrupted and reordered.
var sctpCrashed = regexp.MustCompile(`(?s)BUG: .*?Call Trace:.{0,400}?\bsctp_\w+\+\S+ \[sctp\]`)

// errSCTPCrashed means that the kernel's SCTP has crashed the virtual machine.
var errSCTPCrashed = errors.New("the kernel's SCTP crashed the virtual machine")

// sctp boots the machine and runs the tests, all of them once more if the kernel's SCTP crashes it.
func (l *lab) sctp(ctx context.Context, only string, whole bool, out string, progress func(string)) (o sctpOutcome, err error) {
	err = onCrash(errSCTPCrashed, progress, func(try int) (err error) {
		dir := filepath.Join(out, fmt.Sprintf("sctp%d", try))
		if err := l.programs(ctx, l.sctpScriptFor(only, whole), dir, allowed(machineSCTP, whole)); err != nil {
			return err
		}
		o, err = readSCTP(dir, only == "")
		return err
	})
	return o, err
}

// readSCTP reads the results of the programs and of the demo in a directory.
func readSCTP(dir string, demo bool) (o sctpOutcome, err error) {
	o.dir = dir
	for _, p := range sctpPrograms {
		tests, err := o.readProgram(dir, p.name)
		if err != nil {
			return o, err
		}
		o.tests = append(o.tests, tests...)
	}
	if demo {
		o.tests = append(o.tests, readDemo(dir))
	}
	return o, nil
}

// claim is a line of the table at the end of the demo.
var claim = regexp.MustCompile(`(?m)^(ok|FAIL)  `)

// readDemo reads the demo's result as that of a test.
func readDemo(dir string) Test {
	t := Test{Name: "Demo", Result: resultFail, Row: demoRow}
	if readStatus(dir, logDemo) == "0" {
		t.Result = resultPass
	}
	log, _ := os.ReadFile(filepath.Join(dir, logDemo+".log"))
	hold, all := 0, claim.FindAllSubmatch(log, -1)
	for _, m := range all {
		if string(m[1]) == "ok" {
			hold++
		}
	}
	t.Detail = fmt.Sprintf("%d of %d claims hold", hold, len(all))
	return t
}

func (o *sctpOutcome) passed() int {
	n, _, _ := countTests(o.tests)
	return n
}

// unexpected names what is not as expected: nothing that has a row may be skipped
// here.
func (o *sctpOutcome) unexpected() []string {
	return slices.Concat(namesOf(o.tests, resultFail), namesOf(o.rows(), resultSkip), o.broken)
}

// rows are the tests that have a row of their own.
func (o *sctpOutcome) rows() []Test { return rowsOf(o.tests) }

// othersLine sums up the tests that have no row.
func (o *sctpOutcome) othersLine() string {
	return othersLine(o.tests, "%d other tests passed in this machine", "%d are about something else than the kernel's SCTP")
}

// print reports the results in short and failures in full.
func (o *sctpOutcome) print(w io.Writer) {
	printRows(w, "the kernel's SCTP", o.rows())
	fmt.Fprintln(w, o.othersLine())
	o.trouble.print(w)
	for _, p := range append([]string{logDemo}, o.logs()...) {
		b, _ := os.ReadFile(filepath.Join(o.dir, p+".log"))
		for _, t := range o.tests {
			switch {
			case t.Result != resultFail:
			case p == logDemo && t.Row == demoRow:
				fmt.Fprintf(w, "\n%s: FAILED\n%s\n", t.Name, tailLines(string(b), 60))
			case strings.Contains(string(b), "=== RUN   "+t.Name+"\n"):
				fmt.Fprintf(w, "\n%s: FAILED\n%s\n", t.Name, complaints(string(b), t.Name))
			}
		}
	}
}

func (o *sctpOutcome) logs() (names []string) {
	for _, p := range sctpPrograms {
		names = append(names, p.name)
	}
	return names
}

// document is the part of docs/interop.md about SCTP.
func (o *sctpOutcome) document(w io.Writer) {
	fmt.Fprint(w, sctpHead)
	documentRows(w, "what", o.rows())
	fmt.Fprintf(w, "\n%s.\n", o.othersLine())
}

const sctpHead = `
## SCTP

A third machine has the kernel's SCTP: as the carrier of our streams at both ends, and as a foreign peer of the SCTP in UDP that
IronWarp brings itself, with Linux' encapsulation (RFC 6951) in both roles. netem impairs the wire where a row says so; inside of
the kernel's ESP the SAs are deleted, paths are cut, and a capture decides whether a packet left in clear.

`
