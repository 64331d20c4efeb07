package backing

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// Store is an open disk, a block.Storage. Its size changes only by Resize and Grow. All methods are
// safe for concurrent use; after Close they return EBADF.
type Store struct {
	path string
	fd   uintptr
	// syncs are further openings of the storage, each for one flush or FUA write at a
	// time: the kernel reports an error of writeback once to each opening, so each call
	// under way gets it.
	syncs    chan uintptr
	below    int // the file below a loop device, locked; -1: none
	size     atomic.Int64
	logical  int // alignment in bytes of a device's discards
	physical int
	readOnly bool
	device   bool
	discard  bool
	spinning bool
	zeroes   []byte

	mu     sync.RWMutex // guards the fields below it; read-locked by operations under way; taken before the syncing's
	closed bool

	noWaitUnsupported atomic.Bool
	flushFailed       atomic.Int32 // errno; nobody knows what was lost, so it stays
	writes            delay

	opened   unix.Stat_t // before anything was done to it
	fsErrors fsErrors
	syncing  syncing
	keeper   keeper
	copyOf   block.ID
	unkept   error

	newLife   string // why it began
	keepsLast bool

	recMu sync.Mutex // guards the fields below it; taken after the syncing's
	rec   record
}

var _ block.Storage = (*Store)(nil)

func (s *Store) ioctl(req uint, arg unsafe.Pointer) syscall.Errno {
	_, _, errno := syscall.Syscall(unix.SYS_IOCTL, s.fd, uintptr(req), uintptr(arg))
	return errno
}

// Path returns the path that was opened.
func (s *Store) Path() string { return s.path }

// Size returns the disk's size in bytes.
func (s *Store) Size() int64 { return s.size.Load() }

// Geometry implements block.Storage. I/O of any alignment and length works. Where the
// storage cannot trim, Discard has no effect.
func (s *Store) Geometry() block.Geometry {
	return block.Geometry{
		Size: uint64(s.Size()), PreferredBlock: uint32(max(s.physical, 512)), ReadOnly: s.readOnly, Rotational: s.spinning,
		CanFlush: true, CanFUA: true, CanTrim: s.discard, CanWriteZeroes: true, CanFastZero: true,
		CanCache: true, CanStatus: true, MultiConn: true,
	}
}

// Close waits for operations under way, flushes, and closes the storage. If that flush
// fails, so does each of the next Store. It is idempotent.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.endLife(), s.closeAll())
}

func (s *Store) closeAll() error {
	s.fsErrors.close()
	// A process that is just being started shares the descriptor, and so the lock, until
	// its program runs.
	err := errors.Join(unix.Flock(int(s.fd), unix.LOCK_UN), unix.Close(int(s.fd)))
	for range len(s.syncs) {
		err = errors.Join(err, unix.Close(int(<-s.syncs)))
	}
	if s.below >= 0 {
		err = errors.Join(err, unix.Flock(s.below, unix.LOCK_UN), unix.Close(s.below))
	}
	return err
}

// lockOpen keeps the descriptor open until unlock, unless it is closed.
func (s *Store) lockOpen() bool {
	s.mu.RLock()
	if s.closed {
		s.mu.RUnlock()
		return false
	}
	return true
}

func (s *Store) unlock() { s.mu.RUnlock() }
