package auth

import (
	"os"
	"syscall"
)

func ownerOf(st os.FileInfo) (uid uint32, ok bool) {
	if s, isUnix := st.Sys().(*syscall.Stat_t); isUnix {
		return s.Uid, true
	}
	return 0, false
}
