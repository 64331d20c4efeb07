//go:build !weakened

package backing

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// FlushLatch: an error of writeback that one call was told is one of every later flush. A call
// that fails may have been told one, unless it is of its own data; the file system counts errors;
// and syncFD takes an opening that nobody else flushes by, until syncDone.
func isOfEarlier(errno syscall.Errno) bool      { return errno != 0 }
func (r *record) isExceeded(errors uint64) bool { return r.FSErrors != nil && errors > *r.FSErrors }
func (s *Store) syncFD() uintptr                { return <-s.syncs }

// ToldDaemon: nor is it forgotten when the daemon dies that was just being told.
func (h *hearing) isUnsaidLocked() bool { return h.calls == 0 && h.stays }
func (k *keeper) wasTold() bool         { return k.told != 0 }

// IsFile reports whether a file or device, as os.Stat found it, is the one that the
// Store has open: a reload takes the one that stands at an export's path.
func (s *Store) IsFile(st *unix.Stat_t) bool {
	if s.device {
		return st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == s.opened.Rdev
	}
	return st.Dev == s.opened.Dev && st.Ino == s.opened.Ino
}
