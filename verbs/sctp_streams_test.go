package verbs

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// stuck is a handler that does not return from its first completion until it is
// let go.
type stuck struct {
	in, out chan struct{}
	once    sync.Once
}

func (s *stuck) Completions(*CQ, []WC) {
	s.once.Do(func() { close(s.in) })
	<-s.out
}

// RFC 5043 section 4: streams of one association do not wait for each other. A
// hundred of them move data while the consumer of one takes nothing, for which
// more waits than the association's receive window has.
func TestStalledStreamOfAHundred(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	a.tc = iwarptest.SCTPInUDP(t)
	b.tc = a.tc
	b.tc.RecvBuffer = 1 << 20
	ln := listen(t, b, ListenConfig{})
	h := &stuck{in: make(chan struct{}), out: make(chan struct{})}
	release := sync.OnceFunc(func() { close(h.out) })
	t.Cleanup(release)
	cq, err := b.ulp.CreateCQ(64, h)
	if err != nil {
		t.Fatal(err)
	}
	slow := b.cfg
	slow.SendCQ, slow.RecvCQ = cq, cq
	const size, writes = 128 << 10, 40
	target, src := b.mr(size, LocalWrite|RemoteWrite|RemoteRead), a.mr(size, 0)
	fill(src.Bytes(), 5)
	peer := make(chan *QP, 1)
	go func() {
		r, err := ln.Accept(context.Background())
		if err != nil {
			return
		}
		qp, err := r.Accept(context.Background(), b.pd, AcceptConfig{QP: slow, Prepare: func(qp *QP) error {
			return qp.PostRecv(RecvWR{SGL: whole(b.mr(8, LocalWrite), 8)})
		}})
		if err != nil {
			t.Error(err)
		}
		peer <- qp
	}()
	stalled := a.another(sctpLocal, a.tc)
	slowPeer := <-peer
	acceptAll(t, b, ln)
	var others []*end
	for range 99 {
		others = append(others, a.another(sctpLocal, a.tc))
	}
	stalled.post(SendWR{Op: OpSend, SGL: whole(src, 8)})
	<-h.in
	for range writes {
		stalled.post(SendWR{Op: OpWrite, SGL: whole(src, size), RemoteSTag: target.STag()})
	}
	stalled.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(a.mr(8, LocalWrite), 8), RemoteSTag: target.STag()})
	for round := range 3 {
		for i, e := range others {
			mr := b.mr(4096, LocalWrite|RemoteWrite|RemoteRead)
			e.wantAlive(mr)
			if round == 0 && i%10 == 0 && e.qp.Flow() != stalled.qp.Flow() {
				t.Fatal("a stream has another association")
			}
			mr.Deregister()
		}
	}
	if n := slowPeer.Stats().RecvBytes; n > 8 {
		t.Errorf("%d bytes came over the stream that is stalled", n)
	}
	release()
	stalled.wantOK(WCRead)
	if n := slowPeer.Stats().RecvBytes; n != 8+writes*size || !bytes.Equal(target.Bytes(), src.Bytes()) {
		t.Errorf("%d bytes came in the end, of %d", n, 8+writes*size)
	}
}

// The segments grow with the MTU that is found on the path: of a Write, fewer
// packets leave than one needs with an Ethernet's.
func TestSegmentsGrowWithThePath(t *testing.T) {
	packets := func(mtu int) int {
		server := iwarptest.SCTPInUDP(t)
		server.MTU = mtu
		var n, most atomic.Int32
		tc, _ := relayTo(t, server, sctptest.Faults{Drop: func(fromClient bool, p []byte) bool {
			if fromClient && len(p) > 1000 {
				n.Add(1)
				most.Store(max(most.Load(), int32(len(p))))
			}
			return false
		}})
		a, b := newEnd(t, Config{}), newEnd(t, Config{})
		b.tc = server
		acceptAll(t, b, listen(t, b, ListenConfig{}))
		x := a.another(sctpLocal, tc)
		const size = 1 << 20
		target := b.mr(size, LocalWrite|RemoteWrite|RemoteRead)
		for range 2 {
			n.Store(0)
			x.post(SendWR{Op: OpWrite, SGL: whole(a.mr(size, 0), size), RemoteSTag: target.STag()})
			x.wantAlive(target)
		}
		if mtu != 0 && most.Load() > int32(mtu-28) {
			t.Errorf("a packet of %d bytes with MTU %d", most.Load(), mtu)
		}
		return int(n.Load())
	}
	if found, ethernet := packets(0), packets(1500); found*2 > ethernet {
		t.Errorf("1 MiB took %d packets, with an MTU of 1500 %d", found, ethernet)
	}
}

var _ transport.Protector = (*counter)(nil)
