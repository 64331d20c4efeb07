package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/daemon/api"
)

// storage names the storage of a volume within its pool.
type storage struct {
	id   block.ID
	name string // of the volume, for people who look at the pool
	kind string
}

func (r *record) storage() storage { return storage{id: r.ID, name: r.Name, kind: r.Kind} }

// usage is how full a pool is.
type usage struct {
	size, free int64 // bytes
	// metadata is the percentage of a thin pool's metadata that is used: when that is full, all is read-only.
	metadata float64
}

// percent is how much of the pool is used.
func (u usage) percent() float64 {
	if u.size <= 0 {
		return 0
	}
	return max(u.metadata, 100*float64(u.size-u.free)/float64(u.size))
}

// measure is what a volume's storage has and takes.
type measure struct{ size, used int64 } // bytes

// driver makes volumes on one kind of storage. Its methods may be called at the same time for different volumes. They fail with an
// *api.Error that people understand, and with ctx's error.
type driver interface {
	// open looks whether the pool is what is known of it, zero at its first use, and can be used; it returns its ID and what it can do.
	open(ctx context.Context, known block.ID) (id block.ID, features []string, err error)
	usage(ctx context.Context) (usage, error)
	// create makes a volume of zeroes. Size, with which the volume comes out at least, is a multiple of sectors.
	create(ctx context.Context, v storage, size int64) error
	// clone makes a copy of a volume, as a crash would leave it.
	clone(ctx context.Context, from, to storage) error
	// expand makes a volume at least so large.
	expand(ctx context.Context, v storage, size int64) error
	// remove removes a volume; one that is not there is none.
	remove(ctx context.Context, v storage) error
	measure(ctx context.Context, v storage) (measure, error)
	// measureAll is measure for many at once; those that are not there are left out.
	measureAll(ctx context.Context, all []storage) (map[block.ID]measure, error)
	// path is that of the file or device, which exists from create on.
	path(v storage) string
}

// storageError is a failure of the kernel or a file system, with a code that programs understand.
func storageError(what string, err error) *api.Error {
	var known *api.Error
	if errors.As(err, &known) {
		return &api.Error{Code: known.Code, Message: what + ": " + known.Message, Fix: known.Fix}
	}
	e := &api.Error{Code: api.CodeUnavailable, Message: fmt.Sprintf("%s: %v", what, err)}
	switch {
	case isNoRoom(err):
		e.Code, e.Fix = api.CodeNoSpace, "make room: remove volumes and snapshots, or enlarge the storage; `ironwarp pool ls` shows how full it is"
	case errors.Is(err, unix.EFBIG):
		e.Code, e.Fix = api.CodeNoSpace, "the file system has no files of that size"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		e.Code, e.Fix = api.CodeTimeout, "see to the storage: it may hang"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		e.Code, e.Fix = api.CodeForbidden, "the daemon's user has to be able to write there"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOTTY), errors.Is(err, unix.EXDEV):
		e.Code = api.CodeUnsupported
	}
	return e
}

// isNoRoom reports whether a file system has failed for the lack of room.
func isNoRoom(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// within runs a call of the file system, which may never return, for as long as ctx lasts.
func within[T any](ctx context.Context, call func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		v, err := call()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		var zero T
		return zero, ctx.Err()
	}
}
