// Package export offers storage of this host to its peers: the files and devices that the
// configuration declares. Storage is opened in the background, since it may be slow, or
// hang: meanwhile peers that have an export attached wait, all others get the answer that it is
// being opened, and the configuration may change.
package export

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/block/backing"
	"github.com/ironwarp/ironwarp/block/gate"
	"github.com/ironwarp/ironwarp/daemon/api"
	"github.com/ironwarp/ironwarp/daemon/config"
	"github.com/ironwarp/ironwarp/daemon/meter"
	"github.com/ironwarp/ironwarp/rnbd"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Config is what exports need from the rest of the host. The functions may be called at
// any time from New on.
type Config struct {
	Log      *slog.Logger
	StateDir string // where writers, and the records of disks, are recorded
	// Identities are those of the peers that an export allows, none if the label of who serves it keeps it from its
	// partition, and Trust is how much the
	// sessions that open it may be trusted, by the present configuration.
	Identities func(config.Export) []transport.Identity
	Trust      func(config.Export) verbs.TrustModel
	// NameOf is the name of the peer that has an identity, "" if none has.
	NameOf func(transport.Identity) string
	// EndStreams ends the streams of a peer that an export does not allow any more.
	EndStreams func(id transport.Identity, why error)
	// Closing is how long storage may take to be closed before it is known to hang; 0 is 2 s.
	Closing time.Duration
	// Offered is called when an export begins to be offered: sessions may be trusted less from then on.
	Offered func()
	// LUNOpened is called when the storage of an export that is a LUN is open, and LUNClosing before any
	// storage is closed: it returns a function that waits until no LUN uses the storage any more. nil:
	// there are no LUNs.
	LUNOpened  func(name string, storage block.Storage)
	LUNClosing func(name string) (end func())
	// Resized is called when an open export has another size. nil: nobody is told.
	Resized func(name string)
}

// Exporter has a host's exports. One goroutine at a time may call the methods that change
// them: Apply, Retry, Repair and Close.
type Exporter struct {
	cfg    Config
	log    *slog.Logger
	server *rnbd.Server

	mu            sync.Mutex // guards the fields below it; taken after an export's
	exports       map[string]*export
	closing       map[chan struct{}]struct{} // storage that is being closed, see closingStorage
	flushDeadline time.Time                  // when the host is ending: how long the last flushes are waited for
}

// export is a declared export and the storage below it.
//
//	opening --> offered
//	   |  \----> failed --Retry--> opening
//	   \-> late --> offered, or failed
type export struct {
	cfg   config.Export // path and mode stay; guarded by Exporter.mu
	disk  block.ID      // that it has, or is about to have; guarded by Exporter.mu
	meter meter.Meter

	mu      sync.Mutex     // guards the fields below it
	repair  bool           // the next opening begins a new life of a disk that has lost writes
	store   *backing.Store // nil while it is not open
	gate    *gate.Storage  // before the store, which limits its I/O; nil while it is not open
	opening *opening       // nil while it is not being opened
	problem *api.Error
	reason  string // it is not offered, as peers see it
	gone    bool   // it is not to be offered any more

	statCall   storageCall[statResult]
	resizeCall storageCall[error]
}

// opening is an attempt to open an export's storage.
type opening struct {
	answered func()        // closes known
	known    chan struct{} // closed when it is over, or late
	over     chan struct{} // closed when the storage is open, or cannot be opened
}

// New returns an Exporter without exports, whose disks have the writers that an earlier one
// has recorded.
func New(cfg Config) *Exporter {
	cfg.Closing = cmp.Or(cfg.Closing, storageTime)
	if cfg.Resized == nil {
		cfg.Resized = func(string) {}
	}
	if cfg.LUNOpened == nil {
		cfg.LUNOpened, cfg.LUNClosing = func(string, block.Storage) {}, func(string) func() { return func() {} }
	}
	r := &Exporter{cfg: cfg, log: cfg.Log, exports: map[string]*export{}, closing: map[chan struct{}]struct{}{}}
	r.server = rnbd.NewServer(rnbd.ServerConfig{Logger: r.log, Reservations: r.loadReservations(), StoreReservations: r.storeReservations, NameOf: cfg.NameOf})
	return r
}

// Server serves the sessions of peers.
func (r *Exporter) Server() *rnbd.Server { return r.server }

// RecordsDir is the directory for the records of disks that cannot keep them themselves.
func RecordsDir(stateDir string) string { return filepath.Join(stateDir, "disks") }

// Apply makes the exports those of the configuration, and returns what it did. It does not
// wait until storage is open or closed; see AwaitStorage.
func (r *Exporter) Apply(next *config.Config) (changed []string) {
	replaced := r.replacedExports(next)
	for _, e := range r.list() {
		c := r.declared(e)
		n, ok := next.Export(c.Name)
		switch {
		case !ok:
			r.removeExport(e)
			changed = append(changed, fmt.Sprintf("export %s removed", c.Name))
		case !n.Equal(c):
			r.changeExport(e, n)
			changed = append(changed, fmt.Sprintf("export %s changed", n.Name))
		case replaced[e]:
			r.reopen(e, c, false)
			changed = append(changed, fmt.Sprintf("export %s: another file stands at %s, and is offered from now on; what peers have attached of the one before fails", n.Name, n.Path))
		}
	}
	for _, e := range r.list() {
		r.offerGrowth(e)
	}
	for _, c := range next.Exports {
		if r.find(c.Name) == nil {
			r.open(r.add(c, false))
			changed = append(changed, fmt.Sprintf("export %s added", c.Name))
		}
	}
	return changed
}

