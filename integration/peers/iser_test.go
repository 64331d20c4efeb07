package peers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/integration/node"
	"github.com/ironwarp/ironwarp/ipsec/guard"
	"github.com/ironwarp/ironwarp/iser/isertest"
	"github.com/ironwarp/ironwarp/scsi"
	"github.com/ironwarp/ironwarp/transport"
)

// TestISERInitiatorOnAPeerIsServedInESPOnly has initiators on alpha, which know nothing of its daemon, use
// LUNs of beta's over RDMA, in both start-ups. Their commands go on whoever deletes the SAs and whichever
// strongSwan is killed, in the same sessions, and what they read is what they wrote. Without SAs there is no
// connection, and of a peer that is removed no byte and no socket is left.
func TestISERInitiatorOnAPeerIsServedInESPOnly(t *testing.T) {
	s := newTargetScene(t, 2)
	var works []*work
	for n, how := range []string{"RDMA mode", "streaming mode"} {
		var i *isertest.Initiator
		var x *isertest.Session
		s.until("the initiator is logged in, by "+how, func() bool {
			var err error
			i, x, err = s.alpha.LoginISER(t.Context(), s.portal, n == 1, fmt.Sprintf("InitiatorName=iqn.2026-01.org.example:i%d", n), "TargetName="+targetName)
			if err != nil {
				t.Logf("not yet: %v", err)
			}
			return err == nil
		})
		t.Cleanup(func() { i.Close() })
		works = append(works, startWork(t, x, byte(n), s.beta.Canary()))
	}
	goesOn := func() {
		t.Helper()
		for n, w := range works {
			before := w.rounds.Load()
			s.until(fmt.Sprintf("initiator %d goes on", n), func() bool {
				if err := w.failed(); err != nil {
					t.Fatal(err)
				}
				return w.rounds.Load() > before+1
			})
		}
	}
	goesOn()
	before := s.sessions()
	if len(before) != 2 || before[0].Transport != "iser" || before[1].Transport != "iser" || before[0].Peer != "alpha" || before[0].Identity != s.alpha.Addr().String() {
		t.Fatalf("%+v", before)
	}
	if served := s.servesAll(s.beta, isOfTargets); !strings.Contains(served, `ironwarp_target_sessions{peer="alpha",target="disks",transport="iser"} 2`) {
		t.Errorf("the metrics do not have the sessions: %s", served)
	}
	if out := s.must(s.beta, "target", "session", "ls"); strings.Count(out, "iser") != 2 {
		t.Errorf("%s", out)
	}
	restart := func(n *node.Node) {
		t.Helper()
		n.KillCharon()
		if err := n.StartCharon(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, event := range []func(){
		func() { s.must(s.beta, "sa", "delete", "alpha") },
		func() { s.must(s.alpha, "sa", "delete", "beta") },
		func() { s.must(s.beta, "sa", "delete", "--ike", "alpha") },
		func() { restart(s.beta) },
		func() { restart(s.alpha) },
	} {
		event()
		goesOn()
	}
	after := s.sessions()
	for i, b := range before {
		if len(after) != 2 || after[i].ID != b.ID || after[i].Address != b.Address || after[i].AgeSeconds < b.AgeSeconds || after[i].IO.WriteBytes <= b.IO.WriteBytes {
			t.Errorf("a session was ended: %+v, then %+v", before, after)
		}
	}

	// Without an SA nobody connects; what the initiators send waits.
	s.alpha.KillCharon()
	s.nobodyConnects()
	sockets := func(at, of *node.Node) (n int, queued uint64) {
		t.Helper()
		left, err := guard.LinkSockets(guard.Spec{NetNS: at.NetNS(), Remote: of.Addr(), Protocol: transport.ProtoTCP, Port: config.DefaultISCSIPort})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			queued += l.Queued
		}
		return len(left), queued
	}
	s.until("what the two send waits in the kernels", func() bool {
		n, there := sockets(s.alpha, s.beta)
		m, here := sockets(s.beta, s.alpha)
		return n == 2 && m == 2 && there+here > 0
	})
	s.must(s.beta, "target", "rm", "--force", "disks")
	for _, end := range []struct{ at, of *node.Node }{{s.beta, s.alpha}, {s.alpha, s.beta}} {
		s.must(end.at, "peer", "rm", end.of.Name())
		if n, queued := sockets(end.at, end.of); n > 0 {
			t.Errorf("%s has removed its peer, and its kernel has %d sockets with %d bytes", end.at.Name(), n, queued)
		}
	}
	for n, w := range works {
		s.until(fmt.Sprintf("initiator %d learns that its connection is gone", n), func() bool { return w.failed() != nil })
		if errors.Is(w.err, errOther) {
			t.Errorf("initiator %d: %v", n, w.err)
		}
	}
	if left := s.sessions(); len(left) > 0 {
		t.Errorf("%+v", left)
	}
	s.nothingInClear()
}

// work writes and reads back until its session ends.
type work struct {
	rounds atomic.Int64 // that brought what was written

	ended chan struct{}
	err   error // once ended is closed
}

var errOther = errors.New("other data than what was written")

// startWork has a session work on a LUN, with data of canary only.
func startWork(t *testing.T, x *isertest.Session, lun byte, canary lab.Canary) *work {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	w := &work{ended: make(chan struct{})}
	const blocks = 128
	content := canary.Bytes(blocks*scsiBlock + len(canary))
	in := make([]byte, blocks*scsiBlock)
	do := func(op byte, lba int, out, in []byte) error {
		st, err := x.Do(ctx, lun, []byte{op, 0, 0, 0, byte(lba >> 8), byte(lba), 0, 0, blocks}, out, in)
		if err == nil && st != scsi.Good {
			err = fmt.Errorf("status %v", st)
		}
		return err
	}
	go func() {
		defer close(w.ended)
		if _, w.err = x.Do(ctx, lun, []byte{scsi.TestUnitReady}, nil, nil); w.err != nil { // takes the unit attention
			return
		}
		for n := 0; w.err == nil; n++ {
			lba := n * blocks % (diskSize / scsiBlock)
			out := content[n%len(canary):][:len(in)]
			if w.err = do(scsi.Write10, lba, out, nil); w.err != nil {
				return
			}
			if w.err = do(scsi.Read10, lba, nil, in); w.err == nil && !bytes.Equal(in, out) {
				w.err = errOther
			}
			w.rounds.Add(1)
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-w.ended
	})
	return w
}

const scsiBlock = 512

// failed is why it has ended, nil while it has not.
func (w *work) failed() error {
	select {
	case <-w.ended:
		return w.err
	default:
		return nil
	}
}
