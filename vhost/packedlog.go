package vhost

// packedLog is the log of a packed ring: copies of its requests' descriptors, since those in
// the ring are written over. It begins with u64 features, u16 version, u16 descriptors, u16
// free head, u16 old free head, u16 used index, u16 old used index, u8 used wrap, u8 old
// used wrap, and 6 bytes. Entries have u8 under way, 1 byte, u16 next, u16 last, u16 number;
// u64 counter; u16 id, u16 flags, u32 length; u64 address. A change counts once it is copied to
// the fields called old.
type packedLog struct {
	b       []byte
	num     uint16
	free    uint16 // the head of the free entries
	head    uint16 // the entry of the request that is being taken
	count   uint16 // its descriptors so far
	last    uint16 // the entry of the last of them
	counter uint64
}

// openPackedLog opens a log, and returns the entries that are under way in the order in which
// they were taken, and the index at which the next is given back. It fails for a log of another
// ring.
func openPackedLog(b []byte, num uint16, used packedIndex, ring []byte) (*packedLog, []uint16, packedIndex, error) {
	l := &packedLog{b: b, num: num}
	fail := func(err error) (*packedLog, []uint16, packedIndex, error) { return nil, nil, used, err }
	head := load64(b, 8)
	switch version, n := uint16(head), uint16(head>>16); {
	case version == 0:
		for i := range num {
			store64(b, l.at(i), uint64(i+1)<<16)
		}
		l.setUsed(used)
		l.commit()
		store64(b, 8, logVersion|uint64(num)<<16)
		return l, nil, used, nil
	case version != logVersion || n != num:
		return fail(ringError("its log has version %d and %d descriptors, the ring has %d", version, n, num))
	}
	state := load64(b, 16)
	now := packedIndex{uint16(state), state>>32&1 != 0}
	used = packedIndex{uint16(state >> 16), state>>40&1 != 0}
	if used.at >= num || now.at >= num {
		return fail(ringError("its log goes on at %d of %d", max(used.at, now.at), num))
	}
	l.free = uint16(head >> 48)
	if flags := load32(ring, int(used.at)*descLen+12) >> 16; now != used && ((flags&descAvail != 0) != used.wrap || (flags&descUsed != 0) == used.wrap) {
		used, l.free = now, uint16(head>>32) // the guest has seen the last batch
	}
	l.storeFree()
	l.setUsed(used)
	l.commit()
	free := 0
	for i := l.free; i < num; i = uint16(load64(b, l.at(i)) >> 16) {
		if free++; free > int(num) {
			return fail(ringError("the free entries of its log go in a circle"))
		}
		store64(b, l.at(i), load64(b, l.at(i))&^0xff)
	}
	entries, counter := underWay(b, num, l.at)
	l.counter = counter
	return l, entries, used, nil
}

func (l *packedLog) at(i uint16) int { return packedHead + packedEntry*int(i) }

// slots is how many descriptors a request has.
func (l *packedLog) slots(entry uint16) uint16 { return uint16(load64(l.b, l.at(entry)) >> 48) }

// desc returns a logged descriptor and the entry of the next.
func (l *packedLog) desc(i uint16) (d desc, next uint16) {
	w := load64(l.b, l.at(i)+16)
	d = desc{addr: load64(l.b, l.at(i)+24), len: uint32(w >> 32), flags: uint16(w >> 16), next: uint16(w)}
	return d, uint16(load64(l.b, l.at(i)) >> 16)
}

// beginRequest begins a request. It fails if there is no free entry.
func (l *packedLog) beginRequest() error {
	if l.free >= l.num {
		return ringError("its log has no free entry")
	}
	l.counter++
	l.head, l.count = l.free, 0
	store64(l.b, l.at(l.head)+8, l.counter)
	return nil
}

// noteDescriptor notes a descriptor of the request. It fails if there is no free entry.
func (l *packedLog) noteDescriptor(head uint16, d desc) error {
	i := l.free
	if i >= l.num {
		return ringError("its log has no free entry")
	}
	store64(l.b, l.at(i)+16, uint64(d.next)|uint64(d.flags)<<16|uint64(d.len)<<32)
	store64(l.b, l.at(i)+24, d.addr)
	l.free, l.last = uint16(load64(l.b, l.at(i))>>16), i
	l.count++
	return nil
}

// commitRequest notes that the request is complete: from here on it is under way.
func (l *packedLog) commitRequest() {
	next := load64(l.b, l.at(l.head)) & 0xffff0000
	store64(l.b, l.at(l.head), logUnderWay|next|uint64(l.last)<<32|uint64(l.count)<<48)
	l.storeFree()
	l.commit()
}

// noteUsed notes a request that the guest is about to see used.
func (l *packedLog) noteUsed(entry uint16) {
	last := uint16(load64(l.b, l.at(entry)) >> 32)
	if last >= l.num || entry >= l.num {
		return // the front end has broken its log
	}
	store64(l.b, l.at(last), load64(l.b, l.at(last))&^0xffff0000|uint64(l.free)<<16)
	l.free = entry
	l.storeFree()
}

// noteSeen notes that the guest sees requests used.
func (l *packedLog) noteSeen(batch []packedUsed) {
	for _, u := range batch {
		store64(l.b, l.at(u.entry), load64(l.b, l.at(u.entry))&^0xff)
	}
	l.commit()
}

func (l *packedLog) storeFree() {
	store64(l.b, 8, load64(l.b, 8)&^(0xffff<<32)|uint64(l.free)<<32)
}

// setUsed notes the index at which the next request is given back.
func (l *packedLog) setUsed(used packedIndex) {
	w := load64(l.b, 16)&^(0xffff|0xff<<32) | uint64(used.at)
	if used.wrap {
		w |= 1 << 32
	}
	store64(l.b, 16, w)
}

// commit copies the changed fields to the old ones.
func (l *packedLog) commit() {
	h := load64(l.b, 8)
	store64(l.b, 8, h&^(0xffff<<48)|(h>>32&0xffff)<<48)
	w := load64(l.b, 16)
	store64(l.b, 16, w&^(0xffff<<16|0xff<<40)|(w&0xffff)<<16|(w>>32&0xff)<<40)
}
