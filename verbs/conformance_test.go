package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/rdmap"
)

func fill(b []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

var sizes = []int{0, 1, 3, 64, 257, 1443, 4096, 65536, 300001}

func whole(mr *MR, n int) []SGE { return []SGE{{MR: mr, Len: uint32(n)}} }

func TestSendArrivesInThePostedBuffer(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		src, dst := a.mr(1<<19, LocalWrite), b.mr(1<<19, LocalWrite)
		for i, n := range sizes {
			fill(src.Bytes()[:n], uint64(i))
			b.recv(RecvWR{ID: uint64(i), SGL: whole(dst, n)})
			a.post(SendWR{ID: uint64(i), Op: OpSend, Flags: Signaled, SGL: whole(src, n)})
			a.wantOK(WCSend)
			wc := b.wantOK(WCRecv)
			if wc.ID != uint64(i) || int(wc.Len) != n || !bytes.Equal(dst.Bytes()[:n], src.Bytes()[:n]) {
				t.Fatalf("%d bytes: completion %+v, equal %v", n, wc, bytes.Equal(dst.Bytes()[:n], src.Bytes()[:n]))
			}
		}
	})
}

func TestScatterGatherKeepsOrder(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		src, dst := a.mr(8192, LocalWrite), b.mr(8192, LocalWrite)
		fill(src.Bytes(), 7)
		b.recv(RecvWR{SGL: []SGE{{dst, 100, 1}, {dst, 200, 3000}, {dst, 4000, 999}}})
		a.post(SendWR{Op: OpSend, SGL: []SGE{{src, 0, 1500}, {src, 5000, 0}, {src, 2000, 2000}, {src, 7000, 500}}})
		b.wantOK(WCRecv)
		want := append(append(append([]byte(nil), src.Bytes()[:1500]...), src.Bytes()[2000:4000]...), src.Bytes()[7000:7500]...)
		got := append(append(append([]byte(nil), dst.Bytes()[100:101]...), dst.Bytes()[200:3200]...), dst.Bytes()[4000:4999]...)
		if !bytes.Equal(got, want) {
			t.Error("the receive list does not hold the send list's bytes in order")
		}
	})
}

func TestInlineSourceIsFreeAtOnce(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		src, dst := a.mr(64, LocalWrite), b.mr(64, LocalWrite)
		b.recv(RecvWR{SGL: whole(dst, 64)})
		copy(src.Bytes(), "before")
		a.post(SendWR{Op: OpSend, Flags: Inline | More, SGL: whole(src, 6)})
		copy(src.Bytes(), "after!")
		a.qp.Flush()
		b.wantOK(WCRecv)
		if got := string(dst.Bytes()[:6]); got != "before" {
			t.Errorf("received %q", got)
		}
	})
}

func TestWriteThenImmediate(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		src, dst := a.mr(1<<19, LocalWrite), b.mr(1<<19, LocalWrite|RemoteWrite)
		for i, n := range sizes {
			fill(src.Bytes()[:n], uint64(i))
			b.recv(RecvWR{ID: 9})
			a.post(SendWR{Op: OpWrite, Flags: More, SGL: whole(src, n), RemoteSTag: dst.STag(), RemoteTO: 5})
			a.post(SendWR{Op: OpImmediate, Flags: Solicited, Imm: 0xfeedface00000000 | uint64(i)})
			wc := b.wantOK(WCRecvImm)
			if wc.Imm != 0xfeedface00000000|uint64(i) || !wc.Solicited || wc.ID != 9 {
				t.Fatalf("completion %+v", wc)
			}
			if !bytes.Equal(dst.Bytes()[5:5+n], src.Bytes()[:n]) {
				t.Fatalf("%d bytes written differ", n)
			}
		}
	})
}

