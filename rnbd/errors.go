package rnbd

import (
	"errors"
	"fmt"
	"syscall"
)

// Errors to be matched with errors.Is.
var (
	ErrNotFound     = errors.New("rnbd: no such export")
	ErrForbidden    = errors.New("rnbd: not permitted to open the export")
	ErrTrusted      = errors.New("rnbd: the session is trusted more than the export permits")
	ErrReadOnly     = errors.New("rnbd: the export is read-only")
	ErrExists       = errors.New("rnbd: an export of this name exists")
	ErrSizeChanged  = errors.New("rnbd: the disk's size has changed")
	ErrTooManyDisks = errors.New("rnbd: too many disks are open in the session")
	ErrVersion      = errors.New("rnbd: the server speaks another version")
	ErrClosed       = errors.New("rnbd: closed")
)

// OpenError is why an export could not be opened.
type OpenError struct {
	Export string
	Err    error
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("open export %q: %s", e.Export, advice(e.Err))
}

// Unwrap returns the cause.
func (e *OpenError) Unwrap() error { return e.Err }

func advice(err error) string {
	switch {
	case errors.Is(err, ErrNotFound):
		return "the server has no export of that name (ironwarp ls PEER lists what it offers you)"
	case errors.Is(err, ErrForbidden):
		return "the server does not permit this host to open it; its administrator has to allow this host's identity for the export"
	case errors.Is(err, ErrTrusted):
		return "the server trusts this host's session more than the export permits; it is to end the session, which then comes back as it should be"
	case errors.Is(err, ErrTooManyDisks):
		return fmt.Sprintf("%d disks are open in this session already; detach one", maxDevices)
	}
	return err.Error()
}

// openError turns the server's errno into an error of this package.
func openError(name string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.ENOENT:
			err = ErrNotFound
		case syscall.EACCES:
			err = ErrForbidden
		case syscall.EMFILE:
			err = ErrTooManyDisks
		case syscall.EAGAIN:
			err = ErrTrusted
		}
	}
	return &OpenError{Export: name, Err: err}
}
