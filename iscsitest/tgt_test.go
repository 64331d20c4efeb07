package iscsitest_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsitest"
)

// faultsOfTGT are the cases that the target of tgt 1.0.85 fails, over TCP, each confirmed in docs/iscsitest.md.
var faultsOfTGT = []string{
	"login.split-text", "login.8-kilobytes", "login.unknown-session", "login.key-twice", "login.key-twice-later",
	"keys.HeaderDigest.crc32c", "keys.HeaderDigest.unknown", "keys.DataDigest.crc32c", "keys.DataDigest.unknown", "keys.first-burst-above",
	"numbering.below", "nop.echo-cut",
	"text.normal-own", "text.normal-all", "text.unknown-key", "text.split", "text.not-final", "text.renegotiation", "text.segment",
	"data.unsolicited-unasked", "data.datasn-hole", "data.datasn-twice", "data.datasn-below", "task.abort-task", "task.abort-missing",
	"scsi.lba-status-beyond", "reservation.wrong-key", "reservation.nexus-loss", "reservation.unregister-releases", "reservation.reserve-6",
	"always.readable", "always.burst", "always.expdatasn",
}

// serveTGT serves a disk by tgt's daemon, as LUN 1.
func serveTGT(t *testing.T) iscsitest.Target {
	t.Helper()
	for _, program := range []string{"tgtd", "tgtadm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("needs tgt: %v", err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("tgtd needs root")
	}
	dir := t.TempDir()
	disk := filepath.Join(dir, "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 64<<20); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ln.Close()
	// A control socket of its own keeps it apart from a tgtd that the host may have.
	env := append(os.Environ(), "TGT_IPC_SOCKET="+filepath.Join(dir, "tgtd"))
	d := exec.Command("tgtd", "--foreground", "--iscsi", "portal="+address)
	d.Env = env
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.Process.Kill() // it ignores SIGTERM
		d.Wait()
	})
	adm := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(t.Context(), "tgtadm", append([]string{"--lld", "iscsi"}, args...)...)
		cmd.Env = env
		return cmd.CombinedOutput()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for tick := time.NewTicker(50 * time.Millisecond); ; <-tick.C {
		if _, err := adm("--mode", "target", "--op", "show"); err == nil {
			tick.Stop()
			break
		} else if ctx.Err() != nil {
			t.Fatal("tgtd does not answer")
		}
	}
	for _, args := range [][]string{
		{"--mode", "target", "--op", "new", "--tid", "1", "--targetname", name},
		{"--mode", "logicalunit", "--op", "new", "--tid", "1", "--lun", "1", "--backing-store", disk},
		{"--mode", "target", "--op", "bind", "--tid", "1", "--initiator-address", "ALL"},
	} {
		if out, err := adm(args...); err != nil {
			t.Fatalf("%v: %v: %s", args, err, out)
		}
	}
	return iscsitest.Target{Address: address, Name: name, LUN: 1}
}

// TestTGT: the faults of tgt's target are found, and nothing else is called a fault. It is not attacked: tgtd does not
// survive that.
func TestTGT(t *testing.T) {
	report, err := iscsitest.Run(t.Context(), serveTGT(t), iscsitest.Options{Allow: iscsitest.Data, Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		known := slices.Contains(faultsOfTGT, r.Case)
		if (r.Verdict == iscsitest.Fail) != known || r.Verdict == iscsitest.TargetDown || r.Verdict == iscsitest.Inconclusive {
			t.Errorf("%s\n%s", r.Line(), r.Words())
		}
	}
	table(t, "tgt 1.0.85", report)
}

// table adds a report to the file of IRONWARP_TABLES, which becomes docs/iscsitest-tables.md.
func table(t *testing.T, title string, report *iscsitest.Report) {
	t.Helper()
	note(t, "\n%s", report.Markdown(title))
}

// note adds to that file.
func note(t *testing.T, format string, args ...any) {
	t.Helper()
	path := os.Getenv("IRONWARP_TABLES")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(f, format, args...); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
