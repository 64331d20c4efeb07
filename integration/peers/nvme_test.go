package peers

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/nvme"
	"github.com/ironwarp/ironwarp/nvme/nvmetest"
)

// TestNVMeHostOnAPeerIsServedInESPOnly has a host on alpha, which knows nothing of its daemon, use a namespace of beta's over
// RDMA. The deletion of all SAs, on either host, pauses its commands and ends nothing; without SAs there is no connection,
// and nothing of the port leaves in clear.
func TestNVMeHostOnAPeerIsServedInESPOnly(t *testing.T) {
	s := newScene(t)
	if err := node.Join(t.Context(), s.alpha, s.beta, "--nvme-port", "4420"); err != nil {
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
	const subsystem, host = "nqn.2026-01.org.example:disks", "nqn.2026-01.org.example:alpha"
	s.must(s.beta, "nvme", "add", "--peer", "alpha", "--nqn", subsystem, "--host", host, "--path", image, "disks")
	portal := netip.AddrPortFrom(s.beta.Addr(), config.DefaultNVMePort)
	_, q := s.connectNVMe(portal, subsystem, host)
	rounds := 0
	goesOn := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), healTime)
		defer cancel()
		rounds++
		data := s.beta.Canary().Bytes(64 << 10)
		c := q.New(nvme.Write)
		c.SetNSID(1)
		c.SetRange(uint64(rounds)*128, 128)
		if e, err := q.Out(ctx, c, data); err != nil || e.Status != nvme.Success {
			t.Fatalf("write %d: %v %v", rounds, e.Status, err)
		}
		c = q.New(nvme.Read)
		c.SetNSID(1)
		c.SetRange(uint64(rounds)*128, 128)
		if b, e, err := q.In(ctx, c, len(data)); err != nil || e.Status != nvme.Success || !bytes.Equal(b, data) {
			t.Fatalf("read %d: %v %v", rounds, e.Status, err)
		}
	}
	goesOn()
	if out := s.must(s.beta, "nvme", "controller", "ls"); !strings.Contains(out, "alpha") || !strings.Contains(out, host) {
		t.Errorf("%s", out)
	}
	if out := s.must(s.beta, "nvme", "show", "disks"); !strings.Contains(out, portal.String()) {
		t.Errorf("%s", out)
	}
	s.servesAll(s.beta, isOfSubsystems)
	if _, _, err := s.alpha.ConnectNVMe(t.Context(), portal, subsystem, host+"x", block.ID{2}); err == nil || !strings.Contains(err.Error(), "invalid host") {
		t.Errorf("a host that is not named: %v", err)
	}
	for _, event := range []func(){
		func() { s.must(s.beta, "sa", "delete", "alpha") },
		func() { s.must(s.alpha, "sa", "delete", "beta") },
		func() { s.must(s.beta, "sa", "delete", "--ike", "alpha") },
	} {
		event()
		goesOn()
	}
	s.alpha.KillCharon()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	if c, err := s.alpha.Dial(ctx, portal); err == nil {
		c.Close()
		t.Error("a connection without an SA")
	}
	if err := s.alpha.StartCharon(t.Context()); err != nil {
		t.Fatal(err)
	}
	goesOn()
	s.must(s.beta, "nvme", "rm", "--force", "disks")
	<-q.QP.Done()
	counts, err := capture.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if n := counts.ClearTCP[config.DefaultNVMePort]; n != 0 || counts.ESP == 0 {
		t.Errorf("%d clear packets of the port, %d of ESP", n, counts.ESP)
	}
}

// connectNVMe connects a host at alpha with a subsystem, as soon as it may.
func (s *scene) connectNVMe(portal netip.AddrPort, subsystem, host string) (h *nvmetest.Host, q *nvmetest.Queue) {
	s.t.Helper()
	s.until("the host is connected", func() bool {
		var err error
		if h, q, err = s.alpha.ConnectNVMe(s.t.Context(), portal, subsystem, host, block.ID{1}); err != nil {
			s.t.Logf("not yet: %v", err)
		}
		return err == nil
	})
	s.t.Cleanup(func() {
		q.Close()
		h.Admin.Close()
	})
	return h, q
}
