package driver

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(asDaemon) != "" {
		os.Exit(beDaemon())
	}
	// ginkgo, below csi-sanity, waits for Ctrl-C as long as the process lives.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/onsi/ginkgo/v2/internal/interrupt_handler.(*InterruptHandler).registerForInterrupts.func2"))
}

// serve serves a plugin on a socket below dir, until the test ends.
func serve(t *testing.T, dir string, daemon Daemon, c Config) (endpoint string) {
	t.Helper()
	c.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := New(daemon, c)
	if err != nil {
		t.Fatal(err)
	}
	endpoint = "unix://" + filepath.Join(dir, "csi.sock")
	l, err := Listen(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return endpoint
}

// shortDir is a folder whose name is short enough for Unix sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "iwcsi")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// judge has csi-sanity judge a plugin.
func judge(t *testing.T, dir, endpoint string) {
	c := sanity.NewTestConfig()
	c.Address = endpoint
	c.TargetPath, c.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	c.TestVolumeSize, c.TestVolumeExpandSize = 16*mega, 32*mega
	c.IdempotentCount = 2
	sanity.Test(t, c)
}

// The driver keeps the specification, as csi-sanity reads it: over the daemons of a storage host and of a node, or where these have
// no pool that makes snapshots, over a double. csi-sanity runs once in a process.
func TestSanity(t *testing.T) {
	judged := false
	t.Run("daemons", func(t *testing.T) {
		_, nodes := newStore(t, fileSystem(t), "node")
		dir := shortDir(t)
		endpoint := nodes[0].plugin(t, dir, true, false)
		judged = true
		judge(t, dir, endpoint)
	})
	if judged {
		return
	}
	t.Run("double", func(t *testing.T) {
		dir := shortDir(t)
		mounter, _ := newMounts()
		judge(t, dir, serve(t, dir, newDouble(), Config{Version: "test", Controller: true, Hosts: []Host{{Name: "store"}}, Node: true, NodeID: "node", BaseDir: dir,
			StateDir: filepath.Join(dir, "state"), mounter: mounter, sockets: true}))
	})
}
