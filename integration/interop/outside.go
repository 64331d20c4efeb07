package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// logPower is the test program whose tests kill their own machines, from outside of
// them, and so run on this host.
const (
	logPower  = "history"
	powerTest = "TestRealPowerCut"
	powerTime = 15 * time.Minute
)

// powerOutcome is what came of hosts whose power was cut.
type powerOutcome struct {
	tests []Test
	trouble
}

// power runs the tests that cut the power of virtual machines, which are those in
// cache.
func (l *lab) power(ctx context.Context, cache, out string) (o powerOutcome, err error) {
	out = filepath.Join(out, "power")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return o, err
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return o, err
	}
	ctx, cancel := context.WithTimeout(ctx, powerTime)
	defer cancel()
	log, err := os.Create(filepath.Join(out, logPower+".log"))
	if err != nil {
		return o, err
	}
	defer log.Close()
	begin := time.Now()
	cmd := exec.CommandContext(ctx, l.program(logPower), "-test.v", "-test.run", "^"+powerTest+"$")
	cmd.Env = append(os.Environ(), "IRONWARP_VM_CACHE="+cache)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return o, err
	}
	l.took("power", time.Since(begin), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
	status := fmt.Sprintln(cmd.ProcessState.ExitCode())
	if err := os.WriteFile(filepath.Join(out, logPower+".status"), []byte(status), 0o644); err != nil {
		return o, err
	}
	o.tests, err = o.readProgram(out, logPower)
	return o, err
}

// cutsPower tells whether the tests that cut the power are to be run.
func (a arguments) cutsPower() bool {
	return a.includes(partPower) && regexp.MustCompile(a.only).MatchString(powerTest)
}

func (o *powerOutcome) passed() int {
	n, _, _ := countTests(o.tests)
	return n
}

// failed counts what is not as expected, and what was skipped: there is all it needs.
func (o *powerOutcome) failed() int {
	_, failed, skipped := countTests(o.tests)
	return failed + skipped + len(o.broken)
}

// print tells the results in short and failures in full, with the logs in dir.
func (o *powerOutcome) print(w io.Writer, dir string) {
	printRows(w, "power cuts", rowsOf(o.tests))
	o.trouble.print(w)
	log, _ := os.ReadFile(filepath.Join(dir, "power", logPower+".log"))
	for _, t := range o.tests {
		if t.Result == resultFail {
			fmt.Fprintf(w, "\n%s: FAILED\n%s\n", t.Name, complaints(string(log), t.Name))
		}
	}
}

// document is the part of docs/interop.md about power cuts.
func (o *powerOutcome) document(w io.Writer) {
	fmt.Fprint(w, powerHead)
	documentRows(w, "what", rowsOf(o.tests))
}

const powerHead = `
## Power cuts

The exporting host is a virtual machine, whose clients attach from outside. QEMU is killed under their writes and booted again with
what its disks had been given; what clients were told before and after has to be what one disk could have told them
([security.md](security.md#what-is-written-stays)).

`
