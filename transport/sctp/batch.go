package sctp

// batch collects consecutive packets to one peer. Chunks are copied into it: gathering
// more pieces per packet would cost the kernel more than that.
type batch struct {
	buf  []byte
	ends []int // where each packet ends
	at   int   // where the current one begins

	kinds   []packetKind // of each packet
	kind    packetKind   // of the current one
	special bool         // some packets are not packetPlain
}

// packetKind is how a packet is sent.
type packetKind uint8

const (
	packetPlain packetKind = iota
	packetAlone            // not joined with others by UDP_SEGMENT, because it may be too long
	packetLoose            // without the Don't Fragment bit, because it is too long
)

func newBatch() *batch {
	return &batch{buf: make([]byte, 0, batchBytes), ends: make([]int, 0, batchPackets), kinds: make([]packetKind, 0, batchPackets)}
}

// full reports whether there is no room for a packet of size bytes.
func (b *batch) full(size int) bool {
	return len(b.buf) > 0 && len(b.buf)+size > batchBytes || len(b.ends) >= batchPackets
}

// begin begins a packet.
func (b *batch) begin(src, dst uint16, tag uint32) {
	b.at, b.kind = len(b.buf), packetPlain
	b.buf = appendHeader(b.buf, src, dst, tag)
}

// len returns the length of the current packet in bytes.
func (b *batch) len() int { return len(b.buf) - b.at }

// end seals the current packet. It drops a packet without chunks and returns false.
func (b *batch) end() bool {
	if b.len() == headerLen {
		b.buf = b.buf[:b.at]
		return false
	}
	packet(b.buf[b.at:]).seal()
	b.ends, b.kinds = append(b.ends, len(b.buf)), append(b.kinds, b.kind)
	b.special = b.special || b.kind != packetPlain
	return true
}

func (b *batch) reset() {
	b.buf, b.ends, b.kinds, b.at = b.buf[:0], b.ends[:0], b.kinds[:0], 0
	b.special = false
}

func (b *batch) empty() bool { return len(b.ends) == 0 }

// packet returns the i-th packet.
func (b *batch) packet(i int) []byte {
	start := 0
	if i > 0 {
		start = b.ends[i-1]
	}
	return b.buf[start:b.ends[i]]
}
