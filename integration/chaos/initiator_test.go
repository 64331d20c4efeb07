package chaos

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/transport"
)

const (
	diskIQN     = "iqn.2026-01.org.example:disks"
	ownerKey    = 0x1122334455667788 // of a persistent reservation
	ownerName   = "iqn.2026-01.org.example:owner"
	anotherName = "iqn.2026-01.org.example:another"
)

// TestInitiatorUnderVerifiedIO has QEMU on alpha use a LUN of beta's over TCP in ESP, while fio writes to it
// and verifies. It goes on without an error when either host deletes SAs, when strongSwan is killed, and
// when the daemon is, after which QEMU logs in again. Meanwhile an initiator over RDMA holds a persistent
// reservation of another LUN, which is there again with the daemon.
func TestInitiatorUnderVerifiedIO(t *testing.T) {
	for _, tool := range []string{"iscsi-ls", "qemu-nbd"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs libiscsi-bin, qemu-utils and qemu-block-extra: %v", err)
		}
	}
	s := &scene{kind: transport.TCP, options: []string{"--iscsi-port", fmt.Sprint(config.DefaultISCSIPort)}}
	s.hosts(t)
	s.join(t)
	portal := netip.AddrPortFrom(s.beta.Addr(), config.DefaultISCSIPort)
	var images []string
	for n := range 2 {
		images = append(images, filepath.Join(s.beta.Dir(), fmt.Sprintf("lun%d.img", n)))
		must(t, os.WriteFile(images[n], nil, 0o600))
		must(t, os.Truncate(images[n], diskSize))
	}
	for _, args := range [][]string{
		{"target", "add", "--peer", "alpha", "--iqn", diskIQN, "--path", images[0], "disks"},
		{"target", "lun", "add", "--number", "1", "--path", images[1], "disks"},
	} {
		_, err := s.beta.Ironwarp(t.Context(), nil, args...)
		must(t, err)
	}
	s.eventually(t, "the target is found", nil, func(ctx context.Context) bool {
		found, err := s.alpha.Run(ctx, "iscsi-ls", "-s", "iscsi://"+portal.String())
		return err == nil && strings.Contains(found, "Lun:1")
	})
	s.reserve(t, portal)

	socket := filepath.Join(s.alpha.Dir(), "qemu.sock")
	qemu := s.alpha.Command(t.Context(), "qemu-nbd", "-f", "raw", "-t", "-e", "4", "-k", socket, fmt.Sprintf("iscsi://%s/%s/0", portal, diskIQN))
	qemu.Stdout, qemu.Stderr = t.Output(), t.Output()
	must(t, qemu.Start())
	defer func() {
		_ = qemu.Process.Kill()
		_ = qemu.Wait()
	}()
	s.eventually(t, "QEMU serves the LUN", nil, func(context.Context) bool { _, err := os.Stat(socket); return err == nil })
	l := s.beginCounted(t, s.alpha, node.Load{URI: "nbd+unix:///?socket=" + socket}, func(ctx context.Context) (uint64, error) {
		v, err := s.beta.Client().Target(ctx, "disks")
		if err != nil || len(v.Units) == 0 {
			return 0, err
		}
		return v.Units[0].IO.ReadBytes + v.Units[0].IO.WriteBytes, nil
	})
	deleteSAs := func(n *node.Node, args ...string) func() {
		return func() {
			_, err := n.Ironwarp(t.Context(), nil, append([]string{"sa", "delete"}, append(args, s.other(n).Name())...)...)
			must(t, err)
		}
	}
	kill := func(charon, daemons []*node.Node) func() {
		return func() {
			var all sync.WaitGroup
			for _, n := range charon {
				all.Go(n.KillCharon)
			}
			for _, n := range daemons {
				all.Go(n.Kill)
			}
			all.Wait()
			for _, n := range charon {
				must(t, n.StartCharon(t.Context()))
			}
			for _, n := range daemons {
				must(t, n.Start(t.Context()))
			}
		}
	}
	alpha, beta := []*node.Node{s.alpha}, []*node.Node{s.beta}
	for _, c := range []struct {
		name    string
		happens func()
	}{
		{"beta deletes the child SAs", deleteSAs(s.beta)},
		{"alpha deletes the child SAs", deleteSAs(s.alpha)},
		{"beta deletes the IKE SA", deleteSAs(s.beta, "--ike")},
		{"strongSwan of alpha is killed", kill(alpha, nil)},
		{"strongSwan of beta is killed", kill(beta, nil)},
		{"strongSwan of both is killed", kill(s.nodes(), nil)},
		{"the daemon of alpha is killed", kill(nil, alpha)},
		{"the daemon of beta is killed", kill(nil, beta)},
		{"everything of beta is killed", kill(beta, beta)},
	} {
		t.Log(c.name)
		c.happens()
		s.mustFlow(t, l)
	}
	s.stillReserved(t, portal)
	done := l.end(t)
	counts, err := s.wire.Stop()
	must(t, err)
	for _, fault := range counts.Faults(lab.CaptureOptions{}) {
		t.Error(fault)
	}
	if n := counts.ClearTCP[config.DefaultISCSIPort]; n != 0 || counts.ESP == 0 || int64(counts.Bytes) < done.Written+done.Read {
		t.Errorf("%d clear packets of the port: %v", n, counts)
	}
}

