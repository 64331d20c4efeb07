package daemon

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
)

var errSameDisk = errors.New("they are one disk")

// takeDisk has an export use a disk, which no other may use if one of them writes: a
// device by another of its paths, or a copy of a file that nothing tells from it.
func (d *Daemon) takeDisk(e *export, disk block.ID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.exports {
		if o != e && o.disk == disk && !(o.cfg.ReadOnly && e.cfg.ReadOnly) {
			return fmt.Errorf("%s has the UUID %s as %s of export %s has: %w, or one is a copy that cannot be told from the other", e.cfg.Path, disk, o.cfg.Path, o.cfg.Name, errSameDisk)
		}
	}
	e.disk = disk
	return nil
}

func (d *Daemon) leaveDisk(e *export) {
	d.mu.Lock()
	defer d.mu.Unlock()
	e.disk = block.ID{}
}

// logRecord logs what an administrator may wonder about in a disk's record.
func (d *Daemon) logRecord(export string, store *backing.Store) {
	if of := store.CopyOf(); !of.IsZero() {
		d.log.Info("the file is a copy of another disk, and is a disk of its own: peers that had that one attached by this name have to attach it anew",
			"export", export, "copy_of", of, "uuid", store.Identity().Disk)
	}
	if err := store.Unkept(); err != nil {
		d.log.Warn("the record of a disk cannot be written: after the next start peers with writes that were not flushed have to attach it anew", "export", export, "error", err)
	}
}
