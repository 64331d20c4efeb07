package rnbd

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ironwarp/ironwarp/rnbd/backing"
	"github.com/ironwarp/ironwarp/transport"
	"github.com/ironwarp/ironwarp/verbs"
)

// Storage is what an export stands on; FromStore makes one of a file or a block
// device.
type Storage interface {
	Size() int64    // bytes
	BlockSize() int // bytes at which I/O is efficient, a power of two from 512
	ReadOnly() bool
	Rotational() bool
	CanDiscard() bool
	// NewQueue returns the way to do I/O. Its goroutines call afterBatch after
	// one or more completions that they made.
	NewQueue(afterBatch func()) Queue
}

// Queue does I/O, see backing.Queue.
type Queue interface {
	Do(op backing.Op, buf []byte, off, n int64, fl backing.Flags, done backing.Completion) (inline bool)
	Close() error
}

// FromStore is the Storage of a file or block device. The caller closes st
// after the export has been removed or the server closed.
func FromStore(st *backing.Store) Storage { return fromStore{st} }

type fromStore struct{ *backing.Store }

func (s fromStore) NewQueue(afterBatch func()) Queue {
	return backing.NewQueue(s.Store, backing.QueueConfig{AfterBatch: afterBatch})
}

// Export is a disk that peers may open.
type Export struct {
	Name     string
	Storage  Storage
	ReadOnly bool                 // also if the storage can be written
	Allow    []transport.Identity // who may open it
	AllowAll bool                 // any authenticated peer may
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
	Trust     verbs.TrustModel
	Openers   []Opener
	Stats     Stats
}

// Opener is a session that has an export open.
type Opener struct {
	Peer     transport.Identity
	Session  string
	ReadOnly bool
	Since    time.Time
}

// export is an Export in a server. It can be removed while sessions have it
// open; their I/O then fails.
type export struct {
	cfg      Export
	sectors  uint64
	queue    Queue
	removed  atomic.Bool
	counters counters

	mu      sync.Mutex
	devices []*device
	// users are the sessions of devices, for those who flush their responses.
	users atomic.Pointer[[]*session]
}

func newExport(cfg Export) *export {
	cfg.Allow = slices.Clone(cfg.Allow)
	e := &export{cfg: cfg, sectors: uint64(cfg.Storage.Size()) / SectorSize}
	e.users.Store(new([]*session))
	e.queue = cfg.Storage.NewQueue(e.flush)
	return e
}

func (e *export) readOnly() bool { return e.cfg.ReadOnly || e.cfg.Storage.ReadOnly() }

func (e *export) allows(peer transport.Identity) bool {
	return e.cfg.AllowAll || slices.Contains(e.cfg.Allow, peer)
}

// flush sends the responses of the queue's completions.
func (e *export) flush() {
	for _, s := range *e.users.Load() {
		s.info.Flush()
	}
}

func (e *export) attach(d *device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.devices = append(e.devices, d)
	e.setUsersLocked()
}

func (e *export) detach(d *device) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.devices = slices.DeleteFunc(e.devices, func(x *device) bool { return x == d })
	e.setUsersLocked()
}

func (e *export) setUsersLocked() {
	var users []*session
	for _, d := range e.devices {
		if !slices.Contains(users, d.sess) {
			users = append(users, d.sess)
		}
	}
	e.users.Store(&users)
}

func (e *export) describe() ExportInfo {
	i := ExportInfo{Name: e.cfg.Name, Size: e.sectors * SectorSize, BlockSize: e.cfg.Storage.BlockSize(), ReadOnly: e.readOnly(),
		Allow: slices.Clone(e.cfg.Allow), AllowAll: e.cfg.AllowAll, Trust: e.cfg.Trust, Stats: e.counters.snapshot()}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, d := range e.devices {
		i.Openers = append(i.Openers, Opener{Peer: d.sess.info.Peer, Session: d.sess.info.Name, ReadOnly: d.readOnly, Since: d.since})
	}
	return i
}
