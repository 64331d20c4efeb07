package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ironwarp/ironwarp/integration/ikematrix"
)

//go:embed esp.sh
var espScript string

// Limits of time in the machine whose kernel does ESP. Without -whole its runs take
// some 15 minutes beside another machine.
const (
	espTime    = 30 * time.Minute // of each program
	matrixTime = 25 * time.Minute
	machineESP = 60 * time.Minute // of all
)

// kernelTests are the tests of package ipsectest that need the kernel's ESP. They
// measure, and so have the machine to themselves; the others and the matrix run side by
// side.
const kernelTests = "^TestKernelESP"

// planeless are tests that do not depend on what does ESP: of certificates, of IKE's
// own keys and of strongSwan's error messages; tests that the matrix covers; and three
// that rely on timing which the emulated machine's slow exchanges do not keep. make
// test runs them. Those over SCTP have a machine of their own.
const planeless = "Associations?|SCTP|LinksOfAPeer|OfEachLink|Datagrams|StreamDoesNotGoOn|Phase2DeleteLeaves/IKE/set-up|Certificate|Credentials|CRL|OCSP|Revoked|CannotAuthenticate|FreshIKEKeys|AuthenticatesAnew|Explained|MissingPlugins|ProfilesCarry|TripleDES|BlockCounts|BlockIsPutBack|DoctorShowsBlocks|/SCTP|EveryAnswerThatQuotes|ForwardedQuotes|WithoutTables|TableOfTheGuard|StreamWhoseSAIsLost"

// largeESP are tests that only -whole runs: make test has them with userland ESP, and
// others of their table, or kernelTests, cover what differs with the kernel's.
const largeESP = "Phase2DeleteLeavesTheStreamUp/IKEv1|GuardGoesAfterTheLastByteOfItsLink/IPv6|KernelESPWithSiwInside/we connect, siw.s SA|KernelESPWithSiwInside/siw connects, a Manager" +
	"|BlockStopsNothingElse|BlockOutlivesItsProcess|PeerThatRebooted|PeerThatForgotEverything|FlowIsAdmittedUnder|FlowOfRightAddresses" +
	"|ChildDeletedTenTimes|WrongKey|WrongIdentity|NoESPAnywhere|DifferentNumbersOfChildSAs|IPv6StreamSurvives|OtherTrafficToThePeer" +
	"|GuardIsIdempotent|GuardStaysWhenManager|SimultaneousInitiation|Swanctl|FindsItsConnectionUnloaded|IdleStreamOutlives|WireCut" +
	"|ControlWithoutALimitOfBytes|StreamKeepsItsRoute|ControlALostSA|DoctorShowsThePlane|TestFragmentsOfWhat|DoesNotForwardThePortInClear" +
	"|PeerWithoutAnSAIsNotAnswered|StreamsOfABlockOfPorts|WithAnotherBlockOfPorts|WithoutTheBlockOfPorts|BlockOfPortsIsStopped|StreamThroughAGateway|ControlAGateway|NeighbourWritesNothing" +
	"|KernelESPCarriesRDMAAsFastAsTCP|KernelESPCarriesOnWithoutCharonAndKeepsNoOrphans/tunnel|KernelDoesNotQuoteWhatESPCarried/IPv6" +
	"|GuardGoesAfterTheLastByteOfItsLink/IPv4 dialled there|ControlWithoutTheGuardTheSamePackets|FloodsOfANeighbour|IdleChildIsReaped.*/IKEv1"

// allowed is a limit of time; the largest tables, in full, take long beside other work.
func allowed(limit time.Duration, whole bool) time.Duration {
	if whole {
		return 3 * limit
	}
	return limit
}

// The programs that run there, by the names of their logs.
const (
	logKernel = "kernel"
	logOthers = "ipsectest"
	logMatrix = "ikematrix"
)

// espOutcome is the result of the machine whose kernel does ESP.
type espOutcome struct {
	kernel, others []Test            // by test
	matrix         *ikematrix.Report // nil: it was not run
	trouble
}

