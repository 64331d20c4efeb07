package volumes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// directory is a driver whose volumes are sparse files of a directory. Where its file system can share extents between files (XFS,
// btrfs), snapshots and clones take no time and no room.
//
// Nothing below the directory is reached through a symbolic link, and nobody but the daemon's user can write to it.
type directory struct{ dir string }

// marker is a file that tells the pool's directory from the one that is there while its file system is not mounted.
const marker = ".ironwarp-pool"

type markerFile struct {
	Version int      `json:"version"`
	Pool    block.ID `json:"pool"`
}

const markerVersion = 1

// fileName is the name of a volume's file, which has the volume's UUID: no other file is ever taken for it.
func fileName(v storage) string {
	suffix := ".vol"
	if v.kind == api.KindSnapshot {
		suffix = ".snap"
	}
	return v.name + "." + v.id.String() + suffix
}

func (d directory) path(v storage) string { return filepath.Join(d.dir, fileName(v)) }

// openDir opens the pool's directory. It fails if others than the daemon's user could put something there.
func (d directory) openDir() (int, error) {
	fd, err := unix.Open(d.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &fs.PathError{Op: "open", Path: d.dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, &fs.PathError{Op: "stat", Path: d.dir, Err: err}
	}
	if !isOwnDirectory(&st) {
		unix.Close(fd)
		return -1, &api.Error{Code: api.CodeForbidden, Message: fmt.Sprintf("others than the daemon's user may write to the directory %s (user id %d, mode %#o)", d.dir, st.Uid, st.Mode&0o7777),
			Fix: fmt.Sprintf("chown %d %s; chmod 0700 %s", os.Geteuid(), d.dir, d.dir)}
	}
	return fd, nil
}

// openIn opens a file of the directory, and nothing that a link leads to.
func openIn(dir int, name string, flags uint64, mode uint32) (*os.File, error) {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_LARGEFILE, Mode: uint64(mode), Resolve: resolveIn()})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "open", Path: name, Err: errors.Join(err, errors.New("it is no regular file"))}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// look calls f with the directory, and returns what it returns. It gives up waiting for f, which may go on then, when ctx ends.
func look[T any](ctx context.Context, d directory, f func(dir int) (T, error)) (T, error) {
	return within(ctx, func() (v T, err error) {
		dir, err := d.openDir()
		if err != nil {
			return v, err
		}
		defer unix.Close(dir)
		return f(dir)
	})
}

// inDir is look without a result.
func (d directory) inDir(ctx context.Context, f func(dir int) error) error {
	_, err := look(ctx, d, func(dir int) (struct{}, error) { return struct{}{}, f(dir) })
	return err
}

func (d directory) open(ctx context.Context, known block.ID) (id block.ID, features []string, err error) {
	type found struct {
		id       block.ID
		features []string
	}
	v, err := look(ctx, d, func(dir int) (found, error) {
		v := found{id: known, features: []string{api.FeatureExpand, api.FeatureThin}}
		has, err := readMarker(dir)
		switch {
		case errors.Is(err, fs.ErrNotExist) && known.IsZero():
			v.id = block.NewID()
			if err := writeMarker(dir, v.id); err != nil {
				return v, err
			}
		case errors.Is(err, fs.ErrNotExist):
			return v, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the directory %s is not that of the pool, which has a file %s", d.dir, marker), Fix: "is its file system mounted?"}
		case err != nil:
			return v, fmt.Errorf("read %s/%s: %w", d.dir, marker, err)
		case known.IsZero():
			v.id = has
		case has != known:
			return v, &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("the directory %s is that of the pool %s, and not of %s", d.dir, has, known), Fix: "mount the file system of this pool there"}
		}
		if canClone(dir) {
			v.features = append(v.features, api.FeatureSnapshots, api.FeatureClones)
		}
		return v, nil
	})
	if err != nil {
		return block.ID{}, nil, storageError("the directory "+d.dir+" cannot be used", err)
	}
	return v.id, v.features, nil
}

func readMarker(dir int) (block.ID, error) {
	f, err := openIn(dir, marker, unix.O_RDONLY, 0)
	if err != nil {
		return block.ID{}, err
	}
	defer f.Close()
	buf := make([]byte, 4096)
	n, err := f.ReadAt(buf, 0)
	if n == len(buf) {
		return block.ID{}, errors.New("it is too long")
	}
	var m markerFile
	if err := json.Unmarshal(buf[:n], &m); err != nil {
		return block.ID{}, err
	}
	if m.Version != markerVersion || m.Pool.IsZero() {
		return block.ID{}, fmt.Errorf("version %d, this daemon knows %d: %w", m.Version, markerVersion, err)
	}
	return m.Pool, nil
}

