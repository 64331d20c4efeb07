package daemon

import (
	"context"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// exchanged reports whether another file or device stands at an export's path than the
// one that is open.
func (e *export) exchanged() bool {
	e.mu.Lock()
	store := e.store
	e.mu.Unlock()
	if store == nil {
		return false
	}
	info, err := e.stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && !store.IsFile(&unix.Stat_t{Dev: st.Dev, Ino: st.Ino, Mode: st.Mode, Rdev: st.Rdev})
}

// reopenExport closes an export's storage and opens what the declaration n names. Disks
// that peers have attached wait meanwhile, and are opened again by them: which fails, and
// with it all of their I/O, if it is another disk, or one that has lost writes.
func (d *Daemon) reopenExport(e *export, n config.Export, repair bool) *export {
	next := &export{cfg: n, repair: repair}
	d.mu.Lock()
	d.exports[n.Name] = next
	d.mu.Unlock()
	d.closeExport(e, func(name string) error { return d.exporter.ReplaceExport(name, beingOpened) })
	d.openExport(next)
	return next
}

// growExports offers files that have grown with their new size, where nobody has them
// attached. changing is held.
func (d *Daemon) growExports() {
	open := map[string]bool{}
	for _, i := range d.exporter.Exports() {
		open[i.Name] = len(i.Openers) > 0
	}
	for _, e := range d.exportList() {
		e.mu.Lock()
		store := e.store
		e.mu.Unlock()
		if store == nil || store.IsDevice() || open[e.cfg.Name] {
			continue
		}
		if st, err := e.stat(); err == nil && st.Size() > store.Size() && st.Size()%512 == 0 && !e.exchanged() {
			d.log.Info("an exported file has grown and is offered with its new size", "export", e.cfg.Name, "bytes", st.Size())
			d.reopenExport(e, e.cfg, false)
		}
	}
}

// RepairExport offers an export again whose storage has lost acknowledged writes, once
// its administrator has seen to the storage. Peers that have it attached have to attach
// it anew. It fails for an unknown export, for one that has lost nothing, and where its
// storage can't be opened.
func (d *Daemon) RepairExport(_ context.Context, name string) (api.Export, error) {
	d.changing.Lock()
	defer d.changing.Unlock()
	d.mu.Lock()
	e := d.exports[name]
	d.mu.Unlock()
	if e == nil {
		return api.Export{}, &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no export %s", name), Fix: "`ironwarp export ls` lists them"}
	}
	if !e.isReady() {
		d.openExport(e)
	}
	e.mu.Lock()
	store := e.store
	e.mu.Unlock()
	if store == nil {
		return api.Export{}, e.unrepaired()
	}
	if store.Fault() == "" {
		return api.Export{}, &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export %s has lost no acknowledged writes: there is nothing to repair", name)}
	}
	d.log.Warn("an export is offered again after it lost acknowledged writes", "export", name, "fault", store.Fault())
	e = d.reopenExport(e, e.cfg, true)
	e.repair = false // what has not been done now waits for another word
	if !e.isReady() {
		return api.Export{}, e.unrepaired()
	}
	return d.exportNamed(name)
}

// unrepaired says why an export that is not open cannot be repaired.
func (e *export) unrepaired() *api.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := *e.problem
	p.Message = fmt.Sprintf("export %s is not repaired: %s", e.cfg.Name, p.Message)
	return &p
}

// faulty says that an export's storage has lost writes, nil if it has not.
func faulty(name string, store *backing.Store) *api.Error {
	fault := store.Fault()
	if fault == "" {
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: its storage has lost acknowledged writes: %s. Flushes fail", name, fault),
		Fix: fmt.Sprintf("see to the storage (room, cables, the file system), then run `ironwarp export repair %s`; peers have to attach it anew and check their file system", name)}
}

// careless warns of storage that goes on after errors, nil if it does not.
func careless(name string, store *backing.Store) *api.Error {
	dev := store.GoesOnAfterErrors()
	if dev == "" {
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable,
		Message: fmt.Sprintf("export %s: the file system on %s goes on after errors of its own (errors=continue), and may damage what was flushed before it is noticed", name, dev),
		Fix:     fmt.Sprintf("tune2fs -e remount-ro %s\nIt takes effect with the next mount; `mount -o remount,errors=remount-ro` does it at once.", dev)}
}
