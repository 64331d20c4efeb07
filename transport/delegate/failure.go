package delegate

import (
	"context"
	"errors"
	"os"

	"github.com/ironwarp/ironwarp/transport"
)

// ErrShort is the error for a flow for which the daemon has no resources, by its own limits or the account's.
var ErrShort = errors.New("too many streams")

// failures are the errors that a program can tell apart by errors.Is.
var failures = []struct {
	name string
	err  error
}{
	{"away", transport.ErrAway}, // before what it also is
	{"refused", transport.ErrNotProtected},
	{"short", ErrShort},
	{"late", context.DeadlineExceeded},
	{"late", os.ErrDeadlineExceeded},
}

// failureOf fills a message with an error.
func (m *message) fail(err error) {
	if err == nil {
		return
	}
	m.Failure, m.Reason = "failed", err.Error()
	for _, f := range failures {
		if errors.Is(err, f.err) {
			m.Failure = f.name
			return
		}
	}
}

// err is the error that a message tells of, nil if it tells of none.
func (m *message) err() error {
	if m.Failure == "" {
		return nil
	}
	e := &told{reason: m.Reason}
	for _, f := range failures {
		if f.name == m.Failure {
			e.is = f.err
			break
		}
	}
	return e
}

// told is an error of the daemon's.
type told struct {
	reason string
	is     error
}

func (e *told) Error() string { return e.reason }
func (e *told) Unwrap() error { return e.is }
