package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/internal/otheruser"
	"github.com/ironwarp/ironwarp/iwarptest"
)

// asDaemon makes the test binary a daemon with the configuration that it names, until
// it is killed.
const asDaemon = "IRONWARP_TEST_DAEMON"

func beDaemon() int {
	_, err := Start(context.Background(), Options{Config: os.Getenv(asDaemon), Named: true, Version: "test"})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	select {}
}

// stoppedDisks are as many as would take minutes one after the other, a few seconds
// each.
const stoppedDisks = 24

// stopTime is what ironwarp.service gives a daemon to end.
const stopTime = 30 * time.Second

// stoppable is a host in a process of its own, that can be stopped.
type stoppable struct {
	t    *testing.T
	dir  string
	port uint16
	cmd  *exec.Cmd
	api  *api.Client
}

func newStoppable(t *testing.T) *stoppable {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := &stoppable{t: t, dir: shortDir(t), port: iwarptest.FreePort(t)}
	conf := filepath.Join(s.dir, "ironwarp.yaml")
	text := fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n", s.port, iwarptest.FreeUDPPort(t))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(exe)
	s.cmd.Env = append(os.Environ(), asDaemon+"="+conf)
	s.cmd.Stdout, s.cmd.Stderr = os.Stdout, os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.api = api.NewClient(filepath.Join(s.dir, "run/ironwarp.sock"))
	t.Cleanup(func() {
		s.api.Close()
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	eventually(t, "the other daemon answers", func() bool { _, err := s.api.Info(t.Context()); return err == nil })
	return s
}

func (s *stoppable) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// link declares it and another host to each other.
func (s *stoppable) link(alpha *host) {
	s.t.Helper()
	_, err := alpha.api.AddPeer(s.t.Context(), api.PeerSpec{Name: "beta", Address: "127.0.0.1", Port: s.port, Protection: "loopback"})
	_, berr := s.api.AddPeer(s.t.Context(), api.PeerSpec{Name: "alpha", Address: "127.0.0.1", Port: alpha.port, Protection: "loopback"})
	if err := errors.Join(err, berr); err != nil {
		s.t.Fatal(err)
	}
}

// disk exports a disk of a number, and returns its name.
func (s *stoppable) disk(n int) string {
	s.t.Helper()
	name := fmt.Sprintf("disk%d", n)
	image := filepath.Join(s.dir, name)
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 1<<20)); err != nil {
		s.t.Fatal(err)
	}
	var err error
	eventually(s.t, "a slow machine has opened it in time", func() bool {
		_, err = s.api.AddExport(s.t.Context(), api.ExportSpec{Name: name, Path: image, Allow: []string{"alpha"}})
		return err == nil || !strings.Contains(err.Error(), "may hang")
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return name
}

// withStoppedPeer is a host that has attached many disks of a peer, which is stopped
// then: its kernel goes on acknowledging what it is sent.
func withStoppedPeer(t *testing.T) (alpha *host, beta *stoppable) {
	t.Helper()
	alpha, beta = newHost(t, ""), newStoppable(t)
	beta.link(alpha)
	for i := range stoppedDisks {
		if _, err := alpha.api.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: beta.disk(i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	// One is in use, with a write that waits.
	c := alpha.nbd("disk0")
	ok(t, c, cmdRead, 0, 512, nil)
	beta.signal(syscall.SIGSTOP)
	go c.Do(0, cmdWrite, 0, 512, make([]byte, 512))
	return alpha, beta
}

// TestRevocationDoesNotWaitForAStoppedPeer: a peer that a reload removes is cut off at
// once, however many of its disks are attached, and is gone when the reload says so.
func TestRevocationDoesNotWaitForAStoppedPeer(t *testing.T) {
	alpha, _ := withStoppedPeer(t)
	if err := os.Remove(filepath.Join(alpha.dir, "peers.d/beta.yaml")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), stopTime)
	defer cancel()
	if _, err := alpha.api.Reload(ctx); err != nil {
		t.Fatalf("reload: %v", err)
	}
	// The peer stands still: who waits for it waits for ever.
	eventually(t, "no stream and no disk is left", func() bool {
		st := alpha.status()
		return len(st.Streams) == 0 && len(st.Attachments) == 0
	})
	// The daemon serves others meanwhile, and the sockets go.
	eventually(t, "no NBD socket is left", func() bool {
		left, err := filepath.Glob(filepath.Join(alpha.dir, "run/nbd/*.sock"))
		return err == nil && len(left) == 0
	})
}

// TestEndDoesNotWaitForAStoppedPeer: a daemon ends in the time that its unit gives it.
func TestEndDoesNotWaitForAStoppedPeer(t *testing.T) {
	alpha, _ := withStoppedPeer(t)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		alpha.stop()
	}()
	select {
	case <-ended:
	case <-time.After(stopTime):
		t.Errorf("the daemon has not ended in %v", stopTime)
		<-ended
	}
}

// TestRevocationOfAULPDoesNotWaitForAStoppedPeer: the same of a local user.
func TestRevocationOfAULPDoesNotWaitForAStoppedPeer(t *testing.T) {
	otheruser.Need(t)
	alpha, beta := newHost(t, ""), newStoppable(t)
	beta.link(alpha)
	alpha.ulps("\n  - {name: alice, users: [53101], peers: [beta]}\n")
	a := alpha.as(alice)
	for i := range 8 {
		if _, err := a.Attach(t.Context(), api.AttachRequest{Peer: "beta", Export: beta.disk(i)}, nil); err != nil {
			t.Fatal(err)
		}
	}
	beta.signal(syscall.SIGSTOP)
	ctx, cancel := context.WithTimeout(t.Context(), stopTime)
	defer cancel()
	alpha.write("ironwarp.yaml", fmt.Sprintf("listen: {port: %d, udp_port: %d}\nstate_dir: state\nruntime_dir: run\n", alpha.port, alpha.udp))
	if _, err := alpha.api.Reload(ctx); err != nil {
		t.Fatalf("reload: %v", err)
	}
	// The peer stands still: who waits for it waits for ever.
	eventually(t, "no stream and no disk is left", func() bool {
		st := alpha.status()
		return len(st.Streams) == 0 && len(st.Attachments) == 0
	})
	eventually(t, "nothing of the ULP is left", func() bool { return len(alpha.d.dev.Resources().ULPs) == len(config.ServiceNames()) })
}
