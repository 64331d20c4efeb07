package sctpadapt_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/ironwarp/ironwarp/ddp"
	"github.com/ironwarp/ironwarp/ddp/sctpadapt"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// RFC 5043 section 9, RFC 5041 section 5.1: MULPDU follows the path's MTU. What was
// segmented for a longer one, and was not sent yet, is segmented again; the peer
// can't tell the difference.
func TestSegmentsFollowAShrinkingPath(t *testing.T) {
	for _, detached := range []bool{false, true} {
		f := newFake(t, sctpadapt.Config{}, true)
		s := f.open()
		payload := make([]byte, 3000)
		for i := range payload {
			payload[i] = byte(i * 7)
		}
		const to, stag, msn = 0xfffff000, 0x1234, 9
		room := s.MULPDU() - ddp.UntaggedHeaderLen
		for at := 0; at < len(payload); at += room {
			piece := payload[at:min(at+room, len(payload))]
			last := at+len(piece) == len(payload)
			for _, hdr := range [][]byte{
				ddp.AppendTagged(nil, last, 0x40, stag, to+uint64(at)),
				ddp.AppendUntagged(nil, last, 0x43, 5, 0, msn, uint32(at)),
			} {
				if err := s.Append(hdr, [][]byte{piece[:10], piece[10:]}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if detached {
			f.full = true
			if done, err := s.TryFlush(); done || err != nil {
				t.Fatal(done, err)
			}
			s.Detach()
			f.full = false
		}
		f.mu.Lock()
		f.longest = 700
		f.mu.Unlock()
		if done, err := s.TryFlush(); !done || err != nil {
			t.Fatal(done, err)
		}
		var tagged, untagged, most int
		for ssn := uint16(1); tagged < len(payload) || untagged < len(payload); ssn++ {
			b := f.next().Bufs[0]
			most = max(most, len(b))
			if got := binary.BigEndian.Uint16(b); got != ssn {
				t.Fatalf("number %d, want %d", got, ssn)
			}
			b = b[2:]
			at, last := &untagged, false
			if ddp.IsTagged(b) {
				h := ddp.Tagged(b)
				at, last = &tagged, h.Last()
				if h.TO() != to+uint64(tagged) || h.STag() != stag || h.ULP() != 0x40 || h.Version() != 1 {
					t.Errorf("header %x at %d", b[:14], tagged)
				}
				b = h.Payload()
			} else {
				h := ddp.Untagged(b)
				last = h.Last()
				if h.MO() != uint32(untagged) || h.MSN() != msn || h.QN() != 0 || h.ULPWord() != 5 || h.ULP() != 0x43 {
					t.Errorf("header %x at %d", b[:18], untagged)
				}
				b = h.Payload()
			}
			if !bytes.Equal(b, payload[*at:*at+len(b)]) {
				t.Fatalf("other bytes at %d", *at)
			}
			if *at += len(b); last != (*at == len(payload)) {
				t.Errorf("up to %d of %d: last %v", *at, len(payload), last)
			}
		}
		if most > 700 {
			t.Errorf("a message of %d bytes", most)
		}
		s.Close()
	}
	// What is no segment can't be cut: the stream ends.
	f := newFake(t, sctpadapt.Config{}, true)
	s := f.open()
	s.Append(make([]byte, 5), [][]byte{make([]byte, 1000)})
	f.longest = 10
	if _, err := s.TryFlush(); !errors.Is(err, assoc.ErrTooLong) {
		t.Error(err)
	}
	s.Close()
}
