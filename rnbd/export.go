package rnbd

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Export is a disk that peers may open.
type Export struct {
	Name     string
	Storage  block.Storage        // the caller closes it after the export has been removed or the server closed
	ReadOnly bool                 // also if the storage can be written
	Allow    []transport.Identity // who may open it
	AllowAll bool                 // any authenticated peer may
	// SharedWriters lets several have it open for writing, who have to know of each
	// other. Otherwise one has, and others may read.
	SharedWriters bool
	// Trust is the most that a session may be trusted which opens it. The zero value,
	// NS-NT, trusts nobody.
	Trust verbs.TrustModel
}

// ExportInfo is an export's state for people.
type ExportInfo struct {
	Name      string
	Size      uint64 // bytes
	BlockSize int
	ReadOnly  bool
	Allow     []transport.Identity
	AllowAll  bool
	Identity  block.Identity
	Fault     string
	Trust     verbs.TrustModel
	Openers   []Opener
	Stats     Stats
}

// Opener is a session that has an export open.
type Opener struct {
	Peer       transport.Identity
	Session    string
	Attachment block.ID
	ReadOnly   bool
	Since      time.Time
}

// export is an Export in a server. It can be removed while sessions have it
// open; their I/O then fails.
type export struct {
	cfg      Export
	disk     block.ID
	sectors  uint64
	queue    block.Queue
	removed  atomic.Bool
	replaced bool // set before removed
	counters counters

	mu      sync.Mutex // guards the fields below it
	devices []*device
	kept    *writer // whose session was lost

	owing struct {
		mu   sync.Mutex // guards the fields below it
		list []*device  // whose responses are to be sent by flush
	}
}

func newExport(cfg Export) *export {
	g := cfg.Storage.Geometry()
	cfg.Allow, cfg.ReadOnly = slices.Clone(cfg.Allow), cfg.ReadOnly || g.ReadOnly
	e := &export{cfg: cfg, disk: cfg.Storage.Identity().Disk, sectors: g.Size / SectorSize}
	e.queue = cfg.Storage.NewQueue(e.flush)
	return e
}

// end fails I/O from now on, and waits for what has begun.
func (e *export) end() error {
	e.removed.Store(true)
	return e.queue.Close()
}

// gone is the result of I/O that is not carried out since the export was removed.
func (e *export) gone() syscall.Errno {
	if e.replaced {
		return errReplaced
	}
	return syscall.ENODEV
}

// said is the result of I/O that the storage fails with errno. Some errors are said of
// exports alone; a disk that is offline says ENODEV as well.
func (e *export) said(errno syscall.Errno) syscall.Errno {
	switch errno {
	case syscall.EBADF, syscall.ESHUTDOWN: // it is closed, if the export was removed
		if e.removed.Load() {
			return e.gone()
		}
		return syscall.EIO
	case syscall.ENODEV, errReplaced:
		return syscall.EIO
	}
	return errno
}

func (e *export) sharedWriters() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cfg.SharedWriters
}

func (e *export) allows(peer transport.Identity) bool {
	return e.cfg.AllowAll || slices.Contains(e.cfg.Allow, peer)
}

// owe notes that a response to d's session has been made and is to be sent.
func (e *export) owe(d *device) {
	if d.owed.Swap(true) {
		return
	}
	o := &e.owing
	o.mu.Lock()
	o.list = append(o.list, d)
	o.mu.Unlock()
	if d.refs.Load() == 0 { // it has been detached, and nobody else takes it out again
		e.settle(d)
	}
}

// settle sends what d's session is owed.
func (e *export) settle(d *device) {
	if !d.owed.Load() {
		return
	}
	o := &e.owing
	o.mu.Lock()
	o.list = slices.DeleteFunc(o.list, func(x *device) bool { return x == d })
	o.mu.Unlock()
	d.owed.Store(false)
	d.sess.info.Flush()
}

