package verbs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/rdmap"
)

func (e *end) keyed() *MW {
	e.t.Helper()
	mw, err := e.pd.AllocKeyedMW()
	if err != nil {
		e.t.Fatal(err)
	}
	return mw
}

// A consumer that chooses the keys of a window knows its STags beforehand: the peer writes through each of 300 in turn, all
// keys and some of them twice, and none opens anything once it has been invalidated.
func TestKeysThatTheConsumerChooses(t *testing.T) {
	a, b := newEnd(t, Config{}), newEnd(t, Config{})
	tcpPair(Setup{}, Setup{})(t, a, b)
	mr, mw, src := b.mr(64, LocalWrite|WindowBind), b.keyed(), a.mr(64, LocalWrite)
	first := mw.STag()
	if first == 0 {
		t.Fatal("a window without an STag")
	}
	if f := b.reach(b.qp, first, 0, 1, rdmap.RemoteWrite); f != rdmap.FaultInvalidSTag {
		t.Errorf("before the first bind: %v", f)
	}
	live := b.dev.stags.live
	for i := range 300 {
		stag := first&^0xff | (first+1+uint32(i))&0xff
		b.post(SendWR{Op: OpBind, Flags: Signaled, MW: mw, Key: uint8(stag), SGL: whole(mr, 64), Access: RemoteWrite})
		if mw.STag() != stag {
			t.Fatalf("STag %#x, want %#x", mw.STag(), stag)
		}
		b.wantOK(WCBind)
		fill(src.Bytes(), uint64(i))
		a.post(SendWR{Op: OpWrite, SGL: whole(src, 64), RemoteSTag: stag})
		b.recv(RecvWR{})
		a.post(SendWR{Op: OpSend, Flags: Signaled, Invalidate: i%2 == 0, InvalidateSTag: stag})
		a.wantOK(WCSend)
		if b.wantOK(WCRecv); !bytes.Equal(mr.Bytes(), src.Bytes()) {
			t.Fatalf("bind %d: the Write has not come", i)
		}
		if i%2 != 0 {
			b.post(SendWR{Op: OpInvalidateLocal, Flags: Signaled, InvalidateSTag: stag})
			b.wantOK(WCInvalidate)
		}
		for key := range uint32(256) {
			if f := b.reach(b.qp, first&^0xff|key, 0, 1, rdmap.RemoteWrite); f != rdmap.FaultInvalidSTag {
				t.Fatalf("key %#x after the invalidation: %v", key, f)
			}
		}
		if err := b.qp.PostSend(&SendWR{Op: OpBind, MW: mw, Key: uint8(stag), SGL: whole(mr, 64), Access: RemoteWrite}); err == nil {
			t.Fatal("the key of the last STag is taken again at once")
		}
	}
	if n := b.dev.stags.live; n != live {
		t.Errorf("%d STags are left", n-live)
	}
	b.post(SendWR{Op: OpBind, Flags: Signaled, MW: mw, Key: uint8(mw.STag()) + 1, SGL: whole(mr, 64), Access: RemoteWrite})
	b.wantOK(WCBind)
	if err := b.qp.PostSend(&SendWR{Op: OpBind, MW: mw, Key: 7, SGL: whole(mr, 64), Access: RemoteWrite}); err != nil {
		t.Fatal(err)
	}
	if err := b.wantEnd(); !errors.Is(err, ErrInUse) {
		t.Errorf("a window that is bound is bound again: ended with %v", err)
	}
	if err := errors.Join(mw.Dealloc(), mr.Deregister()); err != nil {
		t.Error(err)
	}
	if n := b.dev.stags.live; n != live-1 {
		t.Errorf("%d STags are left", n-live+1)
	}
}

