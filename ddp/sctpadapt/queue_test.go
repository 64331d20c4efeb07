package sctpadapt

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// counted is memory that counts who keeps it, and spoils what lies in it when nobody does.
type counted struct {
	keepers int
	bytes   []byte
}

func (c *counted) Keep() { c.keepers++ }
func (c *counted) Release() {
	if c.keepers--; c.keepers <= 0 {
		clear(c.bytes)
	}
}

// A queue gives chunks back as they came, however it got them, and keeps memory for as
// long as it needs it.
func TestQueue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, m := new(queue), new(Mux)
		for range rapid.IntRange(1, 3).Draw(t, "uses") {
			var memories []*counted
			var want []record
			for i := range rapid.IntRange(0, 30).Draw(t, "chunks") {
				n := rapid.SampledFrom([]int{1, leastLent - 1, leastLent, 2000}).Draw(t, "length")
				msg := assoc.Message{Payload: bytes.Repeat([]byte{byte(i + 1)}, n)}
				r := record{flags: uint32(rapid.IntRange(0, 1).Draw(t, "flags")), chunk: bytes.Clone(msg.Payload)}
				if k := rapid.IntRange(0, 3).Draw(t, "memory"); k > 0 {
					if k == 1 || len(memories) == 0 {
						memories = append(memories, new(counted))
					}
					c := memories[max(len(memories)-k, 0)]
					if n >= leastLent {
						c.bytes = msg.Payload // the last one in it is enough
					}
					msg.Memory = c
				}
				q.put(&msg, r.flags)
				want = append(want, r)
			}
			for i, w := range want {
				r, ok := q.next()
				if !ok || r.flags&recordEnd != w.flags || !bytes.Equal(r.chunk, w.chunk) {
					t.Fatalf("chunk %d: %v, flags %d, %d bytes; want flags %d, %d bytes", i, ok, r.flags, len(r.chunk), w.flags, len(w.chunk))
				}
			}
			if _, ok := q.next(); ok {
				t.Fatal("there is one more")
			}
			for i, c := range memories {
				if c.keepers != 0 {
					t.Fatalf("memory %d is kept %d times", i, c.keepers)
				}
			}
			m.putQueue(q)
		}
	})
}