func writeMarker(dir int, id block.ID) error {
	data, err := json.Marshal(markerFile{markerVersion, id})
	if err != nil {
		return err
	}
	temporary := marker + ".new"
	_ = unix.Unlinkat(dir, temporary, 0) // of a daemon that was killed
	f, err := openIn(dir, temporary, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(append(data, '\n')); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Renameat(dir, temporary, dir, marker); err != nil {
		return err
	}
	return unix.Fsync(dir)
}

// canClone reports whether files of the directory can share extents. Where there is no room to find out, they may: what is asked of
// the pool then fails for the lack of room, which is what can be mended.
func canClone(dir int) bool {
	const from, to = ".ironwarp-from", ".ironwarp-to"
	for _, name := range []string{from, to} {
		_ = unix.Unlinkat(dir, name, 0) // of a daemon that was killed
	}
	a, err := openIn(dir, from, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return isNoRoom(err)
	}
	defer func() { _ = unix.Unlinkat(dir, from, 0) }()
	defer a.Close()
	b, err := openIn(dir, to, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if err != nil {
		return isNoRoom(err)
	}
	defer func() { _ = unix.Unlinkat(dir, to, 0) }()
	defer b.Close()
	err = unix.IoctlFileClone(int(b.Fd()), int(a.Fd()))
	return err == nil || isNoRoom(err)
}

func (d directory) usage(ctx context.Context) (u usage, err error) {
	u, err = look(ctx, d, func(dir int) (usage, error) {
		var st unix.Statfs_t
		err := unix.Fstatfs(dir, &st)
		return usage{size: int64(st.Blocks) * int64(st.Frsize), free: int64(st.Bavail) * int64(st.Frsize)}, err
	})
	if err != nil {
		return u, storageError("the directory "+d.dir+" cannot be looked at", err)
	}
	return u, nil
}

// make makes a volume's file and fills it, durably. What it leaves when it fails remove takes away.
func (d directory) make(ctx context.Context, v storage, fill func(dir int, f *os.File) error) error {
	err := d.inDir(ctx, func(dir int) error {
		f, err := openIn(dir, fileName(v), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := fill(dir, f); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		return unix.Fsync(dir)
	})
	if err != nil {
		return storageError("make "+d.path(v), err)
	}
	return nil
}

func (d directory) create(ctx context.Context, v storage, size int64) error {
	return d.make(ctx, v, func(_ int, f *os.File) error { return f.Truncate(size) })
}

func (d directory) clone(ctx context.Context, from, to storage) error {
	return d.make(ctx, to, func(dir int, f *os.File) error {
		source, err := openIn(dir, fileName(from), unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		defer source.Close()
		if err := unix.IoctlFileClone(int(f.Fd()), int(source.Fd())); err != nil {
			return fmt.Errorf("share the extents of %s: %w", source.Name(), err)
		}
		return nil
	})
}

func (d directory) expand(ctx context.Context, v storage, size int64) error {
	err := d.inDir(ctx, func(dir int) error {
		f, err := openIn(dir, fileName(v), unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := f.Stat()
		if err != nil || st.Size() >= size {
			return err
		}
		if err := f.Truncate(size); err != nil {
			return err
		}
		return f.Sync()
	})
	if err != nil {
		return storageError("expand "+d.path(v), err)
	}
	return nil
}

func (d directory) remove(ctx context.Context, v storage) error {
	err := d.inDir(ctx, func(dir int) error {
		if err := unix.Unlinkat(dir, fileName(v), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return unix.Fsync(dir)
	})
	if err != nil {
		return storageError("remove "+d.path(v), err)
	}
	return nil
}

func (d directory) measure(ctx context.Context, v storage) (measure, error) {
	all, err := d.measureAll(ctx, []storage{v})
	if err != nil {
		return measure{}, err
	}
	m, ok := all[v.id]
	if !ok {
		return m, &api.Error{Code: api.CodeNotFound, Message: d.path(v) + " is not there", Fix: "is its file system mounted, and was nothing removed by hand?"}
	}
	return m, nil
}

func (d directory) measureAll(ctx context.Context, all []storage) (map[block.ID]measure, error) {
	found, err := look(ctx, d, func(dir int) (map[block.ID]measure, error) {
		found := map[block.ID]measure{}
		for _, v := range all {
			var st unix.Stat_t
			if err := unix.Fstatat(dir, fileName(v), &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
				found[v.id] = measure{size: st.Size, used: st.Blocks * 512}
			}
		}
		return found, nil
	})
	if err != nil {
		return nil, storageError("the directory "+d.dir+" cannot be looked at", err)
	}
	return found, nil
}
