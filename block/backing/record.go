package backing

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/wholefile"
)

// record is kept with a disk beyond the life of a Store: as an extended attribute of a
// file, or, for a block device and where there are no attributes, as a file in
// Options.Records.
type record struct {
	Version int      `json:"version"`
	Disk    block.ID `json:"disk"`
	Mark    string   `json:"mark"` // of the file or device that it belongs to: a copy has another
	Life    block.ID `json:"life"`
	// Kept are lives before this one that ended with a flush of all their writes.
	Kept []block.ID `json:"kept,omitempty"`

	Open  bool   `json:"open"`            // the life has not ended
	Cache string `json:"cache,omitempty"` // the page cache that has its writes

	// Size and Changed are the file's when the life ended, or, while it is open, when it
	// was last opened.
	Size    int64 `json:"size,omitempty"`
	Changed int64 `json:"changed,omitempty"` // ns

	// FSErrors is how many errors the file system had counted when the life began.
	FSErrors *uint64 `json:"fs_errors,omitempty"`

	Fault *fault `json:"fault,omitempty"`
}

// fault is why acknowledged writes of a life were lost.
type fault struct {
	Errno syscall.Errno `json:"errno"`
	Call  string        `json:"call"`
	Time  time.Time     `json:"time"`
}

func newFault(errno syscall.Errno, call string) *fault {
	return &fault{Errno: errno, Call: call, Time: time.Now()}
}

func (f *fault) String() string {
	return fmt.Sprintf("%s said %q at %s", f.Call, f.Errno.Error(), f.Time.UTC().Format(time.DateTime+" UTC"))
}

const (
	recordVersion = 1
	recordAttr    = "user.ironwarp.disk"
	// maxRecord bounds what is read of a record; it has some 700 bytes.
	maxRecord = 4096
)

// keeper keeps the record of one disk. A record that once could not be an attribute stays
// in its own file, so that no older one is ever found.
type keeper struct {
	fd     int    // of the file, -1: it cannot have attributes
	file   string // the record's own file, "" if there can be none
	beside bool   // the record is there

	attrErrno syscall.Errno // of the attribute's fsync, which may be about the data
}

// load reads the record; nil if there is none that can be understood.
func (k *keeper) load() (*record, error) {
	if k.file != "" {
		data, err := os.ReadFile(k.file)
		if err == nil {
			k.beside = true
			return decode(data)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	if k.fd < 0 {
		return nil, nil
	}
	buf := make([]byte, maxRecord)
	n, err := unix.Fgetxattr(k.fd, recordAttr, buf)
	switch {
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ERANGE):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the attribute %s: %w", recordAttr, err)
	}
	return decode(buf[:n])
}

func decode(data []byte) (*record, error) {
	var r record
	if err := json.Unmarshal(data, &r); err != nil || r.Version != recordVersion || r.Disk.IsZero() || r.Life.IsZero() {
		return nil, nil // of another program or version: the disk counts as a new one
	}
	return &r, nil
}

// save makes the record durable.
func (k *keeper) save(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if !k.beside {
		err = unix.ENOTSUP
		if k.fd >= 0 {
			if err = unix.Fsetxattr(k.fd, recordAttr, data, 0); err == nil {
				err = unix.Fsync(k.fd)
				k.attrErrno, _ = err.(syscall.Errno)
			}
		}
		if err == nil || k.file == "" {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(k.file), 0o700); err != nil {
		return err
	}
	err = wholefile.Write(k.file, data)
	k.beside = k.beside || err == nil
	return err
}
