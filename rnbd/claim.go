package rnbd

import "github.com/ironwarp/ironwarp/block"

// Claim is what an attachment knows about its disk. A client that keeps it over a restart
// and opens the disk with it gets the same disk with all acknowledged writes, or an
// error.
type Claim struct {
	// Attachment identifies the writer: the server lets it take over from itself.
	Attachment block.ID `json:"attachment"`
	Disk       block.ID `json:"disk"` // zero for any
	// Life is the write verifier of the disk when it acknowledged writes which no flush has
	// covered, zero if there are none.
	Life block.ID `json:"life"`
	// Writer reports that the server made the attachment the disk's writer. The server
	// does not let it in again if another writer has preempted it since.
	Writer bool `json:"writer,omitempty"`
}

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
