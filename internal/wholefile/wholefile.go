// Package wholefile replaces files so that a crash leaves the old content or the new.
package wholefile

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Write replaces a file atomically, with mode 0600. After a crash, or an error of the file
// system, the file has either the old content or the new.
func Write(path string, data []byte) error { return WriteSteps(path, data, func(string) {}) }

// WriteJSON is Write of a value as JSON, in one line: state is written down for each change,
// and spaces would be a third of it. It fails as Write does.
func WriteJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(path, append(data, '\n'))
}

// WriteSteps is Write that reports each step once it is done, after which the process
// may end. It fails as Write does.
func WriteSteps(path string, data []byte, done func(step string)) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary(os.Getpid())+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	done("temporary file created")
	_, err = f.Write(data)
	if err == nil {
		done("temporary file written")
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		done("temporary file synchronised")
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	done("file renamed")
	return SyncDir(filepath.Dir(path))
}

// SyncDir makes a directory's list of files durable. It fails with the file system's error,
// except where the file system cannot synchronise directories.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, fs.ErrInvalid) {
		return err
	}
	return nil
}

// TemporaryPrefix begins the names of all temporary files.
const TemporaryPrefix = ".new-"

// temporary begins the names of a process's temporary files.
func temporary(pid int) string { return TemporaryPrefix + strconv.Itoa(pid) + "-" }

// RemoveTemporary removes the temporary files of processes that were killed while they
// wrote to the directory. Call it before the first Write there. A directory that does not
// exist has none. It fails with the file system's error.
func RemoveTemporary(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), TemporaryPrefix)
		if !ok || !e.Type().IsRegular() {
			continue
		}
		pid, _, _ := strings.Cut(rest, "-")
		n, perr := strconv.Atoi(pid)
		if perr == nil && n > 0 && n != os.Getpid() && !errors.Is(unix.Kill(n, 0), unix.ESRCH) {
			continue // its process may still be writing
		}
		err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
	}
	return err
}
