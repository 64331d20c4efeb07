//go:build weakened

package backing

import (
	"syscall"

	"github.com/ironwarp/ironwarp/internal/checks"
	"golang.org/x/sys/unix"
)

func isOfEarlier(errno syscall.Errno) bool { return errno != 0 && checks.On(checks.FlushLatch) }

func (r *record) isExceeded(errors uint64) bool {
	return r.FSErrors != nil && errors > *r.FSErrors && checks.On(checks.FlushLatch)
}

func (s *Store) syncFD() uintptr {
	if !checks.On(checks.FlushLatch) {
		return s.fd
	}
	return <-s.syncs
}

func (h *syncing) mustUnsettleLocked() bool {
	return h.calls == 0 && h.settles && checks.On(checks.KilledInSync)
}

func (k *keeper) hasFailedSync() bool { return k.attrErrno != 0 && checks.On(checks.KilledInSync) }

// IsFile is the product's, with a switch.
func (s *Store) IsFile(st *unix.Stat_t) bool {
	if !checks.On(checks.RestoredFile) {
		return true
	}
	if s.device {
		return st.Mode&unix.S_IFMT == unix.S_IFBLK && st.Rdev == s.opened.Rdev
	}
	return st.Dev == s.opened.Dev && st.Ino == s.opened.Ino
}
