package peers

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
)

// targetName is the target that beta has.
const targetName = "iqn.2026-01.org.example:disks"

// targetScene is a scene whose beta has a target with LUNs for alpha, and a capture of their wire.
type targetScene struct {
	*scene
	portal  netip.AddrPort
	capture *lab.Capture
}

func newTargetScene(t *testing.T, luns int) *targetScene {
	t.Helper()
	s := &targetScene{scene: newScene(t)}
	if err := node.Join(t.Context(), s.alpha, s.beta, "--iscsi-port", "3260"); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.capture, err = s.alpha.Capture(t.Context(), lab.CaptureOptions{}); err != nil {
		t.Fatal(err)
	}
	for n := range luns {
		image := filepath.Join(s.beta.Dir(), fmt.Sprintf("disk%d.img", n))
		if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			s.must(s.beta, "target", "add", "--peer", "alpha", "--iqn", targetName, "--path", image, "disks")
		} else {
			s.must(s.beta, "target", "lun", "add", "--number", fmt.Sprint(n), "--path", image, "disks")
		}
	}
	s.portal = netip.AddrPortFrom(s.beta.Addr(), config.DefaultISCSIPort)
	return s
}

// untilFound waits until libiscsi on alpha finds the target.
func (s *targetScene) untilFound() {
	s.t.Helper()
	s.until("the target is found", func() bool {
		found, err := s.alpha.Run(s.t.Context(), "iscsi-ls", "-s", "iscsi://"+s.portal.String())
		return err == nil && strings.Contains(found, "Lun:0")
	})
}

// lun0 is the URL of the first LUN.
func (s *targetScene) lun0() string { return fmt.Sprintf("iscsi://%s/%s/0", s.portal, targetName) }

// sessions are those that beta has.
func (s *targetScene) sessions() []api.TargetSession {
	s.t.Helper()
	all, err := s.beta.Client().TargetSessions(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return all
}

// nobodyConnects fails the test if a program on alpha reaches the portal.
func (s *targetScene) nobodyConnects() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*time.Second)
	defer cancel()
	if c, err := s.alpha.Dial(ctx, s.portal); err == nil {
		c.Close()
		s.t.Error("a connection without an SA")
	}
}

// nothingInClear ends the capture, and fails the test if anything of the portal was sent in clear.
func (s *targetScene) nothingInClear() {
	s.t.Helper()
	counts, err := s.capture.Stop()
	if err != nil {
		s.t.Fatal(err)
	}
	if n := counts.ClearTCP[config.DefaultISCSIPort]; n != 0 || counts.ESP == 0 {
		s.t.Errorf("%d clear packets of the port, %d of ESP", n, counts.ESP)
	}
}

// needTools skips the test where QEMU's and libiscsi's initiators are missing.
func needTools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"iscsi-ls", "qemu-io"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs libiscsi-bin and qemu-block-extra: %v", err)
		}
	}
}

