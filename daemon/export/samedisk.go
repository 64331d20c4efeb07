package export

import (
	"errors"
	"fmt"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
)

var errSameDisk = errors.New("they are one disk")

// reserveDisk reserves a disk for an export. If either writes, no other export may use it: as a
// device by another of its paths, or as a copy of a file that nothing distinguishes from it.
func (r *Exporter) reserveDisk(e *export, disk block.ID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.exports {
		if o != e && o.disk == disk && !(o.cfg.ReadOnly && e.cfg.ReadOnly) {
			return fmt.Errorf("%s has the UUID %s as %s of export %s has: %w, or one is a copy that cannot be told from the other", e.cfg.Path, disk, o.cfg.Path, o.cfg.Name, errSameDisk)
		}
	}
	e.disk = disk
	return nil
}

func (r *Exporter) releaseDisk(e *export) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.disk = block.ID{}
}

// logRecord logs what an administrator should know of a disk's record.
func (r *Exporter) logRecord(export string, store *backing.Store) {
	if of := store.CopyOf(); !of.IsZero() {
		r.log.Info("the file is a copy of another disk, and is a disk of its own: peers that had that one attached by this name have to attach it anew",
			"export", export, "copy_of", of, "uuid", store.Identity().Disk)
	}
	switch why, keeps := store.NewLife(); {
	case why == "":
	case keeps:
		r.log.Info("the disk begins a new life, which has all writes of the last one: peers that have it attached go on", "export", export, "why", why)
	default:
		r.log.Warn("the disk begins a new life: peers that have it attached, with writes that were not flushed, have to attach it anew", "export", export, "why", why)
	}
	if err := store.Unkept(); err != nil {
		r.log.Warn("the record of a disk cannot be written: after the next start peers with writes that were not flushed have to attach it anew", "export", export, "error", err)
	}
}
