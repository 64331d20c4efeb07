package policy

import (
	"errors"
	"fmt"
	"strings"
)

// ErrBeyondSubset means that a statement may be right for SELinux, and that this package
// has no such one.
var ErrBeyondSubset = errors.New("this is not in the subset of SELinux' language that IronWarp knows")

// ErrNeverAllowed means that an allow rule grants what a neverallow rule forbids.
var ErrNeverAllowed = errors.New("a neverallow rule is violated")

// Error is what is wrong at one place of a file. It wraps ErrBeyondSubset or
// ErrNeverAllowed if that is the reason.
type Error struct {
	File         string
	Line, Column int // from 1; the column in bytes
	Text         string
	Err          error // ErrBeyondSubset, ErrNeverAllowed or nil
}

// Error is FILE:LINE:COLUMN and what is wrong.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Unwrap returns the reason, or nil.
func (e *Error) Unwrap() error { return e.Err }

// Errors are all that is wrong with a file, in the order of its lines, up to a limit.
type Errors []*Error

// Error has a line for each.
func (es Errors) Error() string {
	var b strings.Builder
	for i, e := range es {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(e.Error())
	}
	if len(es) == maxErrors {
		b.WriteString("\nthere may be more errors; these come first")
	}
	return b.String()
}

// Unwrap returns each of them.
func (es Errors) Unwrap() []error {
	errs := make([]error, len(es))
	for i, e := range es {
		errs[i] = e
	}
	return errs
}
