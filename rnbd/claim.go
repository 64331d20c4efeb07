package rnbd

import (
	"sync/atomic"

	"github.com/ironwarp/ironwarp/block"
)

// Claim is what an attachment knows about its disk. A client that keeps it over a restart
// and opens the disk with it gets the same disk with all acknowledged writes, or an
// error.
type Claim struct {
	// Attachment identifies the writer: the server lets it take over from itself.
	Attachment block.ID `json:"attachment"`
	Disk       block.ID `json:"disk"` // zero for any
	// Life is the life of the disk that acknowledged writes which no flush has covered,
	// zero if there are none.
	Life block.ID `json:"life"`
	// Writer reports that the server made the attachment the disk's writer. The server
	// does not let it in again if another writer has had the place since.
	Writer bool `json:"writer,omitempty"`
}

// unflushed counts the writes (or parts of one) that the server has acknowledged, and
// those of them that a flush has covered.
type unflushed struct{ acked, flushed atomic.Uint64 }

// cover records a successful flush that began when n writes were acknowledged.
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

// compare checks the server's answer about the disk against what is known of it. asked is
// the claim that the server answered.
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
