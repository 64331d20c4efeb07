package vhost

import "sync/atomic"

// packedRing is one ring of descriptors, whose flags say which side owns them.
type packedRing struct {
	walker
	num                  uint16
	desc, driver, device []byte // device and driver: what either wants to be told
	eventIndex           bool
	log                  *packedLog // nil: the front end has none

	avail, used packedIndex // the next to be taken, to be given back
	taken       uint16      // descriptors between the two
	called      uint16      // used as it was when the guest was told last
	hasCalled   bool
	replay      []packedReplay // of the log's, to be taken first
	batch       []packedUsed   // pushed since the last publish
	fenceWord   atomic.Uint32
}

// packedIndex is an index of a packed ring, which wraps around.
type packedIndex struct {
	at   uint16
	wrap bool // true the first time, and each second one after it
}

func (i packedIndex) plus(n, num uint16) packedIndex {
	if int(i.at)+int(n) >= int(num) {
		return packedIndex{uint16(int(i.at) + int(n) - int(num)), !i.wrap}
	}
	return packedIndex{i.at + n, i.wrap}
}

// word is the index as the ring and the messages have it.
func (i packedIndex) word() uint32 {
	if i.wrap {
		return uint32(i.at) | 1<<15
	}
	return uint32(i.at)
}

func packedIndexOf(w uint32) packedIndex { return packedIndex{uint16(w & 0x7fff), w&(1<<15) != 0} }

// packedUsed is a request that is given back.
type packedUsed struct {
	at    packedIndex
	id    uint16
	n     uint32
	entry uint16
}

// packedReplay is a request of the log's that was under way.
type packedReplay struct{ entry, slots uint16 }

const (
	callAlways = 0
	callNever  = 1
	callAt     = 2 // when an index is reached
)

// newPackedRing sets a ring up that goes on at base. It fails if a part of it is not in mem,
// or the log is broken.
func newPackedRing(mem *memory, num uint16, at vringAddr, base uint32, eventIndex bool, logged []byte) (*packedRing, error) {
	r := &packedRing{walker: walker{mem: mem, packed: true}, num: num, eventIndex: eventIndex}
	if err := r.relocate(mem, at); err != nil {
		return nil, err
	}
	r.avail = packedIndexOf(base)
	if r.avail.at >= num {
		return nil, ringError("it is to go on at %d of %d", r.avail.at, num)
	}
	r.used = r.avail // all that was taken has been given back
	if logged == nil {
		return r, nil
	}
	return r, guarded(func() (err error) {
		var under []uint16
		if r.log, under, r.used, err = openPackedLog(logged, num, r.used, r.desc); err != nil {
			return err
		}
		for _, e := range under {
			n := r.log.slots(e)
			if n == 0 || n > num-r.taken {
				return ringError("its log has requests of more descriptors than there are")
			}
			r.taken += n
			r.replay = append(r.replay, packedReplay{e, n})
		}
		r.avail = r.used.plus(r.taken, num)
		return nil
	})
}

func (r *packedRing) relocate(mem *memory, at vringAddr) error {
	desc, driver, device, err := mem.ringParts(at, r.num, 4, 4, 4)
	if err != nil {
		return err
	}
	r.mem, r.desc, r.driver, r.device = mem, desc, driver, device
	return nil
}

func (r *packedRing) base() uint32 { return r.avail.word() | r.avail.word()<<16 }

// isAvailable reports whether the descriptor to be taken next is there.
func (r *packedRing) isAvailable() bool {
	flags := load32(r.desc, int(r.avail.at)*descLen+12) >> 16
	return (flags&descAvail != 0) == r.avail.wrap && (flags&descUsed != 0) != r.avail.wrap
}

func (r *packedRing) pop(c *chain) (bool, error) {
	if len(r.replay) > 0 {
		c.entry, c.slots, r.replay = r.replay[0].entry, r.replay[0].slots, r.replay[1:]
		return true, r.popLogged(c)
	}
	if !r.isAvailable() {
		return false, nil
	}
	if r.log != nil {
		if err := r.log.beginRequest(); err != nil {
			return false, err
		}
		c.entry = r.log.head
	}
	for next := true; next; c.slots++ {
		if r.taken == r.num {
			return false, ringError("a request has more descriptors than the ring of %d has", r.num)
		}
		d := r.parse(r.desc[int(r.avail.at)*descLen:])
		next = d.flags&descNext != 0
		if r.log != nil {
			if err := r.log.noteDescriptor(c.entry, d); err != nil {
				return false, err
			}
		}
		c.id = d.next
		r.avail = r.avail.plus(1, r.num)
		r.taken++
		if err := r.addDescriptor(c, d); err != nil {
			return false, err
		}
	}
	if r.log != nil {
		r.log.commitRequest()
	}
	return true, nil
}

// popLogged takes a request of the log's.
func (r *packedRing) popLogged(c *chain) error {
	for i, n := c.entry, c.slots; n > 0; n-- {
		if i >= r.num {
			return ringError("its log names entry %d of %d", i, r.num)
		}
		var d desc
		d, i = r.log.desc(i)
		c.id = d.next
		if err := r.addDescriptor(c, d); err != nil {
			return err
		}
	}
	return nil
}

func (r *packedRing) push(c *chain, n uint32) {
	r.batch = append(r.batch, packedUsed{r.used, c.id, n, c.entry})
	r.used = r.used.plus(c.slots, r.num)
	r.taken -= c.slots
}

func (r *packedRing) publish() (call bool) {
	if len(r.batch) == 0 {
		return false
	}
	first := r.batch[0].at
	if r.log != nil {
		for _, u := range r.batch {
			r.log.noteUsed(u.entry)
		}
		r.log.setUsed(r.used)
	}
	// The guest sees none of them before the first.
	for i := len(r.batch) - 1; i >= 0; i-- {
		u := &r.batch[i]
		flags := uint32(0)
		if u.n > 0 {
			flags = descWrite
		}
		if u.at.wrap {
			flags |= descAvail | descUsed
		}
		at := int(u.at.at) * descLen
		store32(r.desc, at+8, u.n)
		store32(r.desc, at+12, uint32(u.id)|flags<<16)
	}
	if r.log != nil {
		r.log.noteSeen(r.batch)
	}
	r.batch = r.batch[:0]
	fence(&r.fenceWord)
	wants := load32(r.driver, 0)
	old, had := r.called, r.hasCalled && first.wrap == r.used.wrap
	r.called, r.hasCalled = r.used.at, true
	switch wants >> 16 & 3 {
	case callNever:
		return false
	case callAt:
		if !r.eventIndex || !had {
			return true
		}
		event := packedIndexOf(wants)
		if event.wrap != r.used.wrap {
			event.at -= r.num
		}
		return wantsCall(event.at, old, r.used.at)
	}
	return true
}

func (r *packedRing) rearm() bool {
	if r.eventIndex {
		store32(r.device, 0, r.avail.word()|callAt<<16)
	} else {
		store32(r.device, 0, callAlways<<16)
	}
	fence(&r.fenceWord)
	return len(r.replay) > 0 || r.isAvailable()
}
