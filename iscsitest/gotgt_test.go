package iscsitest_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/iscsitest"
)

// serveGotgt serves a disk by gotgt 0.2.2, which a module of its own builds. It ends at some requests: somebody starts it
// again, as an administrator would.
func serveGotgt(t *testing.T) iscsitest.Target {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(dir, "gotgt")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir, build.Env = "testdata/gotgt", append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		t.Skipf("gotgt can't be built: %v: %s", err, out)
	}
	disk := filepath.Join(dir, "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 64<<20); err != nil {
		t.Fatal(err)
	}
	address, control := netip.MustParseAddrPort(freeAddress(t)), freeAddress(t)
	config := fmt.Sprintf(`{"storages": [{"deviceID": 1000, "path": "file:%s", "online": true, "blockShift": 9}], "iscsiportals": [{"id": 0, "portal": "%s"}],
"iscsitargets": {"%s": {"tpgts": {"1": [0]}, "luns": {"0": 1000}}}}`, disk, address, name)
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for starts := 0; ctx.Err() == nil; starts++ {
			d := exec.CommandContext(ctx, program, "daemon", "--port", fmt.Sprint(address.Port()), "--host", "tcp://"+control, "--log", "error")
			d.Env = append(os.Environ(), "GOSTOR_CONFIG="+dir)
			_ = d.Run()
			if ctx.Err() != nil {
				t.Logf("gotgt has ended %d times", starts)
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	for deadline := time.Now().Add(time.Minute); ; {
		nc, err := net.Dial("tcp", address.String())
		if err == nil {
			nc.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	return iscsitest.Target{Address: address.String(), Name: name}
}

// freeAddress is an address of this host at which nobody listens at the moment.
func freeAddress(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// TestGotgt: the tester comes to its end, whatever gotgt does, and finds what it is known for: it rejects keys that it does
// not know by ending the connection, and it has no digests.
func TestGotgt(t *testing.T) {
	if os.Getenv("IRONWARP_TABLES") == "" {
		t.Skip("make judge runs it")
	}
	report, err := iscsitest.Run(t.Context(), serveGotgt(t), iscsitest.Options{Allow: iscsitest.Data, Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{"login.unknown-key": true, "keys.HeaderDigest.crc32c": true}
	for _, r := range report.Results {
		if known[r.Case] && r.Verdict != iscsitest.Fail {
			t.Errorf("what gotgt is known for is not found: %s", r.Line())
		}
		delete(known, r.Case)
	}
	if len(known) > 0 {
		t.Errorf("there was no verdict on %v", known)
	}
	table(t, "gotgt 0.2.2", report)
}
