package conf

import (
	"errors"
	"fmt"
)

// ErrOption means that a line of fabric.conf was refused.
var ErrOption = errors.New("fabric.conf refused")

// ErrKey means that the content of a key's file was refused.
var ErrKey = errors.New("management key refused")

// Error is one fault in fabric.conf. It never has a value in its text, which may be a key.
type Error struct {
	File string
	Line int    // from 1
	Msg  string // what was found, and what to do
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg) }

func (e *Error) Unwrap() error { return ErrOption }
