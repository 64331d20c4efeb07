//go:build weakened

package rnbd

import (
	"context"
	"math"
	"slices"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/rtrs"
)

func (c *Client) newIDLocked() uint32 {
	if !checks.On(checks.FreshDevice) {
		c.lastID = 0
	}
	for range maxDevices {
		c.lastID = c.lastID%maxDeviceID + 1
		if !slices.ContainsFunc(c.disks, func(d *Disk) bool { return d.id%maxDevices == c.lastID%maxDevices }) {
			return c.lastID
		}
	}
	return 0
}

func (d *Disk) isDetached() bool { return d.closing.Load() && checks.On(checks.DetachedDisk) }
func (d *Disk) dropsParked(p *rtrs.Permit) bool {
	u, _ := p.User.(*diskUser)
	return u != nil && u.Disk == d && checks.On(checks.DetachedDisk)
}

func mustWaitFor(n int64) bool { return n > 0 && checks.On(checks.CloseWaits) }

func isElsewhere(export, session string) bool {
	return export != session && checks.On(checks.ExportPartition)
}

func mayOpenLate(ctx context.Context, lost bool) bool {
	return (ctx.Err() != nil || lost) && checks.On(checks.LateOpen)
}

func (w *writeOrder) beginWrite(io *diskIO) bool {
	if !checks.On(checks.PostingOrder) || !checks.On(checks.Succession) {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beginWriteLocked(io)
}

func mustSettle(errno syscall.Errno) bool { return errno != 0 && checks.On(checks.Settled) }

func (c *Claim) isOfAnother(i *block.Identity) bool {
	return !c.Disk.IsZero() && c.Disk != i.Disk && checks.On(checks.DiskIdentity)
}

func (u *unflushed) needSameVerifier() bool { return u.any() && checks.On(checks.StoreLife) }

func (d *Disk) hasOtherWriters() bool { return d.shared.Load() && checks.On(checks.InDoubt) }

func (e *export) mostOtherWritersLocked(d *device) int {
	switch {
	case e.cfg.Writers == SharedWriters || !checks.On(checks.OneWriter):
		return math.MaxInt
	case e.cfg.Writers == MigrationWriters && d.migrates && !e.hasWriterOfLocked(d.sess):
		return 1
	}
	return 0
}

// Another disk under the export's name has another reservation: if the disk's identity is
// not checked, the reservation must not reveal it either.
func (d *device) hasLostReservation(was *Reservation) bool {
	return !d.readOnly && indexOf(was.Writers, d.attachment) < 0 &&
		checks.On(checks.WriterReservation) && checks.On(checks.DiskIdentity)
}

func (d *device) isFenced() bool { return d.fenced.Load() && checks.On(checks.Fence) }

func (d *Disk) mayWaitLocked(err error) bool {
	return d.opened && isTemporary(err) && checks.On(checks.ReadyFirst)
}
