//go:build !weakened

package backing

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// FlushLatch: an error of writeback that one call got fails every later flush. A call that
// fails may have got one, unless its own data caused the error; the file system counts errors;
// and syncFD takes an opening that nobody else uses to flush, until syncDone.
func isOfEarlier(errno syscall.Errno) bool      { return errno != 0 }
func (r *record) isExceeded(errors uint64) bool { return r.FSErrors != nil && errors > *r.FSErrors }
func (s *Store) syncFD() uintptr                { return <-s.syncs }

// KilledInSync: nor is it forgotten when the daemon dies in the call that would get it.
func (h *syncing) mustUnsettleLocked() bool { return h.calls == 0 && h.settles }
func (k *keeper) hasFailedSync() bool       { return k.attrErrno != 0 }

// IsFile reports whether a file or device, as os.Stat found it, is the one that the
// Store has open: a reload opens the file that is now at an export's path.
func (s *Store) IsFile(st *unix.Stat_t) bool {
	if s.device {
		return st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == s.opened.Rdev
	}
	return st.Dev == s.opened.Dev && st.Ino == s.opened.Ino
}