// flush sends the responses of the queue's completions. It looks at those alone whose
// responses wait, however many have the export open.
func (e *export) flush() {
	o := &e.owing
	for {
		o.mu.Lock()
		n := len(o.list)
		if n == 0 {
			o.mu.Unlock()
			return
		}
		d := o.list[n-1]
		o.list[n-1] = nil
		o.list = o.list[:n-1]
		o.mu.Unlock()
		d.owed.Store(false) // a response that is made from now on is owed anew
		d.sess.info.Flush()
	}
}

// writer is who has an export open for writing.
type writer struct {
	peer    transport.Identity
	session string
	since   time.Time
	until   time.Time // when its place is free, its session being lost
}

func (w *writer) String() string {
	if w.until.IsZero() {
		return fmt.Sprintf("%s (since %s)", w.peer, w.since.UTC().Format(time.DateTime+" UTC"))
	}
	return fmt.Sprintf("%s (its session was lost; its place is kept until %s)", w.peer, w.until.UTC().Format(time.TimeOnly+" UTC"))
}

// keepPlace keeps the place of a writer whose session was lost, so that it comes back
// before another host.
func (e *export) keepPlace(d *device, until time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.readOnly || d.closed.Load() || e.cfg.SharedWriters {
		return
	}
	e.kept = &writer{d.sess.info.Peer, d.sess.info.Name, d.since, until}
}

// attach enters a device. One that writes needs to be alone with that, unless its
// export is shared: otherwise the writer is returned that is there, or may come back. A
// device of the same attachment, left by a session that was lost, is taken over from.
func (e *export) attach(d *device) (other *writer, err error) {
	for {
		ghost, other := e.tryAttach(d)
		if ghost == nil {
			return other, nil
		}
		if n := ghost.close(); mustWaitFor(n) {
			return nil, fmt.Errorf("%d I/Os of the session before are being carried out: %w", n, syscall.EBUSY)
		}
		ghost.remove()
	}
}

func (e *export) tryAttach(d *device) (ghost *device, other *writer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	one := e.hasOneWriterLocked()
	for _, o := range e.devices {
		switch {
		case d.readOnly || o.readOnly:
		case o.takenOverBy(d):
			return o, nil
		case one:
			return nil, &writer{peer: o.sess.info.Peer, session: o.sess.info.Name, since: o.since}
		}
	}
	if k := e.kept; k != nil && !d.readOnly {
		if one && k.peer != d.sess.info.Peer && time.Now().Before(k.until) {
			return nil, k
		}
		e.kept = nil
	}
	e.devices = append(e.devices, d)
	return nil, nil
}

// takenOverBy reports whether d is the same attachment in a later session. One of an
// earlier session is a ghost, which does not take over from its successor.
func (o *device) takenOverBy(d *device) bool {
	return o.attachment == d.attachment && !d.attachment.IsZero() && o.sess.info.Peer == d.sess.info.Peer && o.sess.number <= d.sess.number
}

// onlyWriterLocked is the device that is open for writing, nil if there are none or several.
func (e *export) onlyWriterLocked() (only *device) {
	for _, d := range e.devices {
		switch {
		case d.readOnly:
		case only != nil:
			return nil
		default:
			only = d
		}
	}
	return only
}

// detach reports whether d was there.
func (e *export) detach(d *device) bool {
	defer e.settle(d)
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.devices)
	e.devices = slices.DeleteFunc(e.devices, func(x *device) bool { return x == d })
	return len(e.devices) < n
}

func (e *export) describe() ExportInfo {
	i := ExportInfo{Name: e.cfg.Name, Size: e.sectors * SectorSize, BlockSize: int(e.cfg.Storage.Geometry().PreferredBlock), ReadOnly: e.cfg.ReadOnly,
		Allow: slices.Clone(e.cfg.Allow), AllowAll: e.cfg.AllowAll, Trust: e.cfg.Trust,
		Identity: e.cfg.Storage.Identity(), Fault: e.cfg.Storage.Fault(), Stats: e.counters.snapshot()}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		i.Openers = append(i.Openers, Opener{Peer: d.sess.info.Peer, Session: d.sess.info.Name, Attachment: d.attachment, ReadOnly: d.readOnly, Since: d.since})
	}
	return i
}
