//go:build !weakened

package volumes

import (
	"os"

	"golang.org/x/sys/unix"
)

// The checks of docs/security.md, one function each. weakened.go has them with switches.

// PoolDirectory: nobody but the daemon's user puts anything into a pool's directory, and no link in it leads elsewhere.
func isOwnDirectory(st *unix.Stat_t) bool {
	return (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && st.Mode&0o022 == 0
}

func resolveIn() uint64 {
	return unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
}

// VolumeLease: a volume that a peer may write to is given to no other one before the first is fenced.
func (l lease) excludes(other lease, writers string) bool { return !mayShare(l, other, writers) }

// VolumeQuota: a pool has so many volumes, whoever makes them.
func isFull(have, most int) bool { return have >= most }
