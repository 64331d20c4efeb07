package capture

import (
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/ddp/tap"
)

// record is a tap.Record in a ring.
type record struct {
	link     *tap.Link
	stream   *tap.Stream
	kind     tap.Kind
	sent     bool
	at       time.Time
	length   int // on the stream, in bytes
	position uint64
	grid     int
	lost     uint64 // records before this one that had no room
	from, to int    // of the block's bytes: what is captured
}

// block is a part of a ring.
type block struct {
	records []record
	bytes   []byte
}

// Ring takes records as fast as streams bring them, and drops those for which there is no room. It is a tap.Watcher.
type Ring struct {
	peer    string // the identity whose streams are captured; empty: all
	payload bool
	some    chan struct{} // holds a value when there is something to take

	mu      sync.Mutex // guards the fields below it
	filling *block     // nil: there is no room
	full    []*block
	free    []*block
	made    int
	lost    uint64 // since the last record that had room
	taken   uint64
	dropped uint64
}

// NewRing returns a ring for the streams with the peer of an identity, or with all. Without payload it takes what
// tap.Visible shows.
func NewRing(peer string, payload bool) *Ring {
	return &Ring{peer: peer, payload: payload, some: make(chan struct{}, 1)}
}

// Counts returns how many records the ring has taken and dropped.
func (r *Ring) Counts() (taken, dropped uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken, r.dropped
}

// Watch implements tap.Watcher. It waits for nothing but other streams that copy.
func (r *Ring) Watch(t *tap.Record) {
	if r.peer != "" && t.Link.Peer != r.peer {
		return
	}
	n := t.Length
	if !r.payload {
		n = t.Visible
	}
	r.mu.Lock()
	b := r.roomLocked(n)
	if b == nil {
		r.dropped++
		r.lost++
		r.mu.Unlock()
		return
	}
	x := record{link: t.Link, stream: t.Stream, kind: t.Kind, sent: t.Sent, at: t.At, length: t.Length, position: t.Position, grid: t.Grid, lost: r.lost, from: len(b.bytes)}
	for _, p := range t.Bytes {
		p = p[:min(len(p), n)]
		b.bytes = append(b.bytes, p...)
		n -= len(p)
	}
	x.to = len(b.bytes)
	b.records = append(b.records, x)
	r.lost = 0
	r.taken++
	r.mu.Unlock()
	select {
	case r.some <- struct{}{}:
	default:
	}
}

// roomLocked returns the block for n bytes more, nil if there is none.
func (r *Ring) roomLocked(n int) *block {
	if n > blockLen {
		return nil
	}
	if b := r.filling; b != nil {
		if len(b.records) < blockRecords && len(b.bytes)+n <= blockLen {
			return b
		}
		r.full = append(r.full, b)
		r.filling = nil
	}
	switch k := len(r.free); {
	case k > 0:
		r.filling, r.free = r.free[k-1], r.free[:k-1]
	case r.made < ringBlocks:
		r.made++
		r.filling = &block{bytes: make([]byte, 0, blockLen)}
	}
	return r.filling
}

// next takes the block that was filled first, nil if there is nothing. The caller gives it back.
func (r *Ring) next() *block {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.full) > 0 {
		b := r.full[0]
		r.full[0] = nil
		r.full = r.full[1:]
		return b
	}
	b := r.filling
	if b == nil || len(b.records) == 0 {
		return nil
	}
	r.filling = nil
	return b
}

// giveBack takes a block back that next has given.
func (r *Ring) giveBack(b *block) {
	clear(b.records) // their streams may go
	b.records, b.bytes = b.records[:0], b.bytes[:0]
	r.mu.Lock()
	r.free = append(r.free, b)
	r.mu.Unlock()
}
