package ipsectest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net/netip"
	"testing"
	"time"

	"github.com/ironwarp/ironwarp/integration/lab"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/mpa"
	"github.com/ironwarp/ironwarp/rdmap"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// exposed is a stream from alpha that may write to beta's memory. Each Send of alpha's
// shows that what was sent before has arrived.
type exposed struct {
	c   *transport.Conn
	mpa *mpa.Conn
	mr  *verbs.MR
	cq  *verbs.CQ
	msn uint32 // of the last Send
}

// expose serves a stream on beta, which alpha opens.
func (p *pair) expose(t *testing.T) *exposed {
	t.Helper()
	dev, err := verbs.Open(verbs.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	var ln *verbs.Listener
	err = p.beta.Do(func() (err error) {
		ln, err = dev.Listen(t.Context(), netip.AddrPortFrom(p.beta.Addr(), port), verbs.ListenConfig{Transport: &transport.Config{Protector: p.beta.m}})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	x := &exposed{}
	served := make(chan error, 1)
	go func() { served <- x.serve(t.Context(), dev, ln) }()
	x.c = p.alpha.mustDial(t, p.beta)
	if x.mpa, err = mpa.Client(t.Context(), x.c, &mpa.Config{IRD: 16, ORD: 16}); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	return x
}

// serve takes one stream.
func (x *exposed) serve(ctx context.Context, dev *verbs.Device, ln *verbs.Listener) error {
	defer ln.Close()
	r, err := ln.Accept(ctx)
	if err != nil {
		return err
	}
	u, err := dev.NewULP("service", verbs.ULPConfig{Trust: verbs.ST})
	if err != nil {
		return err
	}
	pd, err := u.AllocPD()
	if err != nil {
		return err
	}
	if x.cq, err = u.CreateCQ(16, nil); err != nil {
		return err
	}
	if x.mr, err = pd.RegisterMR(make([]byte, 64), verbs.LocalWrite|verbs.RemoteWrite); err != nil {
		return err
	}
	cfg := verbs.QPConfig{SendCQ: x.cq, RecvCQ: x.cq, MaxSend: 4, MaxRecv: 4}
	_, err = r.Accept(ctx, pd, verbs.AcceptConfig{QP: cfg, Prepare: func(qp *verbs.QP) (err error) {
		for range 4 {
			err = errors.Join(err, qp.PostRecv(verbs.RecvWR{}))
		}
		return err
	}})
	return err
}

// segments are a Write of data at an offset, and a Send.
func (x *exposed) segments(at uint64, data string) [][]byte {
	x.msn++
	return [][]byte{
		iwarptest.Segment{Tagged: true, Last: true, Op: rdmap.OpWrite, STag: x.mr.STag(), TO: at, Payload: []byte(data)}.Append(nil),
		iwarptest.Segment{Last: true, Op: rdmap.OpSend, MSN: x.msn}.Append(nil),
	}
}

// sendAll sends them from alpha.
func (x *exposed) sendAll(t *testing.T, at uint64, data string) {
	t.Helper()
	for _, s := range x.segments(at, data) {
		if err := x.mpa.Append(s, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.mpa.Flush(); err != nil {
		t.Fatal(err)
	}
}

// framed is how they look in TCP (RFC 5044 section 4.1).
func (x *exposed) framed(at uint64, data string) (b []byte) {
	for _, s := range x.segments(at, data) {
		f := append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...)
		for len(f)%4 != 0 {
			f = append(f, 0)
		}
		b = append(b, binary.LittleEndian.AppendUint32(f, crc32.Checksum(f, crc32.MakeTable(crc32.Castagnoli)))...)
	}
	return b
}

// arrived waits for a Send.
func (x *exposed) arrived(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var wc [1]verbs.WC
	for x.cq.Poll(wc[:]) == 0 {
		if err := x.cq.Wait(ctx); err != nil {
			t.Fatalf("nothing has arrived: %v", err)
		}
	}
	if wc[0].Err != nil {
		t.Fatal(wc[0].Err)
	}
}

// memory returns four bytes of beta's memory, to which no Write is under way.
func (x *exposed) memory(at int) string { return string(x.mr.Bytes()[at:][:4]) }

// TestNeighbourWritesNothingIntoMemory has a neighbour on the wire that knows
// everything: the stream's addresses and sequence numbers, an STag with the right to
// write, and the format of such a Write (RFC 5042 sections 5.1.2 and 5.1.3). The
// control removes the guard: then the same packet changes the memory.
func TestNeighbourWritesNothingIntoMemory(t *testing.T) {
	p, mallory := hostile(t, lab.Config{})
	p.addPeers(t)
	x := p.expose(t)
	seen := sniff(t, p.beta)
	from := x.c.Flow().Local
	// after is what follows alpha's last packet with data.
	after := func(data string) segment {
		t.Helper()
		var last segment
		eventually(t, "alpha's packet was seen", func() (ok bool) {
			last, ok = seen.last(func(g segment) bool { return g.from == from && bytes.Contains(g.data, []byte(data)) })
			return ok
		})
		p.acknowledged(t)
		return segment{from: last.from, to: last.to, seq: last.next(), ack: last.ack, flags: flagACK | flagPSH}
	}
	x.sendAll(t, 0, "fine")
	if x.arrived(t); x.memory(0) != "fine" {
		t.Fatalf("alpha's own Write makes %q of the memory", x.memory(0))
	}
	evil := after("fine")
	evil.data = x.framed(16, "evil")
	before := stoppedInbound(t, p.beta)
	mallory.send(evil.packet())
	eventually(t, "the guard stops it", func() bool { return stoppedInbound(t, p.beta) > before })
	x.msn-- // alpha's own comes in its place
	x.sendAll(t, 8, "mine")
	if x.arrived(t); x.memory(8) != "mine" || x.memory(16) != "\x00\x00\x00\x00" {
		t.Errorf("the memory has %q and %q", x.memory(8), x.memory(16))
	}

	evil = after("mine")
	p.unguard(t, p.beta)
	evil.data = x.framed(24, "evil")
	mallory.send(evil.packet())
	if x.arrived(t); x.memory(24) != "evil" {
		t.Errorf("without the guard the memory has %q, too: the check cannot fail", x.memory(24))
	}
}
