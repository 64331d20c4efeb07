package sctp

// batch collects consecutive packets to one peer: those that it builds itself, and those
// that lie ready in a send queue's memory, which must stay as it is until the batch is reset.
type batch struct {
	buf     []byte   // the packets built here
	packets [][]byte // all of them
	bytes   int      // in packets
	at      int      // where in buf the current packet begins
	ready   []byte   // the current packet, if it lies elsewhere

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
	return &batch{buf: make([]byte, 0, batchBytes), packets: make([][]byte, 0, batchPackets), kinds: make([]packetKind, 0, batchPackets)}
}

// full reports whether there is no room for a packet of size bytes.
func (b *batch) full(size int) bool {
	return b.bytes > 0 && b.bytes+size > batchBytes || len(b.packets) >= batchPackets
}

// begin begins a packet.
func (b *batch) begin(src, dst uint16, tag uint32) {
	b.at, b.kind = len(b.buf), packetPlain
	b.buf = appendHeader(b.buf, src, dst, tag)
}

// len returns the length of the current packet in bytes.
func (b *batch) len() int {
	if b.ready != nil {
		return len(b.ready)
	}
	return len(b.buf) - b.at
}

// use makes p the current packet, of which only the header has been built so far. Its first
// headerLen bytes are overwritten with that, and nothing can be added.
func (b *batch) use(p []byte) {
	copy(p[:headerLen], b.buf[b.at:])
	b.buf, b.ready = b.buf[:b.at], p
}

// end seals the current packet. It drops a packet without chunks and returns false.
func (b *batch) end() bool {
	p := b.ready
	if b.ready = nil; p == nil {
		p = b.buf[b.at:]
	}
	if len(p) == headerLen {
		b.buf = b.buf[:b.at]
		return false
	}
	packet(p).seal()
	b.packets, b.kinds = append(b.packets, p), append(b.kinds, b.kind)
	b.bytes += len(p)
	b.special = b.special || b.kind != packetPlain
	return true
}

func (b *batch) reset() {
	clear(b.packets)
	*b = batch{buf: b.buf[:0], packets: b.packets[:0], kinds: b.kinds[:0]}
}

func (b *batch) empty() bool { return len(b.packets) == 0 }
