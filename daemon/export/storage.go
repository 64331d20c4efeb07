package export

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
)

// storageTime is how long storage may take to be opened, closed or looked at while
// others wait. The kernel does not return from a call to a disk or a file server that
// hangs, nor can such a call be interrupted.
const storageTime = 2 * time.Second

// OfferTime is how long storage may take to be opened for somebody who offers it, and for
// which only that caller waits: disks spin up in some 10 s, and a busy machine is no reason
// to refuse one.
const OfferTime = 20 * time.Second

// FlushTime is how long the end of the host may have taken when it stops waiting for
// the last flushes of exports. Disks spin up in some 10 s, and have a page cache to write.
// ironwarp.service gives 30 s for all of the end, of which streams may take 10 after that.
const FlushTime = 20 * time.Second

var errHangs = errors.New("it may hang")

func errHanging(after time.Duration) error {
	return fmt.Errorf("the storage has not answered for %v; %w", after, errHangs)
}

// storageCall makes calls into storage, which may never return, in a goroutine of its own, one at a time.
// While an earlier call has not returned, do takes its result if that is there by now, and does not wait.
type storageCall[T any] struct {
	mu      sync.Mutex // guards the fields below it
	pending chan T
}

func (a *storageCall[T]) do(call func() T, most time.Duration) (answer T, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pending != nil {
		return a.waitLocked(0)
	}
	a.pending = make(chan T, 1)
	go func(to chan T) { to <- call() }(a.pending)
	return a.waitLocked(most)
}

// waitLocked returns the call's result, for which it waits at most that long.
func (a *storageCall[T]) waitLocked(most time.Duration) (answer T, err error) {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case answer = <-a.pending:
	default:
		select {
		case answer = <-a.pending:
		case <-t.C:
			return answer, errHanging(max(most, storageTime))
		}
	}
	a.pending = nil
	return answer, nil
}

// abandon passes the result of a call that has not returned to handle, once it has.
func (a *storageCall[T]) abandon(handle func(T)) {
	a.mu.Lock()
	pending := a.pending
	a.pending = nil
	a.mu.Unlock()
	if pending != nil {
		go func() { handle(<-pending) }()
	}
}

// CheckStorage fails with an *api.Error if a file or device cannot be exported. It may be in use if it is
// the one that the export has already, at the path was. It gives up on storage that takes longer than
// most to be opened.
func CheckStorage(c config.Export, was string, most time.Duration) error {
	type opened struct {
		store *backing.Store
		err   error
	}
	var opening storageCall[opened]
	o, err := opening.do(func() opened {
		store, err := backing.Open(c.Path, backing.Options{ReadOnly: c.ReadOnly})
		return opened{store, err}
	}, most)
	if err != nil {
		opening.abandon(func(o opened) {
			if o.err == nil {
				o.store.Close()
			}
		})
		return problemOf(c.Name, fmt.Errorf("open %s: %w", c.Path, err))
	}
	if o.err == nil {
		return o.store.Close()
	}
	if errors.Is(o.err, backing.ErrInUse) && sameFile(c.Path, was) {
		return nil
	}
	p := problemOf(c.Name, o.err)
	if !errors.Is(o.err, os.ErrNotExist) {
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

// statResult is the result of os.Stat.
type statResult struct {
	info fs.FileInfo
	err  error
}

// stat looks at the file of an export.
func (e *export) stat(path string) (fs.FileInfo, error) {
	s, err := e.statCall.do(func() statResult {
		info, err := os.Stat(path)
		return statResult{info, err}
	}, storageTime)
	if err != nil {
		return nil, err
	}
	return s.info, s.err
}

// closeStorage stops offering an export, at once, by remove. Its storage is closed in the
// background, since that may be slow, or hang; see AwaitStorage.
func (r *Exporter) closeStorage(e *export, remove func(name string) (end func() error, err error)) {
	c := r.declared(e)
	e.statCall.abandon(func(statResult) {})
	e.resizeCall.abandon(func(error) {})
	e.mu.Lock()
	store, opening := e.store, e.opening
	e.store, e.gate, e.opening, e.gone = nil, nil, nil, true
	e.mu.Unlock()
	if opening != nil {
		r.giveUp(opening)
	}
	end, err := remove(c.Name) // which may be awaited only
	if store == nil {
		return
	}
	returned := r.cfg.LUNClosing(c.Name)
	r.closeInBackground(func() {
		r.finishClosing(c, func() error {
			returned()
			return errors.Join(err, end(), store.Close())
		})
	})
}

// giveUp has what is being opened closed as soon as it is open, unless it is known to hang.
func (r *Exporter) giveUp(o *opening) {
	select {
	case <-o.known:
		return
	default:
	}
	o.answered()
	r.closeInBackground(func() {
		t := time.NewTimer(r.cfg.Closing)
		defer t.Stop()
		select {
		case <-o.over:
		case <-t.C:
		}
	})
}

// closeInBackground has storage closed by end, which returns when that is done or is known to hang.
func (r *Exporter) closeInBackground(end func()) {
	known := make(chan struct{})
	r.mu.Lock()
	r.closing[known] = struct{}{}
	r.mu.Unlock()
	go func() {
		end()
		r.mu.Lock()
		delete(r.closing, known)
		r.mu.Unlock()
		close(known)
	}()
}

// finishClosing closes storage, and gives up waiting for that as soon as it is known to hang.
func (r *Exporter) finishClosing(c config.Export, end func() error) {
	var closing storageCall[error]
	err, hangs := closing.do(end, r.cfg.Closing)
	if left := r.flushTimeLeft(); hangs != nil && left > 0 {
		r.log.Warn("the daemon waits for the last flush of an export, whose storage is slow", "export", c.Name, "path", c.Path)
		err, hangs = closing.waitLocked(left)
	}
	report := func(err error) {
		if err != nil {
			r.log.Warn("closing an export", "export", c.Name, "error", err)
		}
	}
	report(err)
	if hangs != nil {
		r.log.Error("an export is not offered any more, but what its peers have begun does not end: its storage hangs", "export", c.Name, "path", c.Path)
		closing.abandon(report)
	}
}

// closingStorage has, for all storage that is being closed, a channel that is closed when the
// storage is, or is known to hang.
func (r *Exporter) closingStorage() []chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.closing))
}

func awaitAll(known []chan struct{}) {
	for _, k := range known {
		<-k
	}
}

// flushTimeLeft is how long the end of the host still waits for a last flush; 0 before its end,
// when a flush may go on.
func (r *Exporter) flushTimeLeft() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.flushDeadline.IsZero() {
		return 0
	}
	return time.Until(r.flushDeadline)
}

// forEachConcurrently calls f with each item of a list, all at the same time, since storage may keep each
// call waiting.
func forEachConcurrently[T any](list []T, f func(T)) {
	var wg sync.WaitGroup
	for _, x := range list {
		wg.Go(func() { f(x) })
	}
	wg.Wait()
}
