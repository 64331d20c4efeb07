package driver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ironwarp/ironwarp/daemon/api"
)

const (
	sectorSize = 512
	writers    = 4  // at once, each with its own sectors
	rounds     = 16 // sectors of a writer
)

// moving is a volume for raw block that is on node "old", where programs write to it without end, and that moves to node "new".
type moving struct {
	*testing.T
	now, old       *host
	control, at    caller // the controller with the new node, and the old node
	kernel         bool   // disks are the kernel's
	dirNow, dirOld string
	id             string
	cap            *csi.VolumeCapability

	acked   [writers][rounds]atomic.Uint64 // the last number that was acknowledged, by sector
	stopped sync.WaitGroup                 // the writers, which go on until an error
}

func newMoving(t *testing.T, pool string, kernel bool) *moving {
	t.Helper()
	_, nodes := newStore(t, pool, "new", "old")
	return move(t, nodes[0], nodes[1], kernel)
}

// move has a volume on the old one of two nodes, written to.
func move(t *testing.T, now, old *host, kernel bool) *moving {
	t.Helper()
	m := &moving{T: t, now: now, old: old, cap: capability(true, oneNode), dirNow: shortDir(t), dirOld: shortDir(t), kernel: kernel}
	m.control, m.at = call(t, m.now.plugin(t, m.dirNow, true, kernel)), call(t, m.old.plugin(t, m.dirOld, false, kernel))
	v, err := m.control.CreateVolume(t.Context(), &csi.CreateVolumeRequest{Name: "vol", VolumeCapabilities: []*csi.VolumeCapability{m.cap}, CapacityRange: &csi.CapacityRange{RequiredBytes: mega}})
	if err != nil {
		t.Fatal(err)
	}
	m.id = v.GetVolume().GetVolumeId()
	m.attach(m.at, "old", m.dirOld)
	for w := range writers {
		d := m.old.open("vol")
		m.stopped.Go(func() { m.write(w, d) })
	}
	eventually(t, "every sector was written twice", func() bool {
		for w := range writers {
			for r := range rounds {
				if m.acked[w][r].Load() <= rounds {
					return false
				}
			}
		}
		return true
	})
	return m
}

// attach gives the volume to a node, and has it staged and published there.
func (m *moving) attach(node caller, name, dir string) {
	m.Helper()
	ctx := m.Context()
	p, err := m.control.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: m.id, NodeId: name, VolumeCapability: m.cap})
	if err != nil {
		m.Fatal(err)
	}
	staging, target := filepath.Join(dir, "staging"), filepath.Join(dir, "target")
	if err := os.MkdirAll(staging, 0o700); err != nil {
		m.Fatal(err)
	}
	if _, err := node.NodeStageVolume(ctx, &csi.NodeStageVolumeRequest{VolumeId: m.id, PublishContext: p.GetPublishContext(), StagingTargetPath: staging, VolumeCapability: m.cap}); err != nil {
		m.Fatal(err)
	}
	if _, err := node.NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{VolumeId: m.id, PublishContext: p.GetPublishContext(), StagingTargetPath: staging, TargetPath: target, VolumeCapability: m.cap}); err != nil {
		m.Fatal(err)
	}
}

func offset(w, r int) uint64 { return uint64(w*rounds+r) * sectorSize }

// write is a program of the old node: it writes numbers that grow to its sectors, one after the other, durably, until an error.
func (m *moving) write(w int, d disk) {
	for n := uint64(1); ; n++ {
		r := int(n % rounds)
		if d.write(offset(w, r), content(n)) != nil {
			return
		}
		m.acked[w][r].Store(n)
	}
}

// content is a sector full of a number.
func content(n uint64) []byte {
	return bytes.Repeat(binary.BigEndian.AppendUint64(nil, n), sectorSize/8)
}

// read reads a sector on the new node, and returns its number.
func (m *moving) read(d disk, w, r int) uint64 {
	m.Helper()
	b := make([]byte, sectorSize)
	if err := d.read(offset(w, r), b); err != nil {
		m.Fatalf("read sector %d of writer %d: %v", r, w, err)
	}
	n := binary.BigEndian.Uint64(b)
	if !bytes.Equal(b, content(n)) {
		m.Errorf("sector %d of writer %d is torn", r, w)
	}
	return n
}

// unpublish takes the volume from the old node, as an orchestrator does: it repeats the call until it succeeds.
func (m *moving) unpublish() {
	m.Helper()
	eventually(m.T, "the old node is fenced", func() bool {
		_, err := m.control.ControllerUnpublishVolume(m.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: m.id, NodeId: "old"})
		if c := status.Code(err); c != codes.OK && c != codes.DeadlineExceeded && c != codes.Aborted && c != codes.Unavailable {
			m.Fatal(err)
		}
		return err == nil
	})
}

