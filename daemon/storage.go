package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// storageTime is how long storage may take to be opened, closed or looked at while
// others wait. The kernel does not return from a call to a disk or a file server that
// hangs, nor can such a call be interrupted.
const storageTime = 2 * time.Second

// flushTime is how long the end of the daemon may have taken when it stops waiting for
// the last flushes of exports. Disks spin up in some 10 s, and have a page cache to write.
// ironwarp.service gives 30 s for all of the end, of which streams may take 10 after that.
const flushTime = 20 * time.Second

var errHangs = fmt.Errorf("the storage has not answered for %v; it may hang", storageTime)

// asked is a question to storage, which may never be answered. It is asked in a
// goroutine of its own, once at a time; a later call takes the answer to an earlier
// question that was not waited for any more, and waits no longer for it.
type asked[T any] struct {
	mu      sync.Mutex
	pending chan T
}

func (a *asked[T]) ask(question func() T) (answer T, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending != nil {
		return a.wait(0)
	}
	a.pending = make(chan T, 1)
	go func(to chan T) { to <- question() }(a.pending)
	return a.wait(storageTime)
}

// wait takes the answer, which it gives so much time; nobody else asks meanwhile.
func (a *asked[T]) wait(most time.Duration) (answer T, err error) {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case answer = <-a.pending:
	default:
		select {
		case answer = <-a.pending:
		case <-t.C:
			return answer, errHangs
		}
	}
	a.pending = nil
	return answer, nil
}

// forget has an answer that comes yet dealt with.
func (a *asked[T]) forget(deal func(T)) {
	a.mu.Lock()
	pending := a.pending
	a.pending = nil
	a.mu.Unlock()
	if pending != nil {
		go func() { deal(<-pending) }()
	}
}

// opened is the answer of storage that was to be opened.
type opened struct {
	store *backing.Store
	err   error
}

func (o opened) discard() {
	if o.err == nil {
		o.store.Close()
	}
}

// open opens an export's storage. records is for those of its disk, and admit says
// whether it may be used.
func (e *export) open(records string, admit func(disk block.ID) error) (*backing.Store, error) {
	opt := backing.Options{ReadOnly: e.cfg.ReadOnly, Records: records, Repair: e.repair, Admit: admit}
	o, err := e.opening.ask(func() opened {
		store, err := backing.Open(e.cfg.Path, opt)
		return opened{store, err}
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", e.cfg.Path, err)
	}
	return o.store, o.err
}

// usable says why a file or device cannot be exported. That it is in use is no reason for
// one that the export has already, at the path was.
func usable(c config.Export, was string) error {
	e := &export{cfg: c}
	store, err := e.open("", nil)
	if err == nil {
		return store.Close()
	}
	e.opening.forget(opened.discard)
	if errors.Is(err, backing.ErrInUse) && sameFile(c.Path, was) {
		return nil
	}
	p := exportProblem(c.Name, err)
	if !errors.Is(err, errHangs) && !errors.Is(err, os.ErrNotExist) {
		p.Code = api.CodeInvalid
	}
	return p
}

func sameFile(a, b string) bool {
	sa, err := os.Stat(a)
	if err != nil {
		return false
	}
	sb, err := os.Stat(b)
	return err == nil && os.SameFile(sa, sb)
}

// stated is what a look at a file has found.
type stated struct {
	info fs.FileInfo
	err  error
}

// stat looks at the file of an export.
func (e *export) stat() (fs.FileInfo, error) {
	s, err := e.looking.ask(func() stated {
		info, err := os.Stat(e.cfg.Path)
		return stated{info, err}
	})
	if err != nil {
		return nil, err
	}
	return s.info, s.err
}

// closeExport stops offering an export, at once, by remove. Storage that hangs is closed
// in the background.
func (d *Daemon) closeExport(e *export, remove func(name string) error) {
	e.opening.forget(opened.discard)
	e.looking.forget(func(stated) {})
	e.mu.Lock()
	store := e.store
	e.store = nil
	e.mu.Unlock()
	if store == nil {
		_ = remove(e.cfg.Name) // it may be awaited
		return
	}
	var closing asked[error]
	err, hangs := closing.ask(func() error { return errors.Join(remove(e.cfg.Name), store.Close()) })
	if left := d.flushLeft(); hangs != nil && left > 0 {
		d.log.Warn("the daemon waits for the last flush of an export, whose storage is slow", "export", e.cfg.Name, "path", e.cfg.Path)
		err, hangs = closing.wait(left)
	}
	report := func(err error) {
		if err != nil {
			d.log.Warn("closing an export", "export", e.cfg.Name, "error", err)
		}
	}
	report(err)
	if hangs != nil {
		d.log.Error("an export is not offered any more, but what its peers have begun does not end: its storage hangs", "export", e.cfg.Name, "path", e.cfg.Path)
		closing.forget(report)
	}
}

// flushLeft is how long the end of the daemon waits for a last flush yet; 0 before its
// end, since what was begun goes on then.
func (d *Daemon) flushLeft() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		return 0
	}
	return time.Until(d.endBy)
}

// atOnce calls f of each of a list, all at the same time, since storage may keep each
// waiting.
func atOnce[T any](list []T, f func(T)) {
	var wg sync.WaitGroup
	for _, x := range list {
		wg.Go(func() { f(x) })
	}
	wg.Wait()
}
