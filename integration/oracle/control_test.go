package oracle

import (
	"slices"
	"testing"

	"github.com/ironwarp/ironwarp/mpa"
)

// The control: the same check finds each of these faults in a capture that is otherwise
// good.
func TestSpoiltCapturesAreFlagged(t *testing.T) {
	requireTshark(t)
	tp, ends := recorded(t, mpa.Config{}, mpa.Config{}, 0)
	// fpdu returns where the n-th FPDU of the client's stream begins.
	stream := tp.stream(client)
	fpdu := func(n int) int {
		begin := startupLen(stream)
		if n > 0 {
			begin += fpduEnds(stream[begin:], false)[n-1]
		}
		return begin
	}
	for _, tc := range []struct {
		name  string
		spoil func(b []byte)
		meant func(lines []string) []string
	}{
		{name: "nothing"},
		{name: "a bit of a CRC", spoil: func(b []byte) { b[fpdu(4)-1] ^= 1 }},
		{name: "a bit of a payload", spoil: func(b []byte) { b[fpdu(6)+40] ^= 0x80 }},
		{name: "a length that is too small", spoil: func(b []byte) { b[fpdu(5)+1] -= 4 }},
		{name: "a length that is too large", spoil: func(b []byte) { b[fpdu(5)] = 0xff }},
		{name: "an opcode", spoil: func(b []byte) { b[fpdu(5)+3] ^= 1 }},
		{name: "an STag that was not meant", meant: func(l []string) []string { return replaced(l, "Write", "Write stag=0x01020304 to=1001 len=5 in 1") }},
		{name: "a message that was not sent", meant: func(l []string) []string { return append(l, "Send qn=0 msn=99 len=0 in 1") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f, spoilt := newFile(t), tp
			if tc.spoil != nil {
				b := slices.Clone(stream)
				tc.spoil(b)
				spoilt = tp.replay(client, b)
			}
			// The segments are cut where the FPDUs of the good stream end.
			f.addCut(spoilt, tp, 40000, cuts[0], false, [2]bool{})
			k := take{name: tc.name, port: 40000, ends: ends, crc: true}
			if tc.meant != nil {
				e := *ends[client]
				e.meant = tc.meant(slices.Clone(e.meant))
				k.ends[client] = &e
			}
			found := ask(t, f.path, serverPort)
			flagged := len(found.problems) + len(k.complaints(found))
			if good := tc.spoil == nil && tc.meant == nil; good != (flagged == 0) {
				t.Errorf("%d complaints: %v %v", flagged, found.problems, k.complaints(found))
			}
		})
	}
}

// replaced replaces the last line that begins with a word.
func replaced(lines []string, word, by string) []string {
	for i := len(lines) - 1; i >= 0; i-- {
		if len(lines[i]) > len(word) && lines[i][:len(word)] == word {
			lines[i] = by
			break
		}
	}
	return lines
}

// replay is the record with one end's stream replaced by another of the same length.
func (tp *tape) replay(from int, stream []byte) *tape {
	out := &tape{}
	for _, c := range tp.chunks {
		if c.from == from {
			c.data, stream = stream[:len(c.data)], stream[len(c.data):]
		}
		out.chunks = append(out.chunks, c)
	}
	return out
}