func TestReadBringsTheData(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		sink, src := a.mr(1<<19, LocalWrite), b.mr(1<<19, RemoteRead)
		for i, n := range sizes {
			fill(src.Bytes()[:n], uint64(i))
			stag := src.STag()
			if n == 0 {
				stag = 0 // R17: a zero-length Read needs no valid STag
			}
			a.post(SendWR{ID: 3, Op: OpRead, Flags: Signaled, SGL: whole(sink, n), RemoteSTag: stag})
			wc := a.wantOK(WCRead)
			if wc.ID != 3 || int(wc.Len) != n || !bytes.Equal(sink.Bytes()[:n], src.Bytes()[:n]) {
				t.Fatalf("%d bytes: %+v", n, wc)
			}
		}
	})
}

// More Reads than the peer's depth queue up and all are answered (R23).
func TestReadsNeverExceedORD(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		sink, src := a.mr(64*64, LocalWrite), b.mr(64*64, RemoteRead)
		fill(src.Bytes(), 1)
		for i := range 60 {
			a.post(SendWR{ID: uint64(i), Op: OpRead, Flags: Signaled, SGL: []SGE{{sink, uint32(i * 64), 64}}, RemoteSTag: src.STag(), RemoteTO: uint64(i * 64)})
		}
		for i := range 60 {
			if wc := a.wantOK(WCRead); wc.ID != uint64(i) {
				t.Fatalf("completion %d has ID %d", i, wc.ID)
			}
		}
		if !bytes.Equal(sink.Bytes()[:60*64], src.Bytes()[:60*64]) {
			t.Error("read data differ")
		}
	})
}

func TestSendWithInvalidateRevokes(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		win := b.mr(64, LocalWrite|RemoteWrite)
		src := a.mr(64, LocalWrite)
		b.recv(RecvWR{})
		stag := win.STag()
		a.post(SendWR{Op: OpSend, Invalidate: true, InvalidateSTag: stag})
		if wc := b.wantOK(WCRecv); wc.Invalidated != stag {
			t.Errorf("invalidated %#x, want %#x", wc.Invalidated, stag)
		}
		a.post(SendWR{Op: OpWrite, SGL: whole(src, 1), RemoteSTag: stag})
		want := &ddp.Error{Layer: ddp.LayerDDP, Type: ddp.TypeTagged, Code: ddp.CodeTaggedInvalidSTag}
		if err := b.wantEnd(); !errors.Is(err, want) {
			t.Errorf("the target's stream ended with %v", err)
		}
	})
}

func TestAtomics(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		word := b.mr(64, LocalWrite|RemoteAtomic)
		res := a.mr(8, LocalWrite)
		binary.NativeEndian.PutUint64(word.Bytes()[8:], 40)
		a.post(SendWR{Op: OpFetchAdd, Flags: Signaled, SGL: whole(res, 8), RemoteSTag: word.STag(), RemoteTO: 8, Add: 2})
		if wc := a.wantOK(WCAtomic); wc.Imm != 40 || binary.NativeEndian.Uint64(res.Bytes()) != 40 {
			t.Errorf("fetched %d, stored %d, want 40", wc.Imm, binary.NativeEndian.Uint64(res.Bytes()))
		}
		a.post(SendWR{Op: OpCmpSwap, Flags: Signaled, RemoteSTag: word.STag(), RemoteTO: 8, Add: 7, AddMask: ^uint64(0), Compare: 42, CompareMask: ^uint64(0)})
		if wc := a.wantOK(WCAtomic); wc.Imm != 42 {
			t.Errorf("compare and swap found %d", wc.Imm)
		}
		if v := binary.NativeEndian.Uint64(word.Bytes()[8:]); v != 7 {
			t.Errorf("the word is %d, want 7", v)
		}
	})
}

