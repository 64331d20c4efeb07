package config

import (
	"errors"
	"strings"
)

// Error is one fault in a file.
type Error struct {
	Pos
	Msg string // what was found
	Fix string // what is allowed, or what to do; may be empty
}

func (e *Error) Error() string {
	s := e.Pos.String() + ": " + e.Msg
	if e.Fix != "" {
		s += "; " + e.Fix
	}
	return s
}

// Errors are all faults that were found, in the order of the files.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, f := range e {
		lines[i] = f.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns each fault, for errors.As and errors.Is.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i, f := range e {
		out[i] = f
	}
	return out
}

// Faults that a caller may want to distinguish.
var (
	ErrExists   = errors.New("already configured")
	ErrNotFound = errors.New("not configured")
	ErrInUse    = errors.New("in use")
)
