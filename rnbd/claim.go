package rnbd

import (
	"sync/atomic"

	"github.com/ironwarp/ironwarp/block"
)

// Claim is what an attachment knows of its disk. Who keeps it over a restart, and
// opens the disk with it, gets that very disk with all writes that were acknowledged,
// or an error.
type Claim struct {
	// Attachment is who writes: the server lets it take over from itself.
	Attachment block.ID `json:"attachment"`
	Disk       block.ID `json:"disk"` // zero: any
	// Life is the life of the disk that acknowledged writes which no flush has
	// covered; zero: there are none.
	Life block.ID `json:"life"`
	// Writer tells that the server made the attachment the disk's writer: it lets nobody
	// in again whose place another has had since.
	Writer bool `json:"writer,omitempty"`
}

// unflushed counts the writes, or parts of one, that the server has acknowledged, and
// those of them that a flush has covered.
type unflushed struct{ acked, flushed atomic.Uint64 }

// cover notes that a flush was successful which began when n writes were acknowledged.
func (u *unflushed) cover(n uint64) {
	for {
		have := u.flushed.Load()
		if have >= n || u.flushed.CompareAndSwap(have, n) {
			return
		}
	}
}

func (u *unflushed) any() bool { return u.acked.Load() != u.flushed.Load() }

// Claim returns what to open the disk with after a restart. Its Life is zero if all
// acknowledged writes have been flushed.
func (d *Disk) Claim() Claim {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.claimLocked()
}

func (d *Disk) claimLocked() Claim {
	c := d.claim
	if !d.writes.any() {
		c.Life = block.ID{}
	}
	return c
}

// compare judges what the server says of the disk against what is known of it. asked
// is the claim that it answered.
func (d *Disk) compare(asked Claim, rsp *openRsp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.claim.isOfAnother(&rsp.Identity):
		return ErrOtherDisk
	case !d.writes.needLife():
	case d.claim.Life == rsp.Identity.Life:
	case d.claim.Life == asked.Life && rsp.Flags&flagKept != 0:
	default:
		return ErrWritesLost
	}
	return nil
}
