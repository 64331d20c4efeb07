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

// TestInitiatorOnAPeerIsServedInESPOnly has QEMU on alpha use a LUN of beta's, whose portal the SAs
// cover. The deletion of all SAs, on either host, pauses its session and does not end it; without SAs
// nothing of the port leaves alpha, whoever sends it.
func TestInitiatorOnAPeerIsServedInESPOnly(t *testing.T) {
	for _, tool := range []string{"iscsi-ls", "qemu-io"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs libiscsi-bin and qemu-block-extra: %v", err)
		}
	}
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta, "--iscsi-port", "3260"); err != nil {
		t.Fatal(err)
	}
	capture, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{})
	if err != nil {
		t.Fatal(err)
	}
	image := filepath.Join(s.beta.Dir(), "disk.img")
	if err := os.WriteFile(image, s.beta.Canary().Bytes(diskSize), 0o600); err != nil {
		t.Fatal(err)
	}
	s.must(s.beta, "target", "add", "--peer", "alpha", "--iqn", "iqn.2026-01.org.example:disks", "--path", image, "disks")
	portal := netip.AddrPortFrom(s.beta.Addr(), config.DefaultISCSIPort)
	var found string
	s.until("the target is found", func() bool {
		found, err = s.alpha.Run(t.Context(), "iscsi-ls", "-s", "iscsi://"+portal.String())
		return err == nil && strings.Contains(found, "Lun:0")
	})
	if out := s.must(s.alpha, "iscsi", "discover", "beta"); !strings.Contains(out, portal.String()+",1 iqn.2026-01.org.example:disks") {
		t.Errorf("discover: %s", out)
	}

	q := startQEMU(t, s.alpha, fmt.Sprintf("iscsi://%s/iqn.2026-01.org.example:disks/0", portal))
	q.do("write -P 0x5a 0 64k", "wrote 65536/65536")
	q.do("read 64k 512k", "read 524288/524288")
	sessions := func() []api.TargetSession {
		t.Helper()
		all, err := s.beta.Client().TargetSessions(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	before := sessions()
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
	if after := sessions(); len(after) != 1 || after[0].ID != before[0].ID || after[0].Address != before[0].Address || after[0].AgeSeconds < before[0].AgeSeconds {
		t.Errorf("the session was ended: %+v, then %+v", before, after)
	}
	q.end()

	for _, n := range []*node.Node{s.alpha, s.beta} {
		if err := n.StopCharon(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if c, err := s.alpha.Dial(ctx, portal); err == nil {
		c.Close()
		t.Error("a connection without an SA")
	}
	counts, err := capture.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if n := counts.ClearTCP[config.DefaultISCSIPort]; n != 0 || counts.ESP == 0 {
		t.Errorf("%d clear packets of the port, %d of ESP", n, counts.ESP)
	}
}

// TestWhatAnInitiatorHasQueuedForARemovedPeerIsNeverSent: the socket is another program's, which goes on
// to hold it and its data when alpha's daemon forgets the peer, or the port.
func TestWhatAnInitiatorHasQueuedForARemovedPeerIsNeverSent(t *testing.T) {
	for _, tool := range []string{"iscsi-ls", "qemu-io"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs libiscsi-bin and qemu-block-extra: %v", err)
		}
	}
	for name, forget := range map[string][]string{"peer": {"peer", "rm", "beta"}, "port": {"peer", "set", "--iscsi-port", "0", "beta"}} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			if err := node.Join(t.Context(), s.alpha, s.beta, "--iscsi-port", "3260"); err != nil {
				t.Fatal(err)
			}
			capture, err := s.alpha.Capture(t.Context(), lab.CaptureOptions{})
			if err != nil {
				t.Fatal(err)
			}
			image := filepath.Join(s.beta.Dir(), "disk.img")
			if err := os.WriteFile(image, make([]byte, diskSize), 0o600); err != nil {
				t.Fatal(err)
			}
			s.must(s.beta, "target", "add", "--peer", "alpha", "--iqn", "iqn.2026-01.org.example:disks", "--path", image, "disks")
			portal := netip.AddrPortFrom(s.beta.Addr(), config.DefaultISCSIPort)
			s.until("the target is found", func() bool {
				found, err := s.alpha.Run(t.Context(), "iscsi-ls", "-s", "iscsi://"+portal.String())
				return err == nil && strings.Contains(found, "Lun:0")
			})
			q := startQEMU(t, s.alpha, fmt.Sprintf("iscsi://%s/iqn.2026-01.org.example:disks/0", portal))
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
			counts, err := capture.Stop()
			if err != nil {
				t.Fatal(err)
			}
			if n := counts.ClearTCP[config.DefaultISCSIPort]; n != 0 || counts.ESP == 0 {
				t.Errorf("%d clear packets of the port, %d of ESP", n, counts.ESP)
			}
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
