package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// record is what a node has done for a volume. It is written before anything is done, and removed when all is undone, so that a
// plugin that was killed in between finishes with the repetition of the call.
type record struct {
	Volume   string   `json:"volume"` // its id
	Peer     string   `json:"peer"`   // the storage host, by its name here
	Export   string   `json:"export"`
	Staging  string   `json:"staging"`
	Block    bool     `json:"block,omitempty"`
	FSType   string   `json:"fs_type,omitempty"`
	ReadOnly bool     `json:"read_only,omitempty"`
	Device   string   `json:"device,omitempty"` // of the kernel; "": not attached yet
	Targets  []target `json:"targets,omitempty"`
}

// target is where a pod has the volume.
type target struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Alone    bool   `json:"alone,omitempty"` // no other pod may have it
}

// target returns the target of a path.
func (r *record) target(path string) (target, bool) {
	i := slices.IndexFunc(r.Targets, func(t target) bool { return t.Path == path })
	if i < 0 {
		return target{}, false
	}
	return r.Targets[i], true
}

// has reports whether the volume is to be found at a path.
func (r *record) has(path string) bool {
	_, ok := r.target(path)
	return ok || path == r.Staging
}

// records keep a record for each volume in a folder.
type records struct{ dir string }

// path is the file of a volume, whose name no id can steer.
func (r records) path(volume string) string {
	sum := sha256.Sum256([]byte(volume))
	return filepath.Join(r.dir, hex.EncodeToString(sum[:])+".json")
}

// load reads a volume's record, nil if it has none. It fails where there is one that cannot be read.
func (r records) load(volume string) (*record, error) {
	f, err := os.Open(r.path(volume))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read what is noted of volume %s: %w", volume, err)
	}
	defer f.Close()
	rec := new(record)
	if err := json.NewDecoder(io.LimitReader(f, maxRecord)).Decode(rec); err != nil {
		return nil, fmt.Errorf("read what is noted of volume %s in %s: %w; if the node was rebooted remove the file", volume, f.Name(), err)
	}
	if rec.Volume != volume {
		return nil, fmt.Errorf("%s is of volume %q, not of %s; if the node was rebooted remove the file", f.Name(), rec.Volume, volume)
	}
	return rec, nil
}

// save writes a record, all of it or nothing. It fails with the file system's error.
func (r records) save(rec *record) error {
	b, err := json.Marshal(rec)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(r.dir, ".new-")
	if err != nil {
		return fmt.Errorf("note what is done for volume %s: %w", rec.Volume, err)
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), r.path(rec.Volume))
	}
	if err != nil {
		return fmt.Errorf("note what is done for volume %s: %w", rec.Volume, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// remove removes a volume's record. None is no error.
func (r records) remove(volume string) error {
	if err := os.Remove(r.path(volume)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("forget volume %s: %w", volume, err)
	}
	return nil
}
