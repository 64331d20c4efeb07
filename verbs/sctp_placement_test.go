//go:build !race

package verbs

import (
	"bytes"
	"sync/atomic"
	"testing"

	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/transport/sctp/sctptest"
)

// RFC 5041 section 5.3 over RFC 5043: a lost chunk holds back neither the
// placement of those behind it, nor that of other streams; it holds back the
// delivery, until it has come (RFC 5041 section 5.4). The race detector does not
// like that one stream reads what another is placing; that is what the test looks at.
func TestPlacementDoesNotWaitForALostChunk(t *testing.T) {
	server := iwarptest.SCTPInUDP(t)
	server.MTU = 1500 // many segments, each in a packet of its own
	marker := []byte("this chunk is lost until further notice")
	var passing atomic.Bool
	var lost atomic.Int32
	tc, _ := relayTo(t, server, sctptest.Faults{Drop: func(fromClient bool, p []byte) bool {
		if !fromClient || passing.Load() || !bytes.Contains(p, marker) {
			return false
		}
		lost.Add(1)
		return true
	}})
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	b.tc = server
	ln := listen(t, b, ListenConfig{})
	bcfg := b.cfg
	received, err := b.ulp.CreateCQ(64, nil)
	if err != nil {
		t.Fatal(err)
	}
	bcfg.SendCQ, bcfg.RecvCQ = received, received
	eb := *b
	eb.cfg, eb.cq = bcfg, received
	accepted := acceptAll(t, &eb, ln)
	x := a.another(sctpLocal, tc)
	eb.qp = <-accepted
	y := a.another(sctpLocal, tc)
	const size = 64 << 10
	target, src := b.mr(size, LocalWrite|RemoteWrite|RemoteRead), a.mr(size, 0)
	for range 20 { // until the congestion window holds all of it
		x.post(SendWR{Op: OpWrite, SGL: whole(src, size), RemoteSTag: target.STag()})
	}
	x.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(a.mr(8, LocalWrite), 8), RemoteSTag: target.STag()})
	x.wantOK(WCRead)

	fill(src.Bytes(), 6)
	copy(src.Bytes()[100:], marker)
	eb.recv(RecvWR{SGL: whole(b.mr(8, LocalWrite), 8)})
	x.post(SendWR{Op: OpWrite, SGL: whole(src, size), RemoteSTag: target.STag()})
	x.post(SendWR{Op: OpSend, SGL: whole(src, 8)})
	// The other stream sees what the first one has placed: the end of it.
	const tail = 16 << 10
	seen := a.mr(size, LocalWrite)
	read := func() {
		y.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(seen, size), RemoteSTag: target.STag()})
		y.wantOK(WCRead)
	}
	for read(); !bytes.Equal(seen.Bytes()[size-tail:], src.Bytes()[size-tail:]); read() {
		if t.Context().Err() != nil {
			t.Fatal("nothing is placed behind the lost chunk")
		}
	}
	if bytes.Contains(seen.Bytes(), marker) || lost.Load() == 0 {
		t.Fatal("the chunk is not lost")
	}
	if n := received.Poll(make([]WC, 1)); n != 0 {
		t.Error("the message behind the lost chunk is delivered")
	}
	passing.Store(true)
	eb.wantOK(WCRecv)
	if read(); !bytes.Equal(seen.Bytes(), src.Bytes()) {
		t.Error("the bytes differ in the end")
	}
}
