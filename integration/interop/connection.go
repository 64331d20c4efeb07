package main

import (
	"fmt"
	"net/netip"
	"os"
)

// connection is a TCP connection of a capture.
type connection struct {
	client, server netip.AddrPort
	up, down       half // from the client, from the server
	wire           wire
}

// half is one direction of a connection: its bytes, in order and without repetitions.
type half struct {
	next    uint32 // sequence number
	begun   bool
	bytes   []byte            // not yet taken by the reader
	ahead   map[uint32][]byte // what came early
	lost    bool              // too much is missing: the capture has dropped packets
	repeats int               // segments, all or part of which had come before
}

// maxAhead is how many segments may come early. No queue of the wire holds as many.
const maxAhead = 4096

func (h *half) add(s segment) {
	if s.syn {
		h.next, h.begun = s.seq+1, true
		return
	}
	if !h.begun || h.lost || len(s.payload) == 0 {
		return
	}
	if ahead := int32(s.seq - h.next); ahead > 0 {
		if h.ahead == nil {
			h.ahead = make(map[uint32][]byte)
		}
		h.ahead[s.seq] = append([]byte(nil), s.payload...)
		h.lost = len(h.ahead) > maxAhead
		return
	}
	h.take(s.seq, s.payload)
	for again := true; again; {
		again = false
		for seq, p := range h.ahead {
			if int32(seq-h.next) <= 0 {
				delete(h.ahead, seq)
				h.take(seq, p)
				again = true
			}
		}
	}
}

// take appends what is new of a segment that does not come early.
func (h *half) take(seq uint32, p []byte) {
	old := int(h.next - seq)
	if old > 0 {
		h.repeats++
	}
	if old >= len(p) {
		return
	}
	h.bytes = append(h.bytes, p[old:]...)
	h.next += uint32(len(p) - old)
}

// readConnections reads all connections of a capture, and judges what they carry. A
// connection's key is its ends, the client's first.
func readConnections(path string) ([]*connection, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the capture: %w", err)
	}
	defer f.Close()
	type ends struct{ src, dst netip.AddrPort }
	live := make(map[ends]*connection)
	var all []*connection
	err = readSegments(f, func(s segment) error {
		c := live[ends{s.src, s.dst}]
		if c == nil {
			c = live[ends{s.dst, s.src}]
		}
		if s.syn && (c == nil || s.src == c.client && c.down.begun && s.seq+1 != c.up.next) {
			c = &connection{client: s.src, server: s.dst}
			live[ends{s.src, s.dst}] = c
			delete(live, ends{s.dst, s.src})
			all = append(all, c)
		}
		if c == nil {
			return nil // it is older than the capture
		}
		if s.src == c.client {
			c.up.add(s)
		} else {
			c.down.add(s)
		}
		c.read()
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the capture %s: %w", path, err)
	}
	return all, nil
}
