//go:build weakened

package volumes

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/checks"
)

func isOwnDirectory(st *unix.Stat_t) bool {
	return (st.Uid == 0 || int(st.Uid) == os.Geteuid()) && st.Mode&0o022 == 0 || !checks.On(checks.PoolDirectory)
}

func resolveIn() uint64 {
	if !checks.On(checks.PoolDirectory) {
		return 0
	}
	return unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV
}

func (l lease) excludes(other lease, writers string) bool {
	return !mayShare(l, other, writers) && checks.On(checks.VolumeLease)
}

func isFull(have, most int) bool { return have >= most && checks.On(checks.VolumeQuota) }
