package rnbd

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// ServerConfig describes a server.
type ServerConfig struct {
	Logger *slog.Logger
	// WriterGrace is how long an export's writer whose session was lost keeps its reservation
	// against other hosts; 0 means DefaultWriterGrace.
	WriterGrace time.Duration
	// Reservations are those of an earlier server: each is kept for WriterGrace after its
	// export is added. StoreReservations is called with all of them whenever they have
	// changed, one call at a time. A writer is let in only after it has returned,
	// and not if it failed. Without it, a server believes every client that claims to
	// have been the writer before the server started.
	Reservations      []Reservation
	StoreReservations func([]Reservation) error
	// NameOf returns the name that a peer is configured by, "" if it has none. Without it
	// tokens have no names.
	NameOf func(transport.Identity) string

	version rtrs.Protocol // of another release, in tests; 0: Version
}

// Server has exports and serves the sessions of an rtrs.Server, whose
// ServerConfig.NewSession is its NewSession. All methods are safe for
// concurrent use.
type Server struct {
	log               *slog.Logger
	version           rtrs.Protocol // the newest that it speaks
	writerGrace       time.Duration
	sessions          atomic.Uint64 // sessions so far
	storeReservations func([]Reservation) error
	nameOf            func(transport.Identity) string

	saving sync.Mutex     // held while storeReservations is called
	saves  sync.WaitGroup // calls of saveReservations

	mu           sync.Mutex // guards the fields below it; taken after saving, before an export's
	closed       bool
	exports      map[string]*export
	waiting      map[string]pendingExport
	leaving      map[block.ID]int         // disks of exports that were taken out and may still be written, and how many those are
	reservations map[block.ID]Reservation // by disk
	// unwritten: reservations have changed since the last call of storeReservations.
	unwritten bool
}

// pendingExport is an export whose storage is not open yet.
type pendingExport struct {
	partition string
	allow     []transport.Identity
	all       bool
	why       notReady
}

// notReady is why an export cannot be opened yet.
type notReady string

func (w notReady) Error() string { return string(w) }

// NewServer returns a server without exports.
func NewServer(cfg ServerConfig) *Server {
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.WriterGrace = cmp.Or(cfg.WriterGrace, DefaultWriterGrace)
	s := &Server{log: cfg.Logger, version: cmp.Or(cfg.version, Version), writerGrace: cfg.WriterGrace, storeReservations: cfg.StoreReservations, nameOf: cfg.NameOf,
		exports: make(map[string]*export), waiting: make(map[string]pendingExport), leaving: make(map[block.ID]int), reservations: make(map[block.ID]Reservation)}
	for _, p := range cfg.Reservations {
		s.reservations[p.Disk] = p
	}
	return s
}

// AddExport adds an export. It fails with ErrExists if the name is taken, and with ErrEnding while writes of
// the disk go on that have begun before its export was taken out. Bytes beyond
// the last whole sector of the storage are not exported.
func (s *Server) AddExport(cfg Export) error {
	if err := CheckName(cfg.Name); err != nil {
		return err
	}
	if cfg.Storage == nil {
		return errors.New("rnbd: an export without storage")
	}
	size := cfg.Storage.Geometry().Size
	if size < SectorSize {
		return fmt.Errorf("rnbd: export %q: its storage has %d bytes, less than a sector of %d", cfg.Name, size, SectorSize)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return ErrClosed
	case s.exports[cfg.Name] != nil:
		return fmt.Errorf("%w: %q", ErrExists, cfg.Name)
	case s.leaving[cfg.Storage.Identity().Disk] > 0:
		return fmt.Errorf("%w: %q", ErrEnding, cfg.Name)
	}
	if tail := size % SectorSize; tail != 0 {
		s.log.Warn("the storage's last bytes are no whole sector and are not exported", "export", cfg.Name, "bytes", tail)
	}
	e := newExport(cfg)
	s.startGraceLocked(e)
	s.exports[cfg.Name] = e
	delete(s.waiting, cfg.Name)
	return nil
}

// Await announces an export whose storage cannot be opened yet: clients that may open it
// are told to wait, and why, until AddExport adds it, in the same partition, or RemoveExport withdraws it.
func (s *Server) Await(name, partition string, allow []transport.Identity, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[name] = pendingExport{partition: partition, allow: slices.Clone(allow), why: notReady(why)}
}

