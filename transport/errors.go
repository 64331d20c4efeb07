package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

var (
	// ErrNoProtector is returned for a Config without a Protector.
	ErrNoProtector = errors.New("transport: no Protector configured: a connection needs one (ipsec, or transport.LoopbackOnly within one host)")

	// ErrNotProtected reports that a Protector refused a flow because nothing protects
	// it.
	ErrNotProtected = errors.New("flow is not protected")

	// ErrAway is matched by a Protector's error for a peer's flow whose guard is in place
	// but which has no SA at the moment: nothing passes until it has. An association of
	// several paths waits for such a path; any other refusal ends it.
	ErrAway = errors.New("the protection of the flow is away")

	// ErrHalfOpen reports that the peer's host does not have a connection that was dialled, and
	// never had it (RFC 9293 section 3.5.1): it gave it up before it came up there, since its
	// SA was lost meanwhile. Nothing that was written has arrived; the next Dial makes another.
	ErrHalfOpen = errors.New("the peer's host had given up the connection before it was up there")

	// ErrTwoPeers reports that paths of one association are authenticated as different
	// peers.
	ErrTwoPeers = errors.New("the paths lead to different peers")

	// ErrNoAnswer is matched by a Protector's error for a connection that a peer has made and that is to get no answer: it
	// is reset.
	ErrNoAnswer = errors.New("the request gets no answer")

	// ErrBusy reports that a listener refused a connection because too many others wait
	// for admission or Accept.
	ErrBusy = errors.New("too many connections are waiting to be accepted")
)

// FlowError names the step and the flow that failed, and what can be done.
type FlowError struct {
	Op   string // "prepare", "dial", "admit", "listen", "accept"
	Flow Flow
	Err  error
	Hint string // what to do about it, may be empty
}

func (e *FlowError) Error() string {
	s := fmt.Sprintf("transport: %s %s: %v", e.Op, e.Flow, e.Err)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *FlowError) Unwrap() error { return e.Err }

// Timeout reports whether the step ran out of time.
func (e *FlowError) Timeout() bool {
	var ne net.Error
	return errors.Is(e.Err, context.DeadlineExceeded) || errors.Is(e.Err, os.ErrDeadlineExceeded) ||
		errors.As(e.Err, &ne) && ne.Timeout()
}

func flowError(op string, f Flow, err error) *FlowError {
	return &FlowError{Op: op, Flow: f, Err: err, Hint: hint(op, f.Protocol, err)}
}

// hint returns what an operator can do about err.
func hint(op string, proto Protocol, err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		switch errno {
		case syscall.EPERM, syscall.EACCES:
			if op == "listen" {
				return "ports below 1024 need root or CAP_NET_BIND_SERVICE"
			}
			return "a local policy refuses to send these packets in clear: the IPsec guard (see `ip xfrm policy`) or a firewall; " +
				"the SA that should cover them is not up"
		case syscall.ECONNREFUSED:
			return "the host answers and nothing listens on that port: is the peer's daemon running?"
		case syscall.ENETUNREACH, syscall.EHOSTUNREACH:
			return "there is no route to the peer: check its address and `ip route get`"
		case syscall.EADDRINUSE:
			return "another process has this port: find it with `" + listing(proto) + "`"
		case syscall.EADDRNOTAVAIL:
			return "no interface of this host has the local address"
		case syscall.EMFILE, syscall.ENFILE:
			return "out of file descriptors: raise the limit (LimitNOFILE)"
		}
	}
	if errors.Is(err, assoc.ErrAdaptation) {
		return "the peer's SCTP port serves something else than RDMA"
	}
	if op == "dial" && (errors.Is(err, assoc.ErrPeerUnreachable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ETIMEDOUT)) {
		return "no answer: the peer is down, or packets are dropped on the way (its guard drops what does not come through ESP)"
	}
	return ""
}

// listing returns the command that shows which process has a protocol's ports.
func listing(p Protocol) string {
	switch p {
	case ProtoUDP:
		return "ss -lunp"
	case ProtoSCTP:
		return "ss -lnSp"
	}
	return "ss -ltnp"
}