// The 256 STags of a window whose consumer chooses keys are nobody else's, even when chance draws them, and for as long
// after it has gone as other STags (R7).
func TestChosenKeysAreNobodyElses(t *testing.T) {
	var tab stagTable
	tab.init()
	drawing := func(stags ...uint32) {
		tab.rnd = nil
		for _, s := range stags {
			tab.rnd = binary.LittleEndian.AppendUint32(tab.rnd, s)
		}
	}
	w := new(window)
	taken := tab.insert(w)
	gone := tab.insert(w)
	tab.remove(gone)
	drawing(taken^0x55, gone^0x01, 0x00000012, 0xabcdef12)
	if got := tab.reserve(); got != 0xabcdef12 {
		t.Errorf("reserved %#x, although other windows have or had such STags", got)
	}
	drawing(0xabcdef77, 0xabcdef12, 0xabcdee12)
	if got := tab.insert(w); got != 0xabcdee12 {
		t.Errorf("%#x is given to another window", got)
	}
	drawing(0xabcdef77, 0xabcdee13, 0xabcded00)
	if got := tab.reserve(); got != 0xabcded00 {
		t.Errorf("%#x is reserved twice, or beside an STag", got)
	}
	tab.release(0xabcdef12)
	for i := range retiredSTags {
		drawing(0xabcdef34)
		got := tab.reserve()
		if got>>keyBits == 0xabcdef {
			t.Fatalf("it is given again after %d others", i)
		}
		tab.release(got)
	}
	drawing(0xabcdef34)
	if got := tab.insert(w); got != 0xabcdef34 {
		t.Errorf("%#x after %d others, want that it is free", got, retiredSTags)
	}
}

// STags that consumers choose come and go among others, and exactly those that live are found.
func TestChosenSTagsAmongOthers(t *testing.T) {
	var tab stagTable
	tab.init()
	live := make(map[uint32]*window)
	type chosen struct {
		prefix uint32
		w      *window
		stag   uint32
	}
	var ws []chosen
	for range 200 {
		ws = append(ws, chosen{tab.reserve() &^ 0xff, new(window), 0})
	}
	for i := range 20000 {
		c := &ws[i%len(ws)]
		if c.stag != 0 {
			tab.removeChosen(c.stag)
			delete(live, c.stag)
			if tab.find(c.stag) != nil {
				t.Fatalf("STag %#x is found after its removal", c.stag)
			}
		}
		c.stag = c.prefix | uint32(i*31)&0xff
		tab.insertChosen(c.stag, c.w)
		live[c.stag] = c.w
		other := new(window)
		k := tab.insert(other)
		live[k] = other
		if i%3 != 0 {
			tab.remove(k)
			delete(live, k)
		}
	}
	for k, w := range live {
		if tab.find(k) != w {
			t.Fatalf("STag %#x is lost", k)
		}
	}
	if tab.live != len(live) {
		t.Errorf("%d live, want %d", tab.live, len(live))
	}
}

// A bind that has failed, which is reported behind a Read that the peer does not answer, takes no STag from a later one with the
// same key on another stream.
func TestFailedBindTakesNoSTagFromTheNext(t *testing.T) {
	e := newEnd(t, Config{})
	first, raw := e.rawStream()
	second, _ := e.rawStream()
	mr, mw, sink := e.mr(64, LocalWrite|WindowBind), e.keyed(), e.mr(4, LocalWrite)
	bind := func(qp *QP, key uint8, flags Flags) {
		t.Helper()
		if err := qp.PostSend(&SendWR{Op: OpBind, Flags: flags, MW: mw, Key: key, SGL: whole(mr, 64), Access: RemoteWrite}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(qp *QP) {
		t.Helper()
		if err := qp.PostSend(&SendWR{Op: OpRead, SGL: whole(sink, 4), RemoteSTag: 1}); err != nil {
			t.Fatal(err)
		}
	}
	key := uint8(mw.STag()) + 1
	bind(second, key, Signaled)
	e.wantOK(WCBind)
	read(first)
	bind(first, key+1, 0) // fails, as the window is bound
	if err := mw.Invalidate(); err != nil {
		t.Fatal(err)
	}
	read(second)
	bind(second, key+1, Fence)
	raw.Close()
	<-first.Done()
	if got := uint8(mw.STag()); got != key+1 {
		t.Errorf("the window's STag has the key %#02x, want %#02x", got, key+1)
	}
}
