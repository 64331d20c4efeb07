//go:build !weakened

package rnbd

import (
	"context"
	"math"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// The checks of docs/security.md, one function each. weakened.go has the same with
// switches.

// FreshDevice: newIDLocked returns a device id that was never used before, so that late
// I/O of a closed disk finds no device, and whose slot at the server is free; 0 if there
// is none.
func (c *Client) newIDLocked() uint32 {
	for range maxDevices {
		c.lastID = c.lastID%maxDeviceID + 1
		if !slices.ContainsFunc(c.disks, func(d *Disk) bool { return d.id%maxDevices == c.lastID%maxDevices }) {
			return c.lastID
		}
	}
	return 0
}

// DetachedDisk: a disk that was closed stays closed, and its parked I/O is dropped.
func (d *Disk) isDetached() bool { return d.closing.Load() }
func (d *Disk) dropsParked(p *rtrs.Permit) bool {
	u, _ := p.User.(*diskUser)
	return u != nil && u.Disk == d
}

// CloseWaits: a disk is closed only after its I/O has ended at the server.
func mustWaitFor(n int64) bool { return n > 0 }

// ExportPartition: an export exists in sessions of its partition alone.
func isElsewhere(export, session string) bool { return export != session }

// LateOpen: a device opened by an OPEN that nobody waits for any more is closed, and one whose
// answer was lost, if the next is refused.
func mayOpenLate(ctx context.Context, lost bool) bool { return ctx.Err() != nil || lost }

// PostingOrder, Succession: beginWrite reports whether a write may be sent now. If not, a
// later call of endWrite returns it.
func (w *writeOrder) beginWrite(io *diskIO) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beginWriteLocked(io)
}

// Settled: a write is not sent while an earlier one to its bytes that failed without an answer
// may still be executed.
func mustSettle(errno syscall.Errno) bool { return errno != 0 }

// DiskIdentity: an attached disk does not continue as another one.
func (c *Claim) isOfAnother(i *block.Identity) bool { return !c.Disk.IsZero() && c.Disk != i.Disk }

// StoreLife: nor after a flush that does not cover what the storage may have lost.
func (u *unflushed) needSameVerifier() bool { return u.any() }

// InDoubt: a write that may have been carried out is not sent again where others write.
func (d *Disk) hasOtherWriters() bool { return d.shared.Load() }

// OneWriter: mostOtherWritersLocked returns how many other writers a new one may find: none unless
// the export is shared, or its user migrates.
func (e *export) mostOtherWritersLocked(d *device) int {
	switch {
	case e.cfg.Writers == SharedWriters:
		return math.MaxInt
	case e.cfg.Writers == MigrationWriters && d.migrates && !e.hasWriterOfLocked(d.sess):
		return 1
	}
	return 0
}

// WriterReservation: a writer that has no token any more, as another was let in instead since
// or it was fenced, does not continue.
func (d *device) hasLostReservation(was *Reservation) bool {
	return !d.readOnly && indexOf(was.Writers, d.attachment) < 0
}

// Fence: nor does one that was fenced while its session goes on.
func (d *device) isFenced() bool { return d.fenced.Load() }

// ReadyFirst: I/O of a disk waits while its export is not open yet.
func (d *Disk) mayWaitLocked(err error) bool { return d.opened && isTemporary(err) }