// faults are accesses that must end the stream; the code is what the initiator
// is told in the Terminate, whose layer, type and code RFC 5040 section 4.8 and
// RFC 5041 section 7.2 give.
func TestFaultsTerminateWithTheRightCode(t *testing.T) {
	type code struct {
		layer ddp.Layer
		typ   uint8
		code  uint8
	}
	for _, tc := range []struct {
		name string
		act  func(a, b *end)
		want code
	}{
		{"write to no STag", func(a, b *end) {
			a.post(SendWR{Op: OpWrite, SGL: whole(a.mr(8, 0), 8), RemoteSTag: 0xdead})
		}, code{ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedInvalidSTag}},
		{"write past the end", func(a, b *end) {
			a.post(SendWR{Op: OpWrite, SGL: whole(a.mr(9, 0), 9), RemoteSTag: b.mr(8, LocalWrite|RemoteWrite).STag()})
		}, code{ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedBounds}},
		{"write with wrapping offset", func(a, b *end) {
			a.post(SendWR{Op: OpWrite, SGL: whole(a.mr(9, 0), 9), RemoteTO: ^uint64(0) - 3, RemoteSTag: b.mr(8, LocalWrite|RemoteWrite).STag()})
		}, code{ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedTOWrap}},
		{"write without the right", func(a, b *end) {
			a.post(SendWR{Op: OpWrite, SGL: whole(a.mr(8, 0), 8), RemoteSTag: b.mr(8, LocalWrite|RemoteRead).STag()})
		}, code{ddp.LayerRDMA, rdmap.TypeRemoteProtection, rdmap.CodeAccess}},
		{"write to another PD", func(a, b *end) {
			pd, err := b.ulp.AllocPD()
			if err != nil {
				b.t.Fatal(err)
			}
			mr, err := pd.RegisterMR(make([]byte, 8), LocalWrite|RemoteWrite)
			if err != nil {
				b.t.Fatal(err)
			}
			a.post(SendWR{Op: OpWrite, SGL: whole(a.mr(8, 0), 8), RemoteSTag: mr.STag()})
		}, code{ddp.LayerDDP, ddp.TypeTagged, ddp.CodeTaggedNotAssociated}},
		{"read of no STag", func(a, b *end) {
			a.post(SendWR{Op: OpRead, SGL: whole(a.mr(8, LocalWrite), 8), RemoteSTag: 0xdead})
		}, code{ddp.LayerRDMA, rdmap.TypeRemoteProtection, rdmap.CodeInvalidSTag}},
		{"read past the end", func(a, b *end) {
			a.post(SendWR{Op: OpRead, SGL: whole(a.mr(8, LocalWrite), 8), RemoteTO: 1, RemoteSTag: b.mr(8, RemoteRead).STag()})
		}, code{ddp.LayerRDMA, rdmap.TypeRemoteProtection, rdmap.CodeBounds}},
		{"read of write-only memory", func(a, b *end) {
			a.post(SendWR{Op: OpRead, SGL: whole(a.mr(8, LocalWrite), 8), RemoteSTag: b.mr(8, LocalWrite|RemoteWrite).STag()})
		}, code{ddp.LayerRDMA, rdmap.TypeRemoteProtection, rdmap.CodeAccess}},
		{"send without a receive", func(a, b *end) {
			a.post(SendWR{Op: OpSend, SGL: whole(a.mr(8, 0), 8)})
		}, code{ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedNoBuffer}},
		{"send longer than the receive", func(a, b *end) {
			b.recv(RecvWR{SGL: whole(b.mr(4000, LocalWrite), 4000)})
			a.post(SendWR{Op: OpSend, SGL: whole(a.mr(4001, 0), 4001)})
		}, code{ddp.LayerDDP, ddp.TypeUntagged, ddp.CodeUntaggedTooLong}},
		{"invalidate of no STag", func(a, b *end) {
			b.recv(RecvWR{})
			a.post(SendWR{Op: OpSend, Invalidate: true, InvalidateSTag: 0xdead})
		}, code{ddp.LayerRDMA, rdmap.TypeRemoteProtection, rdmap.CodeInvalidSTag}},
		{"atomic that is not aligned", func(a, b *end) {
			a.post(SendWR{Op: OpFetchAdd, RemoteTO: 4, RemoteSTag: b.mr(64, LocalWrite|RemoteAtomic).STag()})
		}, code{ddp.LayerRDMA, rdmap.TypeRemoteOperation, rdmap.CodeCatastrophicStream}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			overEachLLP(t, func(t *testing.T, a, b *end) {
				tc.act(a, b)
				want := &ddp.Error{Layer: tc.want.layer, Type: tc.want.typ, Code: tc.want.code}
				if err := b.wantEnd(); !errors.Is(err, want) {
					t.Errorf("the target's stream ended with %v, want %v", err, want)
				}
				var term *rdmap.TerminateError
				if err := a.wantEnd(); !errors.As(err, &term) {
					t.Fatalf("the initiator's stream ended with %v, want a Terminate", err)
				}
				if got := (code{term.Terminate.Layer, term.Terminate.Type, term.Terminate.Code}); got != tc.want {
					t.Errorf("Terminate %+v, want %+v", got, tc.want)
				}
			})
		})
	}
}