// add makes an export, under its name.
func (r *Exporter) add(c config.Export, repair bool) *export {
	e := &export{cfg: c, repair: repair}
	r.mu.Lock()
	r.exports[c.Name] = e
	r.mu.Unlock()
	return e
}

var writersOf = map[config.Writers]rnbd.Writers{
	config.OneWriter: rnbd.OneWriter, config.MigrationWriters: rnbd.MigrationWriters, config.SharedWriters: rnbd.SharedWriters,
}

// waitsForOpening is why an export without a known fault waits.
const waitsForOpening = "it is being opened"

// open begins to open the storage, which is then offered. A failure becomes the export's problem; Retry
// tries again.
func (r *Exporter) open(e *export) {
	c := r.declared(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.store != nil || e.opening != nil || e.gone {
		return
	}
	if e.problem == nil {
		// Whoever has it attached waits meanwhile.
		e.reason = waitsForOpening
		r.server.Await(c.Name, c.Partition, r.cfg.Identities(c), e.reason)
	}
	o := &opening{known: make(chan struct{}), over: make(chan struct{})}
	o.answered = sync.OnceFunc(func() { close(o.known) })
	e.opening = o
	opt := backing.Options{ReadOnly: c.ReadOnly, NoFollow: c.Volume && c.InDirectory, Records: RecordsDir(r.cfg.StateDir), Repair: e.repair, Admit: func(disk block.ID) error { return r.reserveDisk(e, disk) }}
	e.repair = false // a failure has to be repaired anew
	late := time.AfterFunc(storageTime, func() { r.noteLate(e, o) })
	before := r.closingStorage()
	go func() {
		store, err := backing.Open(c.Path, opt)
		if errors.Is(err, backing.ErrInUse) && len(before) > 0 {
			// One of those may be the same storage.
			awaitAll(before)
			late.Reset(storageTime)
			store, err = backing.Open(c.Path, opt)
		}
		late.Stop()
		r.finishOpening(e, o, store, err)
	}()
}

// noteLate records that the storage may hang.
func (r *Exporter) noteLate(e *export, o *opening) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.opening == o {
		c := r.declared(e)
		e.failedLocked(r, c, fmt.Errorf("open %s: %w", c.Path, errHanging(storageTime)))
	}
	o.answered()
}

// finishOpening offers the storage, or records why it could not be opened.
func (r *Exporter) finishOpening(e *export, o *opening, store *backing.Store, err error) {
	defer close(o.over)
	defer o.answered()
	switch {
	case r.offer(e, o, store, err):
		r.cfg.Offered()
	case err == nil:
		store.Close()
	}
}

// offer offers the storage, and reports whether it is the export's from now on.
func (r *Exporter) offer(e *export, o *opening, store *backing.Store, err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.opening != o {
		return false
	}
	e.opening = nil
	c := r.declared(e)
	var g *gate.Storage
	if err == nil {
		g = gate.New(store, c.Volume)
		g.SetLimits(c.QoS)
		err = r.server.AddExport(rnbd.Export{Name: c.Name, Storage: g, ReadOnly: c.ReadOnly || c.LUN, Allow: r.cfg.Identities(c), Readers: r.readers(c),
			Writers: writersOf[c.Writers], Trust: r.cfg.Trust(c), Partition: c.Partition})
	}
	if err != nil {
		r.releaseDisk(e)
		e.failedLocked(r, c, err)
		return false
	}
	e.store, e.gate, e.problem, e.reason = store, g, nil, ""
	r.log.Info("export is offered", "export", c.Name, "path", c.Path, "bytes", store.Size(), "read_only", c.ReadOnly, "allowed", c.Allow)
	if c.LUN {
		r.cfg.LUNOpened(c.Name, g)
	}
	r.logRecord(c.Name, store)
	if w := errorPolicyWarning(c.Name, store); w != nil {
		r.log.Warn(w.Message, "fix", w.Fix)
	}
	return true
}

// failedLocked records why an export cannot be offered now. Peers that have it attached wait.
func (e *export) failedLocked(r *Exporter, c config.Export, err error) {
	before := e.problem
	e.problem, e.reason = problemOf(c.Name, err), reasonForPeers(err)
	r.server.Await(c.Name, c.Partition, r.cfg.Identities(c), e.reason)
	if before == nil || before.Message != e.problem.Message {
		r.log.Warn("export cannot be offered", "export", c.Name, "error", e.problem)
	}
}

