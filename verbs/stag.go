package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// stagTable maps STags to windows. Lookups take no lock: linear probing
// over atomic slots. Writers hold mu and make the sequence odd while they move
// entries, so that a lookup can report whether to look again.
type stagTable struct {
	seq atomic.Uint64
	tab atomic.Pointer[stagSlots]

	mu   sync.Mutex // guards the fields below it
	live int        // STags that open memory or will
	keys int        // in the table
	rnd  []byte     // random bytes not yet used
	pool [4096]byte

	// prefixes are the upper 24 bits of STags whose lower 8 consumers choose, see MW. No other window gets
	// one of the 256, nor before many others have had theirs.
	prefixes     map[uint32]bool
	lastPrefixes [retiredSTags]uint32
	nextPrefix   int

	// The STags removed last stay in the table, without a window, so that none of
	// them is reused soon.
	retired [retiredSTags]uint32
	next    int // index of the oldest, which the next one replaces
}

type stagSlots struct {
	mask  uint32
	slots []stagSlot
}

type stagSlot struct {
	key atomic.Uint32 // 0: free
	win atomic.Pointer[window]
}

const (
	minSTagSlots = 64
	retiredSTags = 1024
)

func newSTagSlots(n int) *stagSlots {
	return &stagSlots{mask: uint32(n - 1), slots: make([]stagSlot, n)}
}

func (t *stagTable) init() { t.tab.Store(newSTagSlots(minSTagSlots)) }

// find returns the window of stag, nil if there is none. The caller must check
// under a pin that the window has this STag now.
func (t *stagTable) find(stag uint32) *window {
	if stag == 0 {
		return nil
	}
	for {
		seq := t.seq.Load()
		s := t.tab.Load()
		var w *window
		for i := stag & s.mask; ; i = (i + 1) & s.mask {
			switch s.slots[i].key.Load() {
			case stag:
				w = s.slots[i].win.Load()
			case 0:
				w = nil
			default:
				continue
			}
			break
		}
		if seq&1 == 0 && t.seq.Load() == seq {
			return w
		}
	}
}

// insert gives w a fresh random STag (RFC 5042 section 6.1.1) that no other window
// has, and returns it.
func (t *stagTable) insert(w *window) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.tab.Load()
	if 2*(t.keys+1) > len(s.slots) {
		s = t.grow(s)
	}
	for {
		stag := t.drawLocked()
		if stag == 0 || t.prefixes[stag>>keyBits] || !t.putLocked(s, stag, w) {
			continue
		}
		return stag
	}
}

// putLocked enters stag, unless it is there already.
func (t *stagTable) putLocked(s *stagSlots, stag uint32, w *window) bool {
	i := s.find(stag)
	if s.slots[i].key.Load() == stag {
		return false
	}
	s.slots[i].win.Store(w)
	s.slots[i].key.Store(stag)
	t.live++
	t.keys++
	return true
}

// find is where stag is, or would be.
func (s *stagSlots) find(stag uint32) uint32 {
	for i := stag & s.mask; ; i = (i + 1) & s.mask {
		if k := s.slots[i].key.Load(); k == 0 || k == stag {
			return i
		}
	}
}

// keyBits is how much of an STag is its key, which a consumer may choose (draft-hilland-rddp-verbs-00).
const keyBits = 8

// reserve draws the STag of a window whose keys its consumer will choose: nobody else gets one that
// differs in its key alone. It opens nothing.
func (t *stagTable) reserve() uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.prefixes == nil {
		t.prefixes = make(map[uint32]bool)
	}
	for {
		stag := t.drawLocked()
		if p := stag >> keyBits; p != 0 && !t.prefixes[p] && !t.hasPrefixLocked(p) {
			t.prefixes[p] = true
			return stag
		}
	}
}

func (t *stagTable) hasPrefixLocked(p uint32) bool {
	s := t.tab.Load()
	for key := range uint32(1 << keyBits) {
		stag := p<<keyBits | key
		if s.slots[s.find(stag)].key.Load() == stag {
			return true
		}
	}
	return false
}

// release ends what reserve has begun. Its STags are used again as late as others.
func (t *stagTable) release(stag uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if oldest := t.lastPrefixes[t.nextPrefix]; oldest != 0 {
		delete(t.prefixes, oldest)
	}
	t.lastPrefixes[t.nextPrefix] = stag >> keyBits
	t.nextPrefix = (t.nextPrefix + 1) % len(t.lastPrefixes)
}

// insertChosen enters an STag of those that are reserved for w, which is not in use.
func (t *stagTable) insertChosen(stag uint32, w *window) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.tab.Load()
	if 2*(t.keys+1) > len(s.slots) {
		s = t.grow(s)
	}
	t.putLocked(s, stag, w)
}

// removeChosen ends the use of an STag that insertChosen has entered.
func (t *stagTable) removeChosen(stag uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live--
	t.dropLocked(stag)
}

func (t *stagTable) grow(old *stagSlots) *stagSlots {
	s := newSTagSlots(2 * len(old.slots))
	for j := range old.slots {
		k := old.slots[j].key.Load()
		if k == 0 {
			continue
		}
		i := k & s.mask
		for s.slots[i].key.Load() != 0 {
			i = (i + 1) & s.mask
		}
		s.slots[i].win.Store(old.slots[j].win.Load())
		s.slots[i].key.Store(k)
	}
	t.seq.Add(1)
	t.tab.Store(s)
	t.seq.Add(1)
	return s
}

// remove ends the use of stag, which is not reused before many others are given out.
func (t *stagTable) remove(stag uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.tab.Load()
	for i := stag & s.mask; ; i = (i + 1) & s.mask {
		if k := s.slots[i].key.Load(); k == stag {
			s.slots[i].win.Store(nil)
			t.live--
			break
		} else if k == 0 {
			return
		}
	}
	if oldest := t.retireLocked(stag); oldest != 0 {
		t.dropLocked(oldest)
	}
}

// dropLocked removes stag from the table and closes the gap in its run.
func (t *stagTable) dropLocked(stag uint32) {
	s := t.tab.Load()
	i := stag & s.mask
	for s.slots[i].key.Load() != stag {
		if s.slots[i].key.Load() == 0 {
			return
		}
		i = (i + 1) & s.mask
	}
	t.keys--
	if s.slots[(i+1)&s.mask].key.Load() == 0 { // no entry moves, so no lookup can miss one
		s.slots[i].key.Store(0)
		s.slots[i].win.Store(nil)
		return
	}
	t.seq.Add(1)
	for j := (i + 1) & s.mask; ; j = (j + 1) & s.mask {
		k := s.slots[j].key.Load()
		if k == 0 {
			break
		}
		if home := k & s.mask; (j-home)&s.mask >= (j-i)&s.mask {
			s.slots[i].key.Store(0)
			s.slots[i].win.Store(s.slots[j].win.Load())
			s.slots[i].key.Store(k)
			i = j
		}
	}
	s.slots[i].key.Store(0)
	s.slots[i].win.Store(nil)
	t.seq.Add(1)
}

// randomLocked draws 32 bits from the system's CSPRNG, 4 KiB at a time.
func (t *stagTable) randomLocked() uint32 {
	if len(t.rnd) < 4 {
		rand.Read(t.pool[:])
		t.rnd = t.pool[:]
	}
	v := binary.LittleEndian.Uint32(t.rnd)
	clear(t.rnd[:4])
	t.rnd = t.rnd[4:]
	return v
}