// persistentReserve is a PERSISTENT RESERVE OUT for a LUN, and its parameters.
func persistentReserve(action byte, kind scsi.Type, key, newKey uint64, aptpl bool) (cdb, list []byte) {
	list = make([]byte, 24)
	binary.BigEndian.PutUint64(list, key)
	binary.BigEndian.PutUint64(list[8:], newKey)
	if aptpl {
		list[20] = 1
	}
	return []byte{scsi.PersistentReserveOut, action, byte(kind), 0, 0, 0, 0, 0, byte(len(list))}, list
}

// reserve has an initiator over RDMA take LUN 1 for itself, also for the time after a power cycle (APTPL).
func (s *scene) reserve(t *testing.T, portal netip.AddrPort) {
	t.Helper()
	i, x, err := s.alpha.LoginISER(t.Context(), portal, false, "InitiatorName="+ownerName, "TargetName="+diskIQN)
	must(t, err)
	defer i.Close()
	do := func(cdb, out []byte) {
		t.Helper()
		if st, err := x.Do(t.Context(), 1, cdb, out, nil); err != nil || st != scsi.Good {
			t.Fatalf("%x: %v, %v", cdb, st, err)
		}
	}
	if _, err := x.Do(t.Context(), 1, []byte{scsi.TestUnitReady}, nil, nil); err != nil { // takes the unit attention
		t.Fatal(err)
	}
	do(persistentReserve(scsi.Register, 0, 0, ownerKey, true))
	do(persistentReserve(scsi.Reserve, scsi.WriteExclusive, ownerKey, 0, false))
}

// stillReserved fails the test unless LUN 1 is its owner's, who need not do anything for that.
func (s *scene) stillReserved(t *testing.T, portal netip.AddrPort) {
	t.Helper()
	for _, c := range []struct {
		name string
		want scsi.Status
	}{{anotherName, scsi.ReservationConflict}, {ownerName, scsi.Good}} {
		i, x, err := s.alpha.LoginISER(t.Context(), portal, true, "InitiatorName="+c.name, "TargetName="+diskIQN)
		must(t, err)
		if _, err := x.Do(t.Context(), 1, []byte{scsi.TestUnitReady}, nil, nil); err != nil {
			t.Error(err)
		}
		st, err := x.Do(t.Context(), 1, []byte{scsi.Write10, 0, 0, 0, 0, 0, 0, 0, 1}, s.lab.Canary().Bytes(512), nil)
		if err != nil || st != c.want {
			t.Errorf("%s writes: %v, %v; want status %v", c.name, st, err, c.want)
		}
		i.Close()
	}
}
