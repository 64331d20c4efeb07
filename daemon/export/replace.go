package export

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/rnbd"
)

// isReplaced reports whether the file or device at an export's path is another one than the
// open one.
func (e *export) isReplaced(path string) bool {
	store := e.openStore()
	if store == nil {
		return false
	}
	info, err := e.stat(path)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && !store.IsFile(&unix.Stat_t{Dev: st.Dev, Ino: st.Ino, Mode: st.Mode, Rdev: st.Rdev})
}

// replacedExports is the exports that next leaves unchanged, and whose file is another one now.
func (r *Exporter) replacedExports(next *config.Config) map[*export]bool {
	same := slices.DeleteFunc(r.list(), func(e *export) bool {
		c := r.declared(e)
		n, ok := next.Export(c.Name)
		return !ok || !n.Equal(c)
	})
	var mu sync.Mutex
	found := map[*export]bool{}
	forEachConcurrently(same, func(e *export) {
		if e.isReplaced(r.declared(e).Path) {
			mu.Lock()
			found[e] = true
			mu.Unlock()
		}
	})
	return found
}

// reopen closes an export's storage and opens that of declaration n. Disks that peers have
// attached wait meanwhile, and the peers open them again. If it is another disk, or one that
// has lost writes, that fails, and with it all of their I/O.
func (r *Exporter) reopen(e *export, n config.Export, repair bool) {
	next := r.add(n, repair)
	r.closeStorage(e, func(name string) (func() error, error) { return r.server.BeginReplace(name, waitsForOpening) })
	r.open(next)
}

// Retry opens storage again that could not be opened, and offers what has grown with its new
// size.
func (r *Exporter) Retry() {
	for _, e := range r.list() {
		r.open(e)
		r.offerGrowth(e)
	}
}

// offerGrowth offers an export with the size that its file or device has by now, if that has grown.
// Peers that have it attached see it grow.
func (r *Exporter) offerGrowth(e *export) {
	c, store := r.declared(e), e.openStore()
	if store == nil {
		return
	}
	if _, err := e.stat(c.Path); err != nil || e.isReplaced(c.Path) {
		return // it hangs, or another file is there now
	}
	grown, err := store.Grow()
	if err == nil && grown {
		r.cfg.Resized(c.Name)
		err = r.server.Grown(c.Name)
	}
	if err != nil && !errors.Is(err, unix.EBADF) && !errors.Is(err, rnbd.ErrNotFound) {
		r.log.Warn("it is not known whether an export has grown", "export", c.Name, "error", err)
	}
}

// Repair begins to offer an export again, whose storage has lost acknowledged writes and was
// repaired by its administrator; see AwaitRepair. Peers that have it attached have
// to attach it anew. It fails for an unknown export, for one that has lost nothing, and
// where its storage can't be opened.
func (r *Exporter) Repair(name string) error {
	e := r.find(name)
	if e == nil {
		return errUnknown(name)
	}
	store := e.openStore()
	if store == nil {
		return e.notRepaired(name)
	}
	if store.Fault() == "" {
		return &api.Error{Code: api.CodeInvalid, Message: fmt.Sprintf("export %s has lost no acknowledged writes: there is nothing to repair", name)}
	}
	r.log.Warn("an export is offered again after it lost acknowledged writes", "export", name, "fault", store.Fault())
	r.reopen(e, r.declared(e), true)
	return nil
}

// Open opens the storage of an export that is not offered. It waits, and fails, as AwaitRepair
// does.
func (r *Exporter) Open(name string) error {
	e := r.find(name)
	if e == nil {
		return errUnknown(name)
	}
	r.open(e)
	return r.AwaitRepair(name)
}

// AwaitRepair waits as AwaitOpening does, for OfferTime. If the export is not offered then, it fails
// with an *api.Error that has the reason.
func (r *Exporter) AwaitRepair(name string) error {
	r.AwaitOpening(name, OfferTime)
	if e := r.find(name); e == nil {
		return errUnknown(name)
	} else if e.openStore() == nil {
		return e.notRepaired(name)
	}
	return nil
}

func errUnknown(name string) error {
	return &api.Error{Code: api.CodeNotFound, Message: fmt.Sprintf("there is no export %s", name), Fix: "`ironwarp export ls` lists them"}
}

// notRepaired is why an export that is not open cannot be repaired.
func (e *export) notRepaired(name string) *api.Error {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := api.Error{Code: api.CodeUnavailable, Message: "it was closed meanwhile", Fix: "try again"}
	if e.problem != nil {
		p = *e.problem
	}
	p.Message = fmt.Sprintf("export %s is not repaired: %s", name, p.Message)
	return &p
}

// lostWrites reports an export's storage that has lost writes, nil if it has not.
func lostWrites(name string, store *backing.Store) *api.Error {
	fault := store.Fault()
	if fault == "" {
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("export %s: its storage has lost acknowledged writes: %s. Flushes fail", name, fault),
		Fix: fmt.Sprintf("see to the storage (room, cables, the file system), then run `ironwarp export repair %s`; peers have to attach it anew and check their file system", name)}
}

// errorPolicyWarning warns of storage that goes on after errors, nil if it does not.
func errorPolicyWarning(name string, store *backing.Store) *api.Error {
	dev := store.GoesOnAfterErrors()
	if dev == "" {
		return nil
	}
	return &api.Error{Code: api.CodeUnavailable,
		Message: fmt.Sprintf("export %s: the file system on %s goes on after errors of its own (errors=continue), and may damage what was flushed before it is noticed", name, dev),
		Fix:     fmt.Sprintf("tune2fs -e remount-ro %s\nIt takes effect with the next mount; `mount -o remount,errors=remount-ro` does it at once.", dev)}
}
