package backing

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
)

// markOf identifies a file by what a copy, or another file in its place, does not have in
// common with it. Device numbers do not count, since a reboot may change them.
func markOf(fd int, st *unix.Stat_t) string {
	var x unix.Statx_t
	if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_BTIME, &x); err == nil && x.Mask&unix.STATX_BTIME != 0 {
		return fmt.Sprintf("inode %d born %d.%09d", st.Ino, x.Btime.Sec, x.Btime.Nsec)
	}
	var f unix.Statfs_t
	if err := unix.Fstatfs(fd, &f); err != nil {
		return fmt.Sprintf("inode %d", st.Ino)
	}
	return fmt.Sprintf("inode %d of %x", st.Ino, f.Fsid.Val)
}

// The two values of the write hint of a file, or of a device's node, that give no hint. An
// inode that was just read from storage has hintUnsettled.
const (
	hintUnsettled = 0 // RWH_WRITE_LIFE_NOT_SET
	hintSettled   = 1 // RWH_WRITE_LIFE_NONE
)

// settled reports whether the inode has stayed in memory since its hint was set, and no sync
// was under way when its Store died (unsettled.go): the kernel keeps the hint only in memory,
// as it keeps the page cache and the errors of writeback.
func settled(fd int) bool {
	var hint uint64
	_, _, errno := unix.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_GET_RW_HINT, uintptr(unsafe.Pointer(&hint)))
	return errno == 0 && hint == hintSettled
}

func setHint(fd int, hint uint64) syscall.Errno {
	_, _, errno := syscall.Syscall(unix.SYS_FCNTL, uintptr(fd), unix.F_SET_RW_HINT, uintptr(unsafe.Pointer(&hint)))
	return errno
}

// bootID is the identity of the running kernel, "" if it is not known.
func bootID() string { return sysText("/proc/sys/kernel/random/boot_id") }

// cache names the page cache that has the writes to a file or device. The name stays the
// same as long as none can have been lost there; it is "" if that is not known.
func (s *Store) cache() string {
	boot := bootID()
	if boot == "" {
		return ""
	}
	if !s.device {
		var fs unix.Statfs_t
		if unix.Fstatfs(int(s.fd), &fs) != nil || reportsToWrites(int64(fs.Type)) {
			return ""
		}
		return boot
	}
	var seq uint64
	if s.ioctl(unix.BLKGETDISKSEQ, unsafe.Pointer(&seq)) != 0 || seq == 0 {
		return ""
	}
	// The hint is that of this node, of which a device may have several.
	return fmt.Sprintf("%s disk %d node %x:%d", boot, seq, s.opened.Dev, s.opened.Ino)
}

// reportsToWrites reports whether a kind of file system reports an error of writeback to
// whichever write comes next. A Store that is killed in that write loses the error, and no
// hint shows it. NFS does so when its server has no room.
func reportsToWrites(kind int64) bool { return kind == unix.NFS_SUPER_MAGIC }

func sysText(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func sysDir(rdev uint64) string {
	return fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(rdev), unix.Minor(rdev))
}

// deviceName is the best name that a block device has, which it keeps when its number or
// its place changes.
func deviceName(rdev uint64) string {
	dir := sysDir(rdev)
	if u := sysText(dir + "/dm/uuid"); u != "" {
		return "dm " + u
	}
	if u := sysText(dir + "/md/uuid"); u != "" {
		return "md " + u
	}
	if file := sysText(dir + "/loop/backing_file"); file != "" {
		return loopName(file, sysText(dir+"/loop/offset"))
	}
	if part := sysText(dir + "/partition"); part != "" {
		if u := linkTo(rdev, "/dev/disk/by-partuuid"); u != "" {
			return "partition " + u
		}
		if major, minor, ok := strings.Cut(sysText(dir+"/../dev"), ":"); ok {
			var m, n uint32
			if _, err := fmt.Sscan(major+" "+minor, &m, &n); err == nil {
				return fmt.Sprintf("partition %s from %s of %s", part, sysText(dir+"/start"), deviceName(unix.Mkdev(m, n)))
			}
		}
	}
	for _, f := range []string{"wwid", "device/wwid", "serial", "device/serial"} {
		if u := sysText(dir + "/" + f); u != "" {
			return f + " " + u
		}
	}
	if u := linkTo(rdev, "/dev/disk/by-id"); u != "" {
		return "id " + u
	}
	place, err := filepath.EvalSymlinks(dir)
	if err != nil || strings.HasPrefix(place, "/sys/devices/virtual/") {
		// Nothing identifies it after this boot, and its content hardly outlives that.
		return fmt.Sprintf("%d:%d of boot %s disk %s", unix.Major(rdev), unix.Minor(rdev), bootID(), sysText(dir+"/diskseq"))
	}
	return "place " + place
}

func loopName(file, offset string) string {
	fd, err := openFD(file, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK)
	if err != nil {
		return "loop " + file + " at " + offset
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "loop " + file + " at " + offset
	}
	return "loop " + markOf(fd, &st) + " at " + offset
}

// linkTo is the name in dir that udev has for a device: one that names the device itself
// if there is any, and of several the first in alphabetical order.
func linkTo(rdev uint64, dir string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	var names []string
	for _, e := range entries {
		var st unix.Stat_t
		if unix.Stat(filepath.Join(dir, e.Name()), &st) == nil && st.Rdev == rdev {
			names = append(names, e.Name())
		}
	}
	if len(names) == 0 {
		return ""
	}
	world := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, "wwn-") || strings.HasPrefix(n, "nvme-eui.") })
	return names[max(world, 0)]
}

// idKey is the name of the file for a UUID.
func idKey(id block.ID) string {
	return fmt.Sprintf("%016x%016x.json", binary.BigEndian.Uint64(id[:8]), binary.BigEndian.Uint64(id[8:]))
}
