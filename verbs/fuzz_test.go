package verbs

import (
	"encoding/binary"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/iwarptest"
	"github.com/ironwarp/ironwarp/rdmap"
)

// A whole stream fed by a hostile peer: whatever comes, memory outside the
// window stays as it is, the stream ends when the peer does and nothing is left.
func FuzzStream(f *testing.F) {
	add := func(segs ...[]byte) {
		var in []byte
		for _, s := range segs {
			in = binary.BigEndian.AppendUint16(in, uint16(len(s)))
			in = append(in, s...)
		}
		f.Add(in)
	}
	for _, segs := range hostileSeeds() {
		add(segs...)
	}
	add(untagged(true, rdmap.OpSend, 0, 1, 0, 1, 2, 3), untagged(true, rdmap.OpImmediate, 0, 2, 0, make([]byte, 8)...))
	add(append(ddp.AppendUntagged(nil, true, rdmap.Control(rdmap.OpReadRequest), 0, 1, 1, 0), rdmap.ReadRequest{Size: 0}.Append(nil)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		for _, direct := range []bool{false, true} {
			fuzzOnce(t, in, direct)
		}
	})
}

// fuzzOnce feeds the segments in in, each behind its length. An STag of all
// ones stands for the STag of the window.
func fuzzOnce(t *testing.T, in []byte, direct bool) {
	e := newEnd(t, Config{})
	raw, l := iwarptest.Pair(iwarptest.Options{Direct: direct})
	e.startOn(l)
	mr := e.mr(64, LocalWrite)
	stag, err := mr.Reregister(16, 32, RemoteRead|RemoteWrite|RemoteAtomic)
	if err != nil {
		t.Fatal(err)
	}
	recv := e.mr(32, LocalWrite)
	for range 4 {
		e.recv(RecvWR{SGL: whole(recv, 32)})
	}
	for len(in) >= 2 {
		n := min(int(binary.BigEndian.Uint16(in)), len(in)-2)
		seg := append([]byte(nil), in[2:2+n]...)
		in = in[2+n:]
		if ddp.HeaderLen(seg) != 0 && ddp.IsTagged(seg) && ddp.Tagged(seg).STag() == ^uint32(0) {
			binary.BigEndian.PutUint32(seg[2:], stag)
		}
		if raw.Send(seg) != nil {
			break
		}
	}
	raw.CloseWrite()
	go func() {
		for {
			if _, err := raw.Recv(); err != nil {
				return
			}
		}
	}()
	e.wantEnd()
	raw.Close()
	for i, b := range mr.Bytes() {
		if b != 0 && (i < 16 || i >= 48) {
			t.Fatalf("byte %d outside the window was changed", i)
		}
	}
	if u := e.dev.Usage(); u.Streams != 0 || u.IRRQEntries != 0 {
		t.Errorf("left in use: %+v", u)
	}
	if err := recv.Deregister(); err != nil {
		t.Error(err)
	}
	e.dev.Close()
}
