package backing

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// ext4 mounted with errors=continue goes on after an error in its metadata. What is
// flushed after that may be gone after the next boot, though no call has failed. It
// counts its errors in /sys/fs/ext4/DEVICE/errors_count.

// fsErrors is the count of errors of the file system that has a file.
type fsErrors struct {
	file   *os.File // nil: it counts none
	device string
	goesOn bool // it stays writable after an error
}

// errorsOf finds the count of the file system on the device of a file. root is /, except
// in tests.
func errorsOf(root string, dev uint64) fsErrors {
	at := func(elem ...string) string { return filepath.Join(append([]string{root}, elem...)...) }
	link, err := os.Readlink(at("sys/dev/block", fmt.Sprintf("%d:%d", unix.Major(dev), unix.Minor(dev))))
	if err != nil {
		return fsErrors{} // it is on no block device
	}
	e := fsErrors{device: filepath.Base(link)}
	if e.file, err = os.Open(at("sys/fs/ext4", e.device, "errors_count")); err != nil {
		return fsErrors{}
	}
	if options, err := os.ReadFile(at("proc/fs/ext4", e.device, "options")); err == nil {
		e.goesOn = slices.Contains(strings.Fields(string(options)), "errors=continue")
	}
	return e
}

// count returns how many errors there have been. ok is false if that is not known.
func (e *fsErrors) count() (n uint64, ok bool) {
	if e.file == nil {
		return 0, false
	}
	var b [24]byte
	l, err := unix.Pread(int(e.file.Fd()), b[:], 0)
	if err != nil {
		return 0, false
	}
	for _, c := range b[:l] {
		if c < '0' || c > '9' {
			break
		}
		n, ok = n*10+uint64(c-'0'), true
	}
	return n, ok
}

func (e *fsErrors) close() {
	if e.file != nil {
		e.file.Close()
	}
}

// heedCount latches errors that the file system has counted since the life began.
func (s *Store) heedCount() {
	if n, ok := s.fsErrors.count(); ok && s.rec.isExceeded(n) { // unlocked: that stays as beginLife sets it
		s.latch(unix.EIO, "the file system's count of its errors")
	}
}

// GoesOnAfterErrors names the device of the Store's file system if that goes on after
// errors as if there were none; "" if it stops, or if that is not known.
func (s *Store) GoesOnAfterErrors() string {
	if s.readOnly || !s.fsErrors.goesOn {
		return ""
	}
	return "/dev/" + s.fsErrors.device
}
