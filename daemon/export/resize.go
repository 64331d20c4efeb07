package export

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rnbd"
)

// Resize gives an export's file another size, durably, or takes over that of its device. Peers
// that have it attached see it grow. It is made smaller only if the request says so, and while
// nobody has it attached, since what is cut off is lost. It fails with an *api.Error, as soon
// as the storage is known to hang.
func (r *Exporter) Resize(name string, q api.ResizeRequest) error {
	e := r.find(name)
	if e == nil {
		return errUnknown(name)
	}
	store := e.openStore()
	if store == nil {
		p := e.notRepaired(name)
		p.Message = fmt.Sprintf("export %s is not resized: its storage is not open", name)
		return p
	}
	was := store.Size()
	if q.Size < was && r.declared(e).LUN {
		return &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("export %s is a LUN, and not made smaller", name), Fix: "take it out of its target first: `ironwarp target lun rm`"}
	}
	if q.Size <= 0 || q.Size%512 != 0 {
		return notResized(name, backing.ErrPartSector)
	}
	if q.Size < was && !q.Shrink {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export %s has %s, and what is behind %s would be lost", name, config.FormatSize(was), config.FormatSize(q.Size)),
			Fix: "add --shrink if that is meant"}
	}
	resized, hangs := e.resizeCall.do(func() error { return r.resize(name, store, q.Size) }, r.cfg.Closing)
	if hangs != nil {
		return &api.Error{Code: api.CodeTimeout, Message: fmt.Sprintf("export %s is not known to be resized: %v", name, hangs), Fix: "see to the storage; `ironwarp export ls` shows the size"}
	}
	if resized != nil {
		return notResized(name, resized)
	}
	if now := store.Size(); now != q.Size {
		return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s has %d bytes now: another request has just resized it", name, now), Fix: "run the command again"}
	}
	r.log.Info("an export was resized", "export", name, "from", was, "bytes", q.Size)
	return nil
}

func (r *Exporter) resize(name string, store *backing.Store, size int64) error {
	if size < store.Size() {
		if err := r.server.Shrink(name, uint64(size)); err != nil {
			return err
		}
	}
	err := store.Resize(size)
	r.cfg.Resized(name)
	return errors.Join(err, r.server.Grown(name)) // which undoes Shrink where the file has kept its size
}

func notResized(name string, err error) *api.Error {
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s is not resized: %v", name, err)}
	switch {
	case errors.Is(err, rnbd.ErrInUse):
		e.Code, e.Message = api.CodeInUse, fmt.Sprintf("export %s is not made smaller while peers have it attached", name)
		e.Fix = "detach it there first"
	case errors.Is(err, backing.ErrDeviceSize):
		e.Code, e.Fix = api.CodeInvalid, "resize the device itself (lvextend, for one): the export follows when it grows; to make it smaller remove the export, and add it again"
	case errors.Is(err, backing.ErrPartSector), errors.Is(err, unix.EFBIG), errors.Is(err, unix.EINVAL):
		e.Code, e.Fix = api.CodeInvalid, "a size is a multiple of 512 bytes, and at most what the file system can have in one file"
	case errors.Is(err, backing.ErrReadOnly), errors.Is(err, fs.ErrPermission):
		e.Code, e.Fix = api.CodeForbidden, "an export that is read-only keeps its size"
	}
	return e
}
