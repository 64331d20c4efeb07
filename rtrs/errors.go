package rtrs

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"

	"github.com/ironwarp/ironwarp/verbs"
)

// Errors to be matched with errors.Is.
var (
	// ErrClosed: the client or server has been closed.
	ErrClosed = errors.New("rtrs: closed")
	// ErrProtocol: the peer broke the protocol, and its path was given up.
	ErrProtocol = errors.New("rtrs: the peer broke the protocol")
	// ErrHeartbeat: the peer has been silent for too long.
	ErrHeartbeat = errors.New("rtrs: no heartbeat from the peer")
	// ErrPeerClosed: the peer has closed the session or shut down in an orderly way.
	ErrPeerClosed = errors.New("rtrs: closed by the peer")
	// ErrSuperseded: the peer has connected the path anew.
	ErrSuperseded = errors.New("rtrs: the peer has opened the path again")
	// ErrAnotherServer: an address of a session's is not that of the server of its other
	// paths.
	ErrAnotherServer = errors.New("rtrs: the paths of a session lead to different servers")
	// ErrNoPath: the session has had no path for as long as ClientConfig.NoPath has I/O wait.
	ErrNoPath = errors.New("rtrs: no path to the server")
	// ErrPathLost: the path was lost during a control request.
	ErrPathLost = errors.New("rtrs: the path to the server was lost")
)

// RefusedError is a server's refusal of a path.
type RefusedError struct {
	Remote netip.AddrPort
	Step   string // the refused step
	Errno  syscall.Errno
	// Ours and Theirs are the versions of the two ends, where the step is a connection.
	Ours, Theirs Protocol
}

func (e *RefusedError) Error() string {
	if e.Errno == syscall.EPROTONOSUPPORT {
		return fmt.Sprintf("rtrs: %s refused %s: %s", e.Remote, e.Step, e.Ours.Differs("RTRS", e.Theirs))
	}
	return fmt.Sprintf("rtrs: %s refused %s: %s", e.Remote, e.Step, refusal(e.Errno))
}

// Unwrap returns the errno.
func (e *RefusedError) Unwrap() error { return e.Errno }

// Temporary reports whether the same request may soon succeed.
func (e *RefusedError) Temporary() bool {
	switch e.Errno {
	case syscall.EBUSY, syscall.EEXIST, syscall.EAGAIN, syscall.ESTALE:
		return true
	}
	return false
}

func refusal(e syscall.Errno) string {
	switch e {
	case syscall.EBUSY:
		return "requests of the session's earlier connection are still being executed there"
	case syscall.EEXIST:
		return "another session of this name is open, and its client answers; end that"
	case syscall.EAGAIN:
		return "it is handling too many connection requests"
	case syscall.EUSERS:
		return "this peer has as many sessions open as it may"
	case syscall.ENOMEM:
		return "it has no room for another session"
	case syscall.ESTALE:
		return "the session has been opened again since"
	case syscall.ESHUTDOWN:
		return "a manager of its fabric has drained it, so it takes no new streams; `ironwarp fabric drain --off` on the fabric's master ends that"
	case syscall.EINVAL:
		return "it found the request malformed"
	}
	return e.Error()
}

// shrunkError: the server came back with smaller limits than the session's.
type shrunkError struct {
	what      string
	had, want uint32
}

func (e *shrunkError) Error() string {
	return fmt.Sprintf("rtrs: the server's %s is now %d, below the %d of this session; restore the setting there or attach again", e.what, e.had, e.want)
}

// errHeldBack is why a path is torn down that may carry out late what nobody waits for.
var errHeldBack = fmt.Errorf("%w: its security association is away, and what it holds back is not wanted any more", ErrPathLost)

// errAway is why a path is torn down when I/O fails for want of one.
var errAway = fmt.Errorf("%w: its security association is away, and I/O waits no longer", ErrPathLost)

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// ended returns why a path ends when one of its connections did.
func ended(cid int, err error) error {
	if errors.Is(err, verbs.ErrClosed) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w (connection %d)", ErrPeerClosed, cid)
	}
	return fmt.Errorf("rtrs: connection %d: %w", cid, err)
}
