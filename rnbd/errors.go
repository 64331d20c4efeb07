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
	ErrEnding       = errors.New("rnbd: writes of an earlier export of the disk are still being carried out")
	ErrShrunk       = errors.New("rnbd: the disk has shrunk")
	ErrTooManyDisks = errors.New("rnbd: too many disks are open in the session")
	ErrVersion      = errors.New("rnbd: the server speaks another version")
	ErrClosed       = errors.New("rnbd: closed")
	ErrNotReady     = errors.New("rnbd: the export's storage is not open yet")
	ErrInUse        = errors.New("rnbd: the export has another writer")
	ErrOtherDisk    = errors.New("rnbd: the export is another disk")
	ErrDamaged      = errors.New("rnbd: the export's storage has lost acknowledged writes")
	ErrPreempted    = errors.New("rnbd: the export has had another writer since")
	ErrFenced       = errors.New("rnbd: this host was fenced")
	ErrWritesLost   = errors.New("rnbd: acknowledged writes may be lost")
)

// OpenError is why an export could not be opened.
type OpenError struct {
	Export string
	Detail string // in the server's words; may be empty
	Err    error
}

func (e *OpenError) Error() string {
	return fmt.Sprintf("open export %q: %s", e.Export, e.advice())
}

// Unwrap returns the cause.
func (e *OpenError) Unwrap() error { return e.Err }

func (e *OpenError) advice() string {
	switch err := e.Err; {
	case errors.Is(err, ErrNotFound):
		return "the server has no export of that name (ironwarp ls PEER lists what it offers you)"
	case errors.Is(err, ErrForbidden):
		return "the server does not permit this host to open it; its administrator has to allow this host's identity for the export"
	case errors.Is(err, ErrTrusted):
		return "the server trusts this host's session more than the export permits; its administrator has to end the session, which then reconnects with less trust"
	case errors.Is(err, ErrTooManyDisks):
		return fmt.Sprintf("%d disks are open in this session already; detach one", maxDevices)
	case errors.Is(err, ErrNotReady):
		return "the server cannot open its storage yet: " + e.Detail
	case errors.Is(err, syscall.EBUSY):
		return "the server is still carrying out I/O from before the session was lost"
	case errors.Is(err, ErrInUse):
		return "it has one writer at a time, or two during a migration, and there is " + e.Detail + "; detach it there, or export it with shared writers if all of them know of each other"
	case errors.Is(err, ErrOtherDisk):
		return "another disk stands there now than the one that was attached; detach it and attach it again if that is meant"
	case errors.Is(err, ErrDamaged):
		return "its storage has lost acknowledged writes (" + e.Detail + "); its administrator has to see to the storage and then run `ironwarp export repair " + e.Export + "`"
	case errors.Is(err, ErrPreempted):
		return "it has one writer at a time, and was opened for writing elsewhere while this host was away (by whom: " + e.Detail + "). All I/O fails from now on, so that none of before " +
			"lands on what was written since; detach the disk, attach it again, and check the file system on it"
	case errors.Is(err, ErrFenced):
		return "the server's administrator has fenced this host as a writer (" + e.Detail + "). All I/O fails with EPERM from now on; " +
			"detach the disk, attach it again if it may write, and check the file system on it"
	case errors.Is(err, ErrWritesLost):
		return "the server's storage has another life than the one that acknowledged writes, and no flush covered them: they may be lost. All I/O fails from now on; " +
			"detach the disk, attach it again, and check the file system on it"
	}
	return e.Err.Error()
}

// refusals maps results of OPEN to errors.
var refusals = [openResults]error{openNotReady: ErrNotReady, openInUse: ErrInUse, openOtherDisk: ErrOtherDisk, openDamaged: ErrDamaged,
	openPreempted: ErrPreempted, openFenced: ErrFenced}

// isForGood reports whether a disk that has failed stays so: it has to be opened anew.
func isForGood(err error) bool {
	return errors.Is(err, ErrWritesLost) || errors.Is(err, ErrPreempted) || errors.Is(err, ErrFenced)
}

// errnoOfFailure returns what I/O of a disk fails with while it cannot be opened, 0 for nil.
func errnoOfFailure(err error) syscall.Errno {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrFenced):
		return errFenced
	}
	return syscall.EIO
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
