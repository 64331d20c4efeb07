package charon

import (
	"errors"
	"fmt"
	"strings"
)

// What can be wrong between this host and charon. Error wraps them.
var (
	ErrNotRunning = errors.New("strongSwan is not running")
	ErrRefused    = errors.New("strongSwan's control socket refuses connections")
	ErrPermission = errors.New("no permission for strongSwan's control socket")
	ErrTooOld     = errors.New("strongSwan is too old")
	ErrHangs      = errors.New("strongSwan does not answer")
	ErrGone       = errors.New("the connection to strongSwan was lost")
	ErrProtocol   = errors.New("strongSwan's answer was not understood")
)

// Error is a failure to talk to charon. errors.Is finds its Kind.
type Error struct {
	Op     string // "connect", or the VICI command
	Socket string
	Kind   error // one of the Err values
	Err    error // the cause, or nil
	Advice string
}

func (e *Error) Error() string {
	s := fmt.Sprintf("strongSwan at %s, %s: %v", e.Socket, e.Op, e.Kind)
	if e.Err != nil {
		s += fmt.Sprintf(" (%v)", e.Err)
	}
	if e.Advice != "" {
		s += ": " + e.Advice
	}
	return s
}

func (e *Error) Unwrap() []error { return []error{e.Kind, e.Err} }

// Timeout reports whether charon failed to answer in time.
func (e *Error) Timeout() bool { return errors.Is(e.Kind, ErrHangs) }

// CommandError is charon's refusal of a command.
type CommandError struct {
	Command string // the VICI command
	Name    string // what it was about: a connection, a child, a secret
	Reason  string // charon's words
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("strongSwan refused %s of %s: %s", e.Command, e.Name, e.Reason)
}

// Refused reports whether charon has refused a command with a reason that has words.
func Refused(err error, words string) bool {
	refused, ok := errors.AsType[*CommandError](err)
	return ok && strings.Contains(refused.Reason, words)
}
