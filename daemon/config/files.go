package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// WriteFile replaces a file in one step, mode 0600: after a crash there is
// either the old content or the new.
func WriteFile(path string, data []byte) error { return replaceFile(path, data, func(string) {}) }

// Steps of replaceFile and of a change, between which a process may end.
const (
	stepCreated = "temporary file created"
	stepWritten = "temporary file written"
	stepSynced  = "temporary file synchronised"
	stepRenamed = "file renamed"
	stepRemoved = "file removed"
)

// replaceFile is WriteFile that reports each step once it is done.
func replaceFile(path string, data []byte, done func(step string)) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary(os.Getpid())+"*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	done(stepCreated)
	_, err = f.Write(data)
	if err == nil {
		done(stepWritten)
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		done(stepSynced)
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return err
	}
	done(stepRenamed)
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
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

const temporaryPrefix = ".new-"

// temporary begins the names of a process's temporary files.
func temporary(pid int) string { return temporaryPrefix + strconv.Itoa(pid) + "-" }

// RemoveTemporary removes the temporary files that processes have left in a
// directory which were killed while they wrote. The caller has written none yet.
func RemoveTemporary(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), temporaryPrefix)
		if !ok || !e.Type().IsRegular() {
			continue
		}
		pid, _, _ := strings.Cut(rest, "-")
		n, perr := strconv.Atoi(pid)
		if perr == nil && n > 0 && n != os.Getpid() && !errors.Is(unix.Kill(n, 0), unix.ESRCH) {
			continue // whose process may be writing still
		}
		err = errors.Join(err, os.Remove(filepath.Join(dir, e.Name())))
	}
	return err
}

// RemoveTemporary removes what killed processes have left beside the files of the
// configuration.
func (c *Config) RemoveTemporary() error {
	var err error
	for _, sub := range []string{"", peersDir, exportsDir, secretsDir} {
		err = errors.Join(err, RemoveTemporary(filepath.Join(c.Dir(), sub)))
	}
	return err
}

// The directories beside the main file.
const (
	peersDir   = "peers.d"
	exportsDir = "exports.d"
	secretsDir = "secrets"
)

// change is what becomes of the files of a configuration. The whole, as it will
// be, is checked before anything is written.
type change struct {
	main   string
	before *Config
	lock   *os.File
	after  files
	order  []string          // in which the files change; each step leaves a whole that checks
	done   func(step string) // reports the steps of commit
}

// files are contents by absolute names, nil for a file that goes.
type files map[string][]byte

// begin reads the configuration for a change, and keeps other processes from
// changing it until end.
func begin(main string) (*change, error) {
	main, err := filepath.Abs(main)
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(main)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	lock, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	c := &change{main: main, lock: lock, after: files{}, done: func(string) {}}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err == nil {
		if c.before, err = Load(main, false); err != nil {
			err = fmt.Errorf("the configuration has faults; repair it first:\n%w", err)
		}
	}
	if err != nil {
		c.end()
		return nil, err
	}
	return c, nil
}

func (c *change) end() { c.lock.Close() }

// put gives a file another content, nil to remove it.
func (c *change) put(path string, data []byte) {
	if _, have := c.after[path]; !have {
		c.order = append(c.order, path)
	}
	c.after[path] = data
}

// commit checks the configuration as it will be, and writes it.
func (c *change) commit() error {
	if _, err := c.after.load(c.main, false); err != nil {
		return err
	}
	for _, path := range c.order {
		data := c.after[path]
		if data == nil {
			if err := os.Remove(path); err != nil {
				return err
			}
			c.done(stepRemoved)
			if err := syncDir(filepath.Dir(path)); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := replaceFile(path, data, c.done); err != nil {
			return err
		}
	}
	return nil
}