// mark is what the new node writes to every sector: no number of the old one's.
const mark = 1 << 62

// takeOver has the new node use the volume: all that was acknowledged to the old one is there, and is written over.
func (m *moving) takeOver() disk {
	m.Helper()
	m.attach(m.control, "new", m.dirNow)
	d := m.now.open("vol")
	for w := range writers {
		for r := range rounds {
			if got, acked := m.read(d, w, r), m.acked[w][r].Load(); got < acked {
				m.Errorf("sector %d of writer %d has %d, and %d was acknowledged", r, w, got, acked)
			}
			if err := d.write(offset(w, r), content(mark)); err != nil {
				m.Fatalf("write on the new node: %v", err)
			}
		}
	}
	return d
}

// lost are the sectors that do not have what the new node wrote.
func (m *moving) lost(d disk) (list []string) {
	m.Helper()
	for w := range writers {
		for r := range rounds {
			if got := m.read(d, w, r); got != mark {
				list = append(list, fmt.Sprintf("%d/%d: %d", w, r, got))
			}
		}
	}
	return list
}

// When unpublish has answered, nothing of the old node is written any more, whatever becomes of that: neither what lay in its memory and on
// the wire when it stopped, nor what it does when it comes back. All that was acknowledged to its programs is there.
func TestNothingOfTheOldNodeIsWrittenAfterUnpublish(t *testing.T) {
	for name, test := range moves {
		t.Run(name, func(t *testing.T) { test(newMoving(t, fileSystem(t), false)) })
	}
}

// moves are what becomes of the old node.
var moves = map[string]func(*moving){
	"it stops, and goes on later": func(m *moving) {
		m.old.pause()
		m.unpublish()
		d := m.takeOver()
		m.old.resume()
		m.stopped.Wait() // each writer has got an error
		m.staysAway(d)
	},
	"it is killed, and restarted": func(m *moving) {
		m.old.kill()
		m.unpublish()
		d := m.takeOver()
		m.old.start()
		m.staysAway(d)
		m.stopped.Wait()
	},
	"it lives, and its programs write on": func(m *moving) {
		m.unpublish()
		d := m.takeOver()
		m.stopped.Wait()
		m.staysAway(d)
	},
}

// staysAway checks that the old node does not get at the volume by attaching it anew, and that a node plugin there can clean up.
func (m *moving) staysAway(d disk) {
	m.Helper()
	ctx := m.Context()
	eventually(m.T, "the old node knows that it has lost the disk", func() bool {
		list, err := m.old.api.Attachments(ctx)
		if err != nil || len(list) != 1 {
			m.Fatalf("%+v, %v", list, err)
		}
		return list[0].State == api.AttachFailed || list[0].Problem != nil && list[0].Problem.Code == api.CodeForbidden
	})
	if lost := m.lost(d); len(lost) > 0 {
		m.Errorf("written by the old node after unpublish: %v", lost)
	}
	if m.kernel {
		// Programs that wait for the disk have it open.
		if err := m.old.api.Detach(ctx, "store", "vol", true); err != nil {
			m.Error(err)
		}
	}
	if _, err := m.at.NodeUnpublishVolume(ctx, &csi.NodeUnpublishVolumeRequest{VolumeId: m.id, TargetPath: filepath.Join(m.dirOld, "target")}); err != nil {
		m.Errorf("node unpublish: %v", err)
	}
	if _, err := m.at.NodeUnstageVolume(ctx, &csi.NodeUnstageVolumeRequest{VolumeId: m.id, StagingTargetPath: filepath.Join(m.dirOld, "staging")}); err != nil {
		m.Errorf("node unstage: %v", err)
	}
	if at, err := m.old.api.Attach(ctx, api.AttachRequest{Peer: "store", Export: "vol", TimeoutSeconds: 5}, nil); err == nil {
		m.Errorf("the old node attaches the volume again: %+v", at)
	}
	if lost := m.lost(d); len(lost) > 0 {
		m.Errorf("written by the old node: %v", lost)
	}
}

// Without unpublish the old node's writes go on when it does, and reach the volume: what the test above finds absent is there to find.
func TestOldNodeWritesOnWithoutUnpublish(t *testing.T) {
	m := newMoving(t, fileSystem(t), false)
	m.old.pause()
	var before [writers]uint64
	for w := range writers {
		before[w] = m.acked[w][0].Load()
	}
	_, err := m.control.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{VolumeId: m.id, NodeId: "new", VolumeCapability: m.cap})
	wants(t, "publish without unpublish", err, codes.FailedPrecondition)
	m.old.resume()
	eventually(t, "the old node writes on", func() bool {
		for w := range writers {
			if m.acked[w][0].Load() <= before[w]+rounds {
				return false
			}
		}
		return true
	})
	m.old.kill()
	m.stopped.Wait()
}
