package vhost

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// A log has a queue's requests under way in memory that the front end keeps, so that the
// successor of a back end that was killed carries them out again ("Inflight I/O tracking").
// The log of a split ring begins with u64 features (see claimLog), u16 version, u16 descriptors, u16 last
// batch, u16 used index; then it has for each descriptor u8 under way, 5 bytes, u16 next and
// u64 counter.

const (
	logVersion   = 1
	logHead      = 16
	logEntry     = 16
	logAlign     = 64
	packedHead   = 32
	packedEntry  = 32
	logUnderWay  = 1
	logUsedShift = 48
)

// logLen is how many bytes the log of a queue takes.
func logLen(num uint16, packed bool) uint64 {
	n := logHead + uint64(num)*logEntry
	if packed {
		n = packedHead + uint64(num)*packedEntry
	}
	return (n + logAlign - 1) &^ (logAlign - 1)
}

// newLogFile makes memory for logs, of n bytes and all zero. Its owner closes it.
func newLogFile(n uint64) (fd int, err error) {
	fd, err = unix.MemfdCreate("ironwarp-inflight", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, fmt.Errorf("vhost: make memory for requests under way: memfd_create: %w", err)
	}
	if err = unix.Ftruncate(fd, int64(n)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("vhost: make memory for requests under way: %w", err)
	}
	return fd, nil
}

// claimLog notes in a queue's log, where its features would be, which attachment it belongs to.
// It fails for a log of another. Older logs, without such a note, may be anybody's.
func claimLog(b []byte, of block.ID) error {
	mark := le.Uint64(of[:])
	switch was := load64(b, 0); {
	case mark == 0 || was == mark:
	case was != 0:
		return broken("its log of requests under way is of another disk, or of the time before this one was detached and attached again: shut its machine down and start it again")
	default:
		store64(b, 0, mark)
	}
	return nil
}

// splitLog is the log of a split ring.
type splitLog struct {
	b       []byte
	counter uint64
}

// openSplitLog opens a log, and returns the heads that are under way in the order in which they
// were taken. It fails for a log of another ring.
func openSplitLog(b []byte, num, used uint16) (*splitLog, []uint16, error) {
	l := &splitLog{b: b}
	head := load64(b, 8)
	switch version, n := uint16(head), uint16(head>>16); {
	case version == 0:
		store64(b, 8, logVersion|uint64(num)<<16|uint64(used)<<logUsedShift)
		return l, nil, nil
	case version != logVersion || n != num:
		return nil, nil, ringError("its log has version %d and %d descriptors, the ring has %d", version, n, num)
	}
	// Those of the last batch that the guest has seen are over.
	if batch := used - uint16(head>>logUsedShift); batch > 0 {
		if batch > num {
			return nil, nil, ringError("its used index is %d past its log's", batch)
		}
		for i := uint16(head >> 32); batch > 0; batch-- {
			if i >= num {
				return nil, nil, ringError("its log names descriptor %d of %d", i, num)
			}
			w := load64(b, l.at(i))
			store64(b, l.at(i), w&^0xff)
			i = uint16(w >> 48)
		}
		store64(b, 8, head&^(0xffff<<logUsedShift)|uint64(used)<<logUsedShift)
	}
	heads, counter := underWay(b, num, l.at)
	l.counter = counter
	return l, heads, nil
}

// underWay returns the entries of a log that are under way, in the order in which they were
// taken, and the highest counter of all. The entry i is at at(i).
func underWay(b []byte, num uint16, at func(i uint16) int) (entries []uint16, counter uint64) {
	for i := range num {
		if load64(b, at(i))&0xff != 0 {
			entries = append(entries, i)
		}
		counter = max(counter, load64(b, at(i)+8))
	}
	slices.SortFunc(entries, func(x, y uint16) int { return cmp.Compare(load64(b, at(x)+8), load64(b, at(y)+8)) })
	return entries, counter
}

func (l *splitLog) at(i uint16) int { return logHead + logEntry*int(i) }

// noteTaken notes a request that is taken.
func (l *splitLog) noteTaken(head uint16) {
	l.counter++
	store64(l.b, l.at(head)+8, l.counter)
	store64(l.b, l.at(head), load64(l.b, l.at(head))&^0xff|logUnderWay)
}

// noteUsed notes a request that the guest is about to see used.
func (l *splitLog) noteUsed(head uint16) {
	h := load64(l.b, 8)
	store64(l.b, l.at(head), logUnderWay|(h>>32&0xffff)<<48)
	store64(l.b, 8, h&^(0xffff<<32)|uint64(head)<<32)
}

// noteSeen notes that the guest sees requests used.
func (l *splitLog) noteSeen(heads []uint16, used uint16) {
	for _, head := range heads {
		store64(l.b, l.at(head), load64(l.b, l.at(head))&^0xff)
	}
	store64(l.b, 8, load64(l.b, 8)&^(0xffff<<logUsedShift)|uint64(used)<<logUsedShift)
}
