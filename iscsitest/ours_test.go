package iscsitest_test

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/chap"
	"github.com/ironwarp/ironwarp/iscsi/target"
	"github.com/ironwarp/ironwarp/iscsitest"
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
	return iscsitest.Target{Address: ln.Addr().String(), Name: name}
}

// judge fails the test for each case that a target fails.
func judge(t *testing.T, target iscsitest.Target, o iscsitest.Options) {
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
	title := "IronWarp"
	if target.CHAP != nil {
		title += " with CHAP"
	}
	table(t, title, report)
}

// TestOurTarget: it has no FAIL, over each transport, with and without CHAP.
func TestOurTarget(t *testing.T) {
	for _, over := range []iscsitest.Transport{iscsitest.TCP, iscsitest.ISER, iscsitest.ISERStreaming} {
		t.Run(over.String(), func(t *testing.T) {
			target := serve(t, nil)
			target.Over = over
			judge(t, target, iscsitest.Options{Allow: iscsitest.Data | iscsitest.Hostile, Timeout: time.Minute})
		})
	}
	t.Run("CHAP", func(t *testing.T) {
		x := chap.Credentials{Name: "alice", Secret: []byte("secret of the initiator"), OwnName: "disk", OwnSecret: []byte("secret of the target")}
		target := serve(t, []chap.Credentials{x})
		target.CHAP = &x
		judge(t, target, iscsitest.Options{Allow: iscsitest.Data | iscsitest.Hostile, Timeout: time.Minute})
	})
}
