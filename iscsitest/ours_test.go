package iscsitest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iscsitest"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/scsi/lu"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

const name = "iqn.2026-01.org.ironwarp:judged"

// serve serves a disk of 64 MiB as LUN 0 of our own target, over all transports at one port.
func serve(t testing.TB, credentials []chap.Credentials) iscsitest.Target {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 64<<20); err != nil {
		t.Fatal(err)
	}
	target, _ := serveFile(t, path, credentials)
	return target
}

// serveFile does that with a file, and returns the target's device as well.
func serveFile(t testing.TB, path string, credentials []chap.Credentials) (iscsitest.Target, *lu.Device) {
	t.Helper()
	st, err := backing.Open(path, backing.Options{})
	if err != nil {
		t.Fatal(err)
	}
	unit, err := lu.New(lu.Config{Medium: st, Reservations: path + ".reservations", Sanitize: path + ".sanitize"})
	if err != nil {
		t.Fatal(err)
	}
	d := &lu.Device{}
	if err := d.Add(0, unit); err != nil {
		t.Fatal(err)
	}
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ulp, err := dev.NewULP("target", verbs.ULPConfig{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ln, err := dev.Listen(ctx, netip.MustParseAddrPort("127.0.0.1:0"), verbs.ListenConfig{Transport: &transport.Config{Protector: transport.LoopbackOnly()}, Streaming: true})
	if err != nil {
		t.Fatal(err)
	}
	srv := target.NewServer(target.Config{LogoutWait: -1, DataWait: 100 * time.Millisecond}) // who resets a unit need not send what it was asked for
	if err := srv.Add(&target.Target{Name: name, Device: d, CHAP: credentials, ErrorRecoveryLevel: 2}); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- srv.ServeRDMA(ctx, ln, ulp) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		unit.Close()
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		if left := ulp.Usage(); left != (verbs.Limits{}) {
			t.Errorf("the sessions have left %+v", left)
		}
		dev.Close()
	})
	return iscsitest.Target{Address: ln.Addr().String(), Name: name}, d
}

// judge fails the test for each case that a target fails.
func judge(t *testing.T, target iscsitest.Target, o iscsitest.Options) *iscsitest.Report {
	t.Helper()
	report, err := iscsitest.Run(t.Context(), target, o)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range report.Results {
		switch r.Verdict {
		case iscsitest.Pass, iscsitest.Skip:
		default:
			t.Errorf("%s\n%s", r.Line(), r.Words())
		}
	}
	t.Log(report.Summary())
	return report
}

// TestOurTarget: it has no FAIL, over each transport, with and without CHAP.
func TestOurTarget(t *testing.T) {
	for _, over := range []iscsitest.Transport{iscsitest.TCP, iscsitest.ISER, iscsitest.ISERStreaming} {
		t.Run(over.String(), func(t *testing.T) {
			target := serve(t, nil)
			target.Over = over
			table(t, "IronWarp", judge(t, target, iscsitest.Options{Allow: iscsitest.Data | iscsitest.Hostile, Soak: time.Second, Timeout: time.Minute}))
		})
	}
	t.Run("CHAP", func(t *testing.T) {
		x := chap.Credentials{Name: "alice", Secret: []byte("secret of the initiator"), OwnName: "disk", OwnSecret: []byte("secret of the target")}
		target := serve(t, []chap.Credentials{x})
		target.CHAP = &x
		table(t, "IronWarp with CHAP", judge(t, target, iscsitest.Options{Allow: iscsitest.Data | iscsitest.Hostile, Timeout: time.Minute}))
	})
}

// TestNobodyFeelsATestThatMayNotWrite: without --dataloss the disk is only read, attacked or not, and whoever uses it
// at the same time keeps its reservation and is told of no reset.
func TestNobodyFeelsATestThatMayNotWrite(t *testing.T) {
	before := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{}).Read(before)
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, before, 0o600); err != nil {
		t.Fatal(err)
	}
	target, device := serveFile(t, path, nil)
	other := device.Attach(lu.Initiator{Name: "iqn.2026-01.org.example:other"}, nil)
	defer other.Detach()
	do := func(cdb, out []byte) (scsi.Status, scsi.Sense) {
		t.Helper()
		over := make(chan struct{}, 1)
		task := lu.Task{Offered: uint32(len(out)), Ended: func(*lu.Task) { over <- struct{}{} }}
		copy(task.CDB[:], cdb)
		n := other.Nexus(scsi.PutLUN(0))
		n.Prepare(&task)
		n.Begin(&task)
		if task.Buf = make([]byte, task.Length); task.Out {
			copy(task.Buf, out)
		}
		n.Execute(&task)
		<-over
		sense, _ := scsi.ParseSense(task.Sense())
		return task.Status, sense
	}
	good := func(cdb, out []byte) {
		t.Helper()
		if status, sense := do(cdb, out); status != scsi.Good {
			t.Fatalf("%x ends with status %#x, sense %+v", cdb, status, sense)
		}
	}
	key := make([]byte, 24)
	binary.BigEndian.PutUint64(key[8:], 0x1234)
	do([]byte{scsi.TestUnitReady}, nil) // takes the first unit attention
	good([]byte{scsi.PersistentReserveOut, scsi.Register, 8: 24}, key)
	copy(key, key[8:16])
	// What the reservation keeps from its end is inconclusive, and blames nobody.
	run := func(o iscsitest.Options) {
		t.Helper()
		report, err := iscsitest.Run(t.Context(), target, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range report.Results {
			if r.Verdict.Bad() || r.Verdict == iscsitest.Warn || r.Verdict == iscsitest.Inconclusive && !strings.Contains(r.Found, "RESERVATION CONFLICT") {
				t.Errorf("%s\n%s", r.Line(), r.Words())
			}
		}
		if report.Count(iscsitest.Pass) < 100 {
			t.Errorf("over %v: %s", target.Over, report.Summary())
		}
	}
	const writeExclusive = 1
	good([]byte{scsi.PersistentReserveOut, scsi.Reserve, writeExclusive, 8: 24}, key)
	for _, over := range []iscsitest.Transport{iscsitest.TCP, iscsitest.ISER} {
		target.Over = over
		run(iscsitest.Options{Allow: iscsitest.Hostile, Timeout: time.Minute})
		good([]byte{scsi.TestUnitReady}, nil) // no unit attention
		good([]byte{scsi.PersistentReserveOut, scsi.Release, writeExclusive, 8: 24}, key)
		good([]byte{scsi.PersistentReserveOut, scsi.Reserve, writeExclusive, 8: 24}, key)
	}
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the disk has changed: %v", err)
	}

	// A test that may write is kept from it by the reservation, and blames nobody.
	target.Over = iscsitest.TCP
	run(iscsitest.Options{Allow: iscsitest.Data, Timeout: time.Minute})
	if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, before) {
		t.Errorf("the disk was written to although it is reserved: %v", err)
	}
	do([]byte{scsi.TestUnitReady}, nil) // it may reset the unit
	good([]byte{scsi.PersistentReserveOut, scsi.Release, writeExclusive, 8: 24}, key)
}
