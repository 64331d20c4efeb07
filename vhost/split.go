package vhost

import "sync/atomic"

// splitRing is a ring of three parts: descriptors, what is available, what is used.
type splitRing struct {
	walker
	num               uint16
	desc, avail, used []byte
	eventIndex        bool
	log               *splitLog // nil: the front end has none

	lastAvail uint16 // the next to be taken
	usedIndex uint16 // the next to be given back
	published uint16 // usedIndex as the guest sees it
	called    uint16 // as it was when the guest was told last
	hasCalled bool
	busy      []bool   // by head: taken and not given back
	replay    []uint16 // heads of the log's that are to be taken first
	batch     []uint16 // heads that were pushed since the last publish
	fenceWord atomic.Uint32
}

const (
	availLen = 6 // and 2 for each descriptor
	usedLen  = 6 // and 8 for each descriptor

	noCall = 1 // avail's flags
)

// newSplitRing sets a ring up that goes on at base. It fails if a part of it is not in mem,
// or the log is broken.
func newSplitRing(mem *memory, num uint16, at vringAddr, base uint32, eventIndex bool, logged []byte) (*splitRing, error) {
	r := &splitRing{walker: walker{mem: mem}, num: num, eventIndex: eventIndex, busy: make([]bool, num)}
	if err := r.relocate(mem, at); err != nil {
		return nil, err
	}
	if num&(num-1) != 0 {
		return nil, ringError("a split ring has %d descriptors, no power of two", num)
	}
	r.lastAvail = uint16(base)
	err := guarded(func() error {
		r.usedIndex = uint16(load32(r.used, 0) >> 16)
		if logged != nil {
			var err error
			if r.log, r.replay, err = openSplitLog(logged, num, r.usedIndex); err != nil {
				return err
			}
			r.lastAvail = r.usedIndex + uint16(len(r.replay))
		}
		return nil
	})
	r.published = r.usedIndex
	return r, err
}

func (r *splitRing) relocate(mem *memory, at vringAddr) error {
	n := uint64(r.num)
	desc, avail, used, err := mem.ringParts(at, r.num, availLen+2*n, 2, usedLen+8*n)
	if err != nil {
		return err
	}
	r.mem, r.desc, r.avail, r.used = mem, desc, avail, used
	return nil
}

func (r *splitRing) base() uint32 { return uint32(r.lastAvail) }

func (r *splitRing) pop(c *chain) (bool, error) {
	var head uint16
	if len(r.replay) > 0 {
		head, r.replay = r.replay[0], r.replay[1:]
	} else {
		index := load16(r.avail, 2)
		switch ahead := index - r.lastAvail; {
		case ahead == 0:
			return false, nil
		case ahead > r.num:
			return false, ringError("its available index %d is %d past what was taken, and the ring has %d", index, ahead, r.num)
		}
		head = load16(r.avail, 4+2*int(r.lastAvail%r.num))
		if head >= r.num || r.busy[head] {
			return false, ringError("it makes descriptor %d of %d available, which is none or under way", head, r.num)
		}
		if r.log != nil {
			r.log.noteTaken(head)
		}
		r.lastAvail++
	}
	r.busy[head] = true
	c.id = head
	for i, n := head, 0; ; n++ {
		if i >= r.num || n >= int(r.num) {
			return false, ringError("the request at descriptor %d goes on at %d of %d, or in a circle", head, i, r.num)
		}
		d := r.parse(r.desc[int(i)*descLen:])
		if err := r.addDescriptor(c, d); err != nil {
			return false, err
		}
		if d.flags&descNext == 0 {
			return true, nil
		}
		i = d.next
	}
}

func (r *splitRing) push(c *chain, n uint32) {
	at := 4 + 8*int(r.usedIndex%r.num)
	store32(r.used, at, uint32(c.id))
	store32(r.used, at+4, n)
	r.usedIndex++
	r.busy[c.id] = false
	if r.log != nil {
		r.log.noteUsed(c.id)
		r.batch = append(r.batch, c.id)
	}
}

func (r *splitRing) publish() (call bool) {
	if r.usedIndex == r.published {
		return false
	}
	r.published = r.usedIndex
	store32(r.used, 0, uint32(r.usedIndex)<<16) // flags: kicks are welcome
	if r.log != nil {
		r.log.noteSeen(r.batch, r.usedIndex)
		r.batch = r.batch[:0]
	}
	fence(&r.fenceWord)
	if !r.eventIndex {
		return load16(r.avail, 0)&noCall == 0
	}
	old, had := r.called, r.hasCalled
	r.called, r.hasCalled = r.usedIndex, true
	return !had || wantsCall(load16(r.avail, 4+2*int(r.num)), old, r.usedIndex)
}

func (r *splitRing) rearm() bool {
	if r.eventIndex {
		at := 4 + 8*int(r.num)
		le.PutUint16(r.used[at:], r.lastAvail)
	}
	fence(&r.fenceWord)
	return len(r.replay) > 0 || load16(r.avail, 2) != r.lastAvail
}