// RemoveExport removes an export. I/O of sessions that have it open fails from now on;
// I/O that has begun has ended when RemoveExport returns. It fails with ErrNotFound, and
// with the storage's error.
func (s *Server) RemoveExport(name string) error { return waitForEnd(s.BeginRemove(name)) }

// BeginRemove is RemoveExport in two steps, since storage may hang: end waits for the I/O
// that has begun. It fails with ErrNotFound, and end with the storage's error.
func (s *Server) BeginRemove(name string) (end func() error, err error) {
	e, err := s.takeOutExport(name, nil)
	if e == nil {
		return nothingToEnd, err
	}
	s.releaseWriters(e.disk, anyToken)
	return s.endingOf(e), nil
}

// ReplaceExport is RemoveExport for an export that is about to be added again: I/O of
// sessions that have it open waits, as it does after Await, and its writer's reservation
// is kept. It fails as RemoveExport does.
func (s *Server) ReplaceExport(name, why string) error { return waitForEnd(s.BeginReplace(name, why)) }

// BeginReplace is ReplaceExport in two steps. It fails with ErrNotFound, and end with the
// storage's error.
func (s *Server) BeginReplace(name, why string) (end func() error, err error) {
	e, err := s.takeOutExport(name, &why)
	if e == nil {
		return nothingToEnd, err
	}
	e.replaced = true
	return s.endingOf(e), nil
}

