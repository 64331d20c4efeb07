package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/daemon/api"
)

// lock is a file that one process at a time holds.
type lock struct{ f *os.File }

// takeLock locks the file at path, which it creates in an existing directory. If
// another process has it the error names that process.
func takeLock(path, what string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("cannot use the %s %s: %v", what, filepath.Dir(path), err),
			Fix: "run the daemon as root, or name directories of your own with state_dir and runtime_dir in the configuration"}
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		defer f.Close()
		return nil, &api.Error{Code: api.CodeInUse, Message: fmt.Sprintf("another ironwarp daemon%s uses the %s %s", holder(f), what, filepath.Dir(path)),
			Fix: "one daemon serves a host: talk to it with `ironwarp status`, or stop it with `systemctl stop ironwarp`.\n" +
				"For a second one on purpose, give it a configuration with a state_dir, runtime_dir and listen port of its own"}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		_, err = f.WriteAt(strconv.AppendInt(nil, int64(os.Getpid()), 10), 0)
		if err != nil {
			f.Close()
			return nil, fmt.Errorf("write %s: %w", path, err)
		}
	}
	return &lock{f: f}, nil
}

// sameDir reports whether two paths are one directory, by whatever names: a
// second lock in it would find the first one's.
func sameDir(a, b string) (bool, error) {
	fa, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	fb, err := os.Stat(b)
	if err != nil {
		return false, err
	}
	return os.SameFile(fa, fb), nil
}

// holder says who wrote the lock file, if that can be read.
func holder(f *os.File) string {
	var b [20]byte
	n, _ := f.ReadAt(b[:], 0)
	if pid, err := strconv.Atoi(string(bytes.TrimSpace(b[:n]))); err == nil {
		return fmt.Sprintf(" (process %d)", pid)
	}
	return ""
}

// release gives the lock up. The file stays: removing it would race with the
// next holder.
func (l *lock) release() {
	if l != nil {
		l.f.Close()
	}
}
