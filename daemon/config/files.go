package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/wholefile"
)

// stepRemoved is a step of a change, like those of wholefile.WriteSteps.
const stepRemoved = "file removed"

// RemoveTemporary removes files that killed processes have left beside those of the
// configuration. It fails with the file system's errors.
func (c *Config) RemoveTemporary() error {
	var err error
	for _, dir := range Directories(c.Path) {
		err = errors.Join(err, wholefile.RemoveTemporary(dir))
	}
	return err
}

// The directories beside the main file.
const (
	peersDir   = "peers.d"
	exportsDir = "exports.d"
	targetsDir = "targets.d"
	nvmeDir    = "nvme.d"
	ulpsDir    = "ulps.d"
	secretsDir = "secrets"
)

// Directories are those of the configuration with a main file: its own first, and those beside it.
func Directories(main string) (all []string) {
	for _, sub := range []string{"", peersDir, exportsDir, targetsDir, nvmeDir, ulpsDir, secretsDir} {
		all = append(all, filepath.Join(filepath.Dir(main), sub))
	}
	return all
}

// fileChange is a change of the files of a configuration. The whole resulting configuration is
// checked before anything is written.
type fileChange struct {
	main   string
	before *Config
	lock   *os.File
	after  files
	order  []string          // in which the files change; each step leaves a valid configuration
	done   func(step string) // reports the steps of commit
}

// files are contents by absolute names, nil for a file that goes.
type files map[string][]byte

// beginChange reads the configuration for a change, and keeps other processes from
// changing it until end.
func beginChange(main string) (*fileChange, error) {
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
	c := &fileChange{main: main, lock: lock, after: files{}, done: func(string) {}}
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

func (c *fileChange) end() { c.lock.Close() }

// changeFiles makes a change of the configuration of main, and writes it unless change fails or the
// result has faults.
func changeFiles(main string, change func(*fileChange) error) error {
	c, err := beginChange(main)
	if err != nil {
		return err
	}
	defer c.end()
	if err := change(c); err != nil {
		return err
	}
	return c.commit()
}

// setFile changes the content of a file, nil to remove it.
func (c *fileChange) setFile(path string, data []byte) {
	if _, have := c.after[path]; !have {
		c.order = append(c.order, path)
	}
	c.after[path] = data
}

// commit checks the configuration as it will be, and writes it.
func (c *fileChange) commit() error {
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
			if err := wholefile.SyncDir(filepath.Dir(path)); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := wholefile.WriteSteps(path, data, c.done); err != nil {
			return err
		}
	}
	return nil
}
