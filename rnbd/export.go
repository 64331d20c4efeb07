package rnbd

import (
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
	ReadOnly bool                 // even if the storage is writable
	Allow    []transport.Identity // who may open it
	AllowAll bool                 // any authenticated peer may
	Readers  []transport.Identity // of those who may open it, who may only read
	Writers  Writers              // how many clients may have it open for writing; others may read
	// Trust is the most trusting model of a session that may open it. The zero value,
	// NS-NT, trusts nobody.
	Trust verbs.TrustModel
	// Partition is that of the sessions to which alone it exists; "": of none.
	Partition string
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
	// Generation is how often writers were fenced, and Fenced how many of them are known.
	Generation uint64
	Fenced     int
	Fault      string
	Trust      verbs.TrustModel
	Openers    []Opener
	Stats      Stats
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
	sectors  atomic.Uint64
	queue    block.Queue
	removed  atomic.Bool
	replaced bool // set before removed
	counters counters

	mu      sync.Mutex // guards the fields below it
	devices []*device
	inGrace []*writer // those whose sessions were lost

	toFlush struct {
		mu   sync.Mutex // guards the fields below it
		list []*device  // whose responses flush must send
	}
}

func newExport(cfg Export) *export {
	g := cfg.Storage.Geometry()
	cfg.Allow, cfg.ReadOnly = slices.Clone(cfg.Allow), cfg.ReadOnly || g.ReadOnly
	e := &export{cfg: cfg, disk: cfg.Storage.Identity().Disk}
	e.sectors.Store(g.Size / SectorSize)
	e.queue = cfg.Storage.NewQueue(e.flush)
	return e
}

// endIO fails I/O from now on, and waits for I/O that has begun.
func (e *export) endIO() error {
	e.removed.Store(true)
	return e.queue.Close()
}

// removedErrno returns the result of I/O refused because the export was removed.
func (e *export) removedErrno() syscall.Errno {
	if e.replaced {
		return errReplaced
	}
	return syscall.ENODEV
}

// errnoOf returns the result of I/O that the storage failed with errno. ENODEV,
// errReplaced and errFenced are reserved for exports; an offline disk may report ENODEV as
// well.
func (e *export) errnoOf(errno syscall.Errno) syscall.Errno {
	switch errno {
	case syscall.EBADF, syscall.ESHUTDOWN: // closed, if the export was removed
		if e.removed.Load() {
			return e.removedErrno()
		}
		return syscall.EIO
	case syscall.ENODEV, errReplaced, errFenced:
		return syscall.EIO
	}
	return errno
}

// mayOpen reports whether a peer may open the export. Whether it may write as well is
// Export.ReadOnly's and attach's affair.
func (e *export) mayOpen(peer transport.Identity) bool {
	return e.cfg.AllowAll || slices.Contains(e.cfg.Allow, peer)
}

// onlyReads reports whether a peer may open the export for nothing but reading.
func (e *export) onlyReads(peer transport.Identity) bool {
	return e.cfg.ReadOnly || slices.Contains(e.cfg.Readers, peer)
}

// queueFlush records that a response to d's session is ready to be sent.
func (e *export) queueFlush(d *device) {
	if d.flushQueued.Swap(true) {
		return
	}
	o := &e.toFlush
	o.mu.Lock()
	o.list = append(o.list, d)
	o.mu.Unlock()
	if d.refs.Load() == 0 { // it is detached, and nobody else would flush it
		e.flushDevice(d)
	}
}

// flushDevice sends the responses that wait for d's session.
func (e *export) flushDevice(d *device) {
	if !d.flushQueued.Load() {
		return
	}
	o := &e.toFlush
	o.mu.Lock()
	o.list = slices.DeleteFunc(o.list, func(x *device) bool { return x == d })
	o.mu.Unlock()
	d.flushQueued.Store(false)
	d.sess.info.Flush()
}

// flush sends the responses of the queue's completions. Its cost depends on the sessions
// with waiting responses, not on how many have the export open.
func (e *export) flush() {
	o := &e.toFlush
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
		d.flushQueued.Store(false) // a later response queues it again
		d.sess.info.Flush()
	}
}

// detach removes d and reports whether it was there.
func (e *export) detach(d *device) bool {
	defer e.flushDevice(d)
	e.mu.Lock()
	defer e.mu.Unlock()
	n := len(e.devices)
	e.devices = slices.DeleteFunc(e.devices, func(x *device) bool { return x == d })
	return len(e.devices) < n
}

func (e *export) describe() ExportInfo {
	i := ExportInfo{Name: e.cfg.Name, Size: e.sectors.Load() * SectorSize, BlockSize: int(e.cfg.Storage.Geometry().PreferredBlock), ReadOnly: e.cfg.ReadOnly,
		Allow: slices.Clone(e.cfg.Allow), AllowAll: e.cfg.AllowAll, Trust: e.cfg.Trust,
		Identity: e.cfg.Storage.Identity(), Fault: e.cfg.Storage.Fault(), Stats: e.counters.snapshot()}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		i.Openers = append(i.Openers, Opener{Peer: d.sess.info.Peer, Session: d.sess.info.Name, Attachment: d.attachment, ReadOnly: d.readOnly, Since: d.since})
	}
	return i
}