func TestGracefulCloseDeliversWhatWasPosted(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		src, dst := a.mr(1<<18, LocalWrite), b.mr(1<<18, LocalWrite)
		fill(src.Bytes(), 3)
		b.recv(RecvWR{SGL: whole(dst, 1<<18)})
		a.post(SendWR{Op: OpSend, SGL: whole(src, 1<<18)})
		a.qp.Close()
		b.wantOK(WCRecv)
		if !bytes.Equal(dst.Bytes(), src.Bytes()) {
			t.Error("data differ")
		}
		if err := b.wantEnd(); !errors.Is(err, rdmap.ErrPeerClosed) {
			t.Errorf("the peer's stream ended with %v", err)
		}
		if err := a.wantEnd(); err != nil {
			t.Errorf("our stream ended with %v", err)
		}
		if err := a.qp.PostSend(&SendWR{Op: OpSend}); err == nil {
			t.Error("a post after the end succeeds")
		}
	})
}

func TestEndFlushesEverythingPosted(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		sink := a.mr(8, LocalWrite)
		for i := range 5 {
			a.recv(RecvWR{ID: uint64(i)})
		}
		reason := errors.New("enough")
		a.qp.Abort(reason)
		for i := range 5 {
			if wc := a.next(); wc.ID != uint64(i) || !errors.Is(wc.Err, ErrFlushed) {
				t.Errorf("completion %+v", wc)
			}
		}
		if err := a.wantEnd(); !errors.Is(err, reason) {
			t.Errorf("ended with %v", err)
		}
		b.wantEnd()
		if err := sink.Deregister(); err != nil {
			t.Error(err)
		}
		if u := a.dev.Usage(); u.Streams != 0 || u.QueueEntries != 0 || u.IRRQEntries != 0 {
			t.Errorf("still charged: %+v", u)
		}
	})
}

// What the peer writes and reads counts as traffic of the stream, too.
func TestStatsCountWhatThePeerMoves(t *testing.T) {
	overEachLLP(t, func(t *testing.T, a, b *end) {
		mine, theirs := a.mr(5000, LocalWrite), b.mr(5000, LocalWrite|RemoteRead|RemoteWrite)
		a.post(SendWR{Op: OpWrite, SGL: whole(mine, 5000), RemoteSTag: theirs.STag()})
		a.post(SendWR{Op: OpRead, Flags: Signaled, SGL: whole(mine, 3000), RemoteSTag: theirs.STag()})
		a.wantOK(WCRead)
		if s := b.qp.Stats(); s.RecvBytes != 5000 || s.SendBytes != 3000 {
			t.Errorf("the target counts %+v", s)
		}
		if s := a.qp.Stats(); s.SendBytes != 5000 || s.RecvBytes != 3000 {
			t.Errorf("the initiator counts %+v", s)
		}
	})
}