// endingOf returns what ends the I/O of an export that was taken out.
func (s *Server) endingOf(e *export) (end func() error) {
	return sync.OnceValue(func() error {
		err := e.endIO()
		if e.cfg.ReadOnly {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.leaving[e.disk]--; s.leaving[e.disk] == 0 {
			delete(s.leaving, e.disk)
		}
		return err
	})
}

func nothingToEnd() error { return nil }

func waitForEnd(end func() error, err error) error {
	if err != nil {
		return err
	}
	return end()
}

// takeOutExport removes an export. If why is not nil, it is to come back, and clients that ask for
// it are told why it is away. e is nil if it was not there.
func (s *Server) takeOutExport(name string, why *string) (e *export, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.exports[name]
	w, waits := s.waiting[name]
	delete(s.exports, name)
	delete(s.waiting, name)
	if e != nil && !e.cfg.ReadOnly {
		s.leaving[e.disk]++
	}
	switch {
	case e == nil && !waits:
		return nil, fmt.Errorf("%w: %q", ErrNotFound, name)
	case why == nil:
		return e, nil
	case e != nil:
		w.partition, w.allow, w.all = e.cfg.Partition, e.cfg.Allow, e.cfg.AllowAll
	}
	w.why = notReady(*why)
	s.waiting[name] = w
	return e, nil
}

// SetAllow changes who may open an export. Sessions that have it open keep it. It fails
// with ErrNotFound.
func (s *Server) SetAllow(name string, allow []transport.Identity, all bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if e == nil {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	e.cfg.Allow, e.cfg.AllowAll = slices.Clone(allow), all
	e.mu.Lock()
	defer e.mu.Unlock()
	e.inGrace = slices.DeleteFunc(e.inGrace, func(k *writer) bool { return !e.mayOpen(k.token.Peer) })
	return nil
}

// SetReaders changes who of those that may open an export may only read. Sessions that have it open keep what they have. It
// fails with ErrNotFound.
func (s *Server) SetReaders(name string, readers []transport.Identity) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if e == nil {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	e.cfg.Readers = slices.Clone(readers)
	return nil
}

// startGrace keeps out others than a writer that may come back.
func (s *Server) startGrace(d *device, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d.exp.mayOpen(d.sess.info.Peer) {
		d.exp.startGrace(d, until)
	}
}

// SetWriters changes how many clients may have an export open for writing. Those
// that have it open keep it. If there may be one, the disk's writer is the only client that has
// it open for writing, or of several the one that opened it last. It fails with
// ErrNotFound.
func (s *Server) SetWriters(name string, w Writers) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if e == nil {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	e.mu.Lock()
	e.cfg.Writers = w
	d := e.onlyWriterLocked()
	e.mu.Unlock()
	most := map[Writers]int{OneWriter: 1, MigrationWriters: 2, SharedWriters: maxWriters}[w]
	switch p := s.reservations[e.disk]; {
	case d != nil && w == OneWriter:
		s.reserveLocked(d)
	case len(p.Writers) > most:
		p.Writers = p.Writers[len(p.Writers)-most:]
		s.reservations[e.disk], s.unwritten = p, true
	}
	s.saveReservationsLater()
	return nil
}

// SetTrust changes how much sessions that open an export may be trusted. Those that have
// it open keep it: the caller ends those that TrustOf would not have trusted as much. It
// fails with ErrNotFound.
func (s *Server) SetTrust(name string, m verbs.TrustModel) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if e == nil {
		return fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	e.cfg.Trust = m
	return nil
}

// TrustOf returns how much a session of peer may be trusted, at most model, so that it
// may open everything offered to the peer. It is for rtrs.ServerConfig.TrustOf.
func (s *Server) TrustOf(peer transport.Identity, model verbs.TrustModel) verbs.TrustModel {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.exports {
		if e.mayOpen(peer) {
			model = model.Meet(e.cfg.Trust)
		}
	}
	return model
}

// Export describes an export; ok is false if there is none of the name.
func (s *Server) Export(name string) (i ExportInfo, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.exports[name]
	if e == nil {
		return i, false
	}
	return s.describeLocked(e), true
}

func (s *Server) describeLocked(e *export) ExportInfo {
	i, p := e.describe(), s.reservations[e.disk]
	i.Generation, i.Fenced = p.Generation, len(p.Fenced)
	return i
}

// Exports describes the exports, by name.
func (s *Server) Exports() []ExportInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := make([]ExportInfo, 0, len(s.exports))
	for _, e := range s.exports {
		infos = append(infos, s.describeLocked(e))
	}
	slices.SortFunc(infos, func(a, b ExportInfo) int { return cmp.Compare(a.Name, b.Name) })
	return infos
}

// exportsOpenTo returns the exports that a peer may open in a session of a partition.
func (s *Server) exportsOpenTo(peer transport.Identity, partition string) []Listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []Listed
	for _, e := range s.exports {
		if e.mayOpen(peer) && !isElsewhere(e.cfg.Partition, partition) {
			list = append(list, Listed{Name: e.cfg.Name, Size: e.sectors.Load() * SectorSize, ReadOnly: e.cfg.ReadOnly})
		}
	}
	slices.SortFunc(list, func(a, b Listed) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// lookUpExport finds an export that a session may open, and reports whether it may only read.
func (s *Server) lookUpExport(name string, in *rtrs.SessionInfo) (e *export, onlyReads bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e = s.exports[name]
	w, waits := s.waiting[name]
	switch {
	case e == nil && !waits, e != nil && isElsewhere(e.cfg.Partition, in.Partition), e == nil && isElsewhere(w.partition, in.Partition):
		return nil, false, ErrNotFound
	case e == nil && !w.all && !slices.Contains(w.allow, in.Peer):
		return nil, false, ErrForbidden
	case e == nil:
		return nil, false, w.why
	case !e.mayOpen(in.Peer):
		return nil, false, ErrForbidden
	case !e.cfg.Trust.Permits(in.Trust):
		return nil, false, ErrTrusted
	}
	return e, e.onlyReads(in.Peer), nil
}

// NewSession admits a session. It is for rtrs.ServerConfig. It does not fail.
func (s *Server) NewSession(info rtrs.SessionInfo) (rtrs.ServerHandler, error) {
	return &session{srv: s, info: info, number: s.sessions.Add(1)}, nil
}

// Close removes all exports; the reservations of their writers stay. Close the rtrs.Server
// first. It is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	names := slices.Collect(maps.Keys(s.exports))
	s.mu.Unlock()
	var errs []error
	for _, name := range names {
		if err := s.ReplaceExport(name, "the server is ending"); err != nil && !errors.Is(err, ErrNotFound) {
			errs = append(errs, err)
		}
	}
	s.saves.Wait()
	return errors.Join(errs...)
}