// TestInitiatorOnAPeerIsServedInESPOnly has QEMU on alpha use a LUN of beta's, whose portal the SAs
// cover. The deletion of all SAs, on either host, pauses its session and does not end it; without SAs
// nothing of the port leaves alpha, whoever sends it.
func TestInitiatorOnAPeerIsServedInESPOnly(t *testing.T) {
	needTools(t)
	s := newTargetScene(t, 1)
	s.untilFound()
	if out := s.must(s.alpha, "iscsi", "discover", "beta"); !strings.Contains(out, s.portal.String()+",1 "+targetName) {
		t.Errorf("discover: %s", out)
	}

	q := startQEMU(t, s.alpha, s.lun0())
	q.do("write -P 0x5a 0 64k", "wrote 65536/65536")
	q.do("read 64k 512k", "read 524288/524288")
	before := s.sessions()
	if len(before) != 1 || before[0].Peer != "alpha" || before[0].Identity != s.alpha.Addr().String() {
		t.Fatalf("%+v", before)
	}
	for _, del := range []func(){
		func() { s.must(s.beta, "sa", "delete", "alpha") },
		func() { s.must(s.alpha, "sa", "delete", "beta") },
		func() { s.must(s.beta, "sa", "delete", "--ike", "alpha") },
	} {
		del()
		q.do("write -P 0x33 128k 64k", "wrote 65536/65536")
		q.do("read -P 0x33 128k 64k", "read 65536/65536")
	}
	if after := s.sessions(); len(after) != 1 || after[0].ID != before[0].ID || after[0].Address != before[0].Address || after[0].AgeSeconds < before[0].AgeSeconds {
		t.Errorf("the session was ended: %+v, then %+v", before, after)
	}
	q.end()

	// The tester has no IPsec, and needs none: the guard is the kernel's.
	for _, scheme := range []string{"iscsi", "iser"} {
		if out := s.must(s.alpha, "iscsi", "test", "--only", "scsi", "--only", "numbering", "--timeout", "1m", fmt.Sprintf("%s://%v/%s/0", scheme, s.portal, targetName)); !strings.Contains(out, " PASS") {
			t.Errorf("%s: %s", scheme, out)
		}
	}

	for _, n := range []*node.Node{s.alpha, s.beta} {
		if err := n.StopCharon(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.nobodyConnects()
	s.nothingInClear()
}

// TestWhatAnInitiatorHasQueuedForARemovedPeerIsNeverSent: the socket is another program's, which goes on
// to hold it and its data when alpha's daemon forgets the peer, or the port.
func TestWhatAnInitiatorHasQueuedForARemovedPeerIsNeverSent(t *testing.T) {
	needTools(t)
	for name, forget := range map[string][]string{"peer": {"peer", "rm", "beta"}, "port": {"peer", "set", "--iscsi-port", "0", "beta"}} {
		t.Run(name, func(t *testing.T) {
			s := newTargetScene(t, 1)
			s.untilFound()
			q := startQEMU(t, s.alpha, s.lun0())
			defer func() {
				_ = q.cmd.Process.Kill()
				_ = q.cmd.Wait()
			}()
			q.do("write -P 0x5a 0 64k", "wrote 65536/65536")
			if err := s.beta.StopCharon(t.Context()); err != nil { // whatever alpha sends is lost, and stays queued
				t.Fatal(err)
			}
			if _, err := q.stdin.WriteString("aio_write -P 0x33 0 256k\n"); err != nil {
				t.Fatal(err)
			}
			queued := func() string {
				out, _ := s.alpha.Run(t.Context(), "ss", "-tnH", "dport", "=", ":3260")
				return out
			}
			s.until("data is queued", func() bool {
				f := strings.Fields(queued())
				return len(f) > 2 && f[2] != "0"
			})
			s.must(s.alpha, forget...)
			end := time.Now().Add(5 * time.Second)
			s.until("the kernel has had several turns to send it again, or has it no more", func() bool { return queued() == "" || time.Now().After(end) })
			t.Logf("left in the kernel: %q", queued())
			s.nothingInClear()
		})
	}
}

// qemu is a qemu-io that carries out commands one by one.
type qemu struct {
	t     *testing.T
	cmd   *exec.Cmd
	stdin *os.File

	mu  sync.Mutex // guards the fields below it
	out []string
}

func startQEMU(t *testing.T, n *node.Node, url string) *qemu {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	q := &qemu{t: t, cmd: n.Command(t.Context(), "qemu-io", "-f", "raw", url), stdin: w}
	q.cmd.Stdin = r
	out, err := q.cmd.StdoutPipe()
	if err == nil {
		q.cmd.Stderr = q.cmd.Stdout
		err = q.cmd.Start()
	}
	r.Close()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			q.mu.Lock()
			q.out = append(q.out, lines.Text())
			q.mu.Unlock()
		}
	}()
	return q
}

// do carries out a command, until it has said that it did.
func (q *qemu) do(command, says string) {
	q.t.Helper()
	q.mu.Lock()
	q.out = nil
	q.mu.Unlock()
	if _, err := fmt.Fprintln(q.stdin, command); err != nil {
		q.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(q.t.Context(), healTime)
	defer cancel()
	err := node.Until(ctx, func() (bool, error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		all := strings.Join(q.out, "\n")
		if strings.Contains(all, "failed") || strings.Contains(all, "error") {
			return false, fmt.Errorf("%s", all)
		}
		return strings.Contains(all, says), nil
	})
	if err != nil {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.t.Fatalf("%s: %v: %q", command, err, q.out)
	}
}

func (q *qemu) end() {
	q.t.Helper()
	q.stdin.Close()
	if err := q.cmd.Wait(); err != nil {
		q.t.Error(err)
	}
}