// AwaitStorage waits until it is known of each export whether it can be offered, since its storage
// was opened, cannot be opened, or is late; and until the storage of those that are no longer
// offered was closed, or hangs.
func (r *Exporter) AwaitStorage() {
	awaitAll(r.closingStorage())
	for _, e := range r.list() {
		if o := e.currentOpening(); o != nil {
			<-o.known
		}
	}
}

// AwaitOpening waits until the storage of an export was opened or could not be, for most at the
// longest.
func (r *Exporter) AwaitOpening(name string, most time.Duration) {
	e := r.find(name)
	if e == nil {
		return
	}
	if o := e.currentOpening(); o != nil {
		t := time.NewTimer(most)
		defer t.Stop()
		select {
		case <-o.over:
		case <-t.C:
		}
	}
}

func (e *export) currentOpening() *opening {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.opening
}

// openStore is the storage, nil while it is not open.
func (e *export) openStore() *backing.Store {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.store
}

// removeExport stops offering an export. I/O of sessions that have it open fails from then on.
func (r *Exporter) removeExport(e *export) {
	r.mu.Lock()
	delete(r.exports, e.cfg.Name)
	r.mu.Unlock()
	r.closeStorage(e, r.server.BeginRemove)
}

// SetFlushDeadline announces that the host is ending, and until when it waits for last flushes.
func (r *Exporter) SetFlushDeadline(t time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flushDeadline = t
}

// Close stops offering all exports. Peers that have them attached wait for the next
// Exporter.
func (r *Exporter) Close() {
	for _, e := range r.list() {
		r.closeStorage(e, func(name string) (func() error, error) { return r.server.BeginReplace(name, "the daemon is ending") })
	}
	awaitAll(r.closingStorage())
	// It has no exports left that could fail to close.
	_ = r.server.Close()
}

// changeExport applies a different declaration. Peers that may not attach it any more lose their
// streams, so that they cannot go on with what they have open.
func (r *Exporter) changeExport(e *export, n config.Export) {
	c := r.declared(e)
	if n.Path != c.Path || n.ReadOnly != c.ReadOnly || n.LUN != c.LUN || n.Partition != c.Partition {
		r.reopen(e, n, false)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r.mu.Lock()
	e.cfg = n
	r.mu.Unlock()
	if e.store == nil {
		return
	}
	e.gate.SetLimits(n.QoS)
	allow := r.cfg.Identities(n)
	// Who may only read is known before who may open it.
	if err := errors.Join(r.server.SetReaders(n.Name, r.readers(n)), r.server.SetAllow(n.Name, allow, false)); err != nil {
		r.log.Warn("cannot change who may attach an export", "export", n.Name, "error", err)
	}
	if err := r.server.SetWriters(n.Name, writersOf[n.Writers]); err != nil {
		r.log.Warn("cannot change how many may write to an export", "export", n.Name, "error", err)
	}
	if n.Volume {
		return // whoever disallows a peer fences it then, and ends what it still has open
	}
	for _, id := range r.cfg.Identities(c) {
		if !slices.Contains(allow, id) {
			r.cfg.EndStreams(id, fmt.Errorf("export %s is no longer allowed for this peer", n.Name))
		}
	}
}

// RefreshAllowed applies the identities of the peers that exports allow, and how much their sessions are
// trusted, both of which a change of the peers, or of a policy, may have changed. Who may open one no more loses its streams.
func (r *Exporter) RefreshAllowed() {
	for _, i := range r.server.Exports() {
		e := r.find(i.Name)
		if e == nil {
			continue
		}
		allow := r.cfg.Identities(r.declared(e))
		for _, o := range i.Openers {
			if !slices.Contains(allow, o.Peer) {
				r.cfg.EndStreams(o.Peer, fmt.Errorf("export %s is no longer allowed for this peer", i.Name))
			}
		}
	}
	for _, e := range r.list() {
		if err := r.applyAllowed(e, r.declared(e)); err != nil {
			r.log.Warn("cannot change who may attach an export", "export", r.declared(e).Name, "error", err)
		}
	}
}

func (r *Exporter) applyAllowed(e *export, c config.Export) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	allow := r.cfg.Identities(c)
	if e.store == nil {
		r.server.Await(c.Name, c.Partition, allow, e.reason)
		return nil
	}
	return errors.Join(r.server.SetReaders(c.Name, r.readers(c)), r.server.SetAllow(c.Name, allow, false), r.server.SetTrust(c.Name, r.cfg.Trust(c)))
}

// readers are the identities that an export lets read only.
func (r *Exporter) readers(c config.Export) []transport.Identity {
	if len(c.Readers) == 0 {
		return nil
	}
	c.Allow = c.Readers
	return r.cfg.Identities(c)
}

func (r *Exporter) list() []*export {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.SortedFunc(maps.Values(r.exports), func(a, b *export) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) })
}

// find is the export of a name, nil if there is none.
func (r *Exporter) find(name string) *export {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.exports[name]
}

// declared is an export's declaration.
func (r *Exporter) declared(e *export) config.Export {
	r.mu.Lock()
	defer r.mu.Unlock()
	return e.cfg
}