// espScriptFor runs the tests that match only ("": all, and the matrix) in the guest,
// with the largest tables in full if whole.
func (l *lab) espScriptFor(only string, whole bool) string {
	var b strings.Builder
	large, matrix := "", ""
	if !whole {
		large, matrix = largeESP, " -"+ikematrix.Few
	}
	skip := skipLarge(large, kernelTests+"|"+planeless)
	seconds := func(d time.Duration) int { return int(allowed(d, whole).Seconds()) }
	fmt.Fprintf(&b, "%s\n%s\nexport IRONWARP_SIW_AGENT=%s\n", programsScript, espScript, quote(l.agent))
	run, all := quote(only), only == ""
	if all {
		run = quote(kernelTests)
	}
	if !all {
		large = "" // one asked for it by name
	}
	fmt.Fprintf(&b, "run %s %d %s -test.v -test.run %s -test.skip %s\n", logKernel, seconds(espTime), quote(l.program("ipsectest")), run, quote(large))
	if all {
		fmt.Fprintf(&b, "run %s %d %s -test.v -test.skip %s &\n", logOthers, seconds(espTime), quote(l.program("ipsectest")), quote(skip))
		fmt.Fprintf(&b, "run %s %d %s ikematrix -kernel -results $out/ikematrix.json -test.v%s &\nwait\n", logMatrix, seconds(matrixTime), quote(l.self), matrix)
		for _, name := range []string{logKernel, logOthers} {
			fmt.Fprintf(&b, "again %s %d %s -test.v\n", name, seconds(espTime), quote(l.program("ipsectest")))
		}
		fmt.Fprintf(&b, "again %s %d %s ikematrix -kernel -results $out/ikematrix-again.json -test.v%s\n", logMatrix, seconds(matrixTime), quote(l.self), matrix)
	}
	b.WriteString("finish\n")
	return b.String()
}

// skipLarge is the pattern of what a program skips, large first: the testing package
// takes the first alternative that matches a test's name, and where that alternative
// also names a test below it, the test itself is begun.
func skipLarge(large, rest string) string { return strings.Trim(large+"|"+rest, "|") }

// esp boots the machine and runs the tests.
func (l *lab) esp(ctx context.Context, only string, whole bool, out string) (o espOutcome, err error) {
	if err := l.programs(ctx, l.espScriptFor(only, whole), out, allowed(machineESP, whole)); err != nil {
		return o, err
	}
	return readESP(out)
}

// espAgain is esp, repeated if siw has crashed the machine.
func (l *lab) espAgain(ctx context.Context, only string, whole bool, out string, progress func(string)) (o espOutcome, err error) {
	err = onCrash(errSiwCrashed, progress, func(try int) (err error) {
		o, err = l.esp(ctx, only, whole, filepath.Join(out, fmt.Sprintf("esp%d", try)))
		return err
	})
	return o, err
}

// readESP reads the programs' results in a directory.
func readESP(dir string) (o espOutcome, err error) {
	if o.kernel, err = o.readProgram(dir, logKernel); err != nil {
		return o, err
	}
	if o.others, err = o.readProgram(dir, logOthers); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return o, err
	}
	o.readMatrix(dir)
	return o, nil
}

func (o *espOutcome) readMatrix(dir string) {
	name := logMatrix
	r, err := ikematrix.ReadReport(filepath.Join(dir, name+".json"))
	if again, aerr := ikematrix.ReadReport(filepath.Join(dir, name+secondTry+".json")); aerr == nil && err == nil && again.Complete {
		if len(again.Failed()) == 0 {
			o.shaky = append(o.shaky, r.Failed()...)
		}
		name, r = name+secondTry, again
	}
	if err == nil {
		o.matrix = r
	}
	if log, lerr := os.ReadFile(filepath.Join(dir, name+".log")); lerr == nil && (err != nil || !r.Complete) {
		o.broken = append(o.broken, fmt.Sprintf("%s did not come to its end: %s", name, lastLine(string(log))))
	}
}
