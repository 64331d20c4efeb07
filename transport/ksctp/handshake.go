package ksctp

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"syscall"

	lksctp "github.com/ishidawataru/sctp"
	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// msgNotification marks what is not a message of the peer.
const msgNotification = lksctp.MSG_NOTIFICATION

// noteSize is how much of a notification is read, in bytes.
const noteSize = 4096

// open makes a socket for these addresses, bound to the local ones.
func open(c *Config, local []netip.Addr, remote ...netip.Addr) (conn *socket.Conn, v6 bool, err error) {
	if err := c.check(); err != nil {
		return nil, false, err
	}
	all := append(slices.Clone(local), remote...)
	v6 = slices.ContainsFunc(all, netip.Addr.Is6)
	family := unix.AF_INET
	if v6 {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)
	if err != nil {
		if un := Available(); un != nil {
			err = un
		}
		return nil, false, err
	}
	if v6 {
		only := 1
		if slices.ContainsFunc(all, netip.Addr.Is4) {
			only = 0
		}
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only)
	}
	if err == nil {
		err = prepare(fd, c)
	}
	if err == nil && len(remote) == 0 {
		// As for TCP: associations of a closed listener do not keep the port from the
		// next one. A second listener at the same time is still refused.
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	}
	if err == nil {
		err = bind(fd, local, c.Port)
	}
	if err == nil {
		conn, err = socket.New(fd, "sctp")
	}
	if err != nil {
		unix.Close(fd)
		return nil, false, err
	}
	return conn, v6, nil
}

// bind binds to the port at all addresses.
func bind(fd int, local []netip.Addr, port uint16) error {
	a := sockaddrs(local, port)
	if err := setOption(fd, lksctp.SCTP_SOCKOPT_BINDX_ADD, a.ToRawSockAddrBuf()); err != nil {
		return fmt.Errorf("bind to %v: %w", a, err)
	}
	return nil
}

// control runs f on the socket.
func control(conn *socket.Conn, f func(fd int) error) error {
	rc, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	if cerr := rc.Control(func(fd uintptr) { err = f(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// addrsOf returns the addresses of an association or a listening socket.
func addrsOf(conn *socket.Conn) (local, peer []netip.AddrPort, err error) {
	err = control(conn, func(fd int) (err error) {
		if local, err = getAddrs(fd, lksctp.SCTP_GET_LOCAL_ADDRS); err != nil {
			return fmt.Errorf("ask for the local addresses: %w", err)
		}
		if peer, err = getAddrs(fd, lksctp.SCTP_GET_PEER_ADDRS); err != nil {
			return fmt.Errorf("ask for the peer's addresses: %w", err)
		}
		return nil
	})
	return local, peer, err
}

// Dial sets up an association with a peer and waits until it is established. The first of
// the peer's addresses is the primary path's; all must have the same port. Errors are
// *assoc.Error.
func Dial(ctx context.Context, c Config, remotes ...netip.AddrPort) (*Assoc, error) {
	var first netip.AddrPort
	if len(remotes) > 0 {
		first = remotes[0]
	}
	a, err := dial(ctx, c, remotes)
	if err != nil {
		return nil, &assoc.Error{Op: "dial", Remote: first, Err: err}
	}
	return a, nil
}

func dial(ctx context.Context, c Config, remotes []netip.AddrPort) (*Assoc, error) {
	if len(remotes) == 0 {
		return nil, errors.New("the peer's address is missing")
	}
	c.Params = c.Params.Filled()
	to := make([]netip.Addr, len(remotes))
	for i, r := range remotes {
		if !r.IsValid() || r.Port() == 0 || r.Port() != remotes[0].Port() {
			return nil, fmt.Errorf("the address %v: it needs a port, the same for all of the peer's", r)
		}
		to[i] = r.Addr().Unmap()
	}
	local := slices.Clone(c.Local)
	for i := range local {
		local[i] = local[i].Unmap()
	}
	if len(local) == 0 {
		a, err := sockio.Source(netip.AddrPortFrom(to[0], remotes[0].Port()))
		if err != nil {
			return nil, fmt.Errorf("find the address of this host that routes to %v: %w", to[0], err)
		}
		local = []netip.Addr{a}
	}
	conn, v6, err := open(&c, local, to...)
	if err != nil {
		return nil, err
	}
	err = control(conn, func(fd int) error {
		return setOption(fd, lksctp.SCTP_SOCKOPT_CONNECTX, sockaddrs(to, remotes[0].Port()).ToRawSockAddrBuf())
	})
	if err != nil && !errors.Is(err, unix.EINPROGRESS) {
		conn.Close()
		return nil, err
	}
	return establish(conn, &c, v6, func() (notification, int, error) { return recvWait(ctx, conn) })
}

// establish reads until the end of the handshake and checks the peer's indication. On an
// error the association is aborted and the socket closed.
func establish(conn *socket.Conn, c *Config, v6 bool, recv func() (notification, int, error)) (a *Assoc, err error) {
	var out, in uint16
	defer func() {
		if err != nil {
			conn.Close() // sends an ABORT
		}
	}()
	for up := false; !up; {
		n, flags, err := recv()
		if err != nil {
			return nil, handshakeError(err)
		}
		if flags&msgNotification == 0 {
			return nil, errors.New("a message came before the association was up")
		}
		if n.kind() != noteAssocChange {
			continue
		}
		ch, err := n.assocChange()
		if err != nil {
			return nil, err
		}
		switch ch.state {
		case commUp:
			up, out, in = true, ch.out, ch.in
		case cannotStart, commLost:
			return nil, refusedBy(conn, ch)
		}
	}
	early, err := checkAdaptation(conn, c.Adaptation)
	if err != nil {
		return nil, err
	}
	if a, err = newAssoc(conn, c, v6, out, in, early); err != nil {
		return nil, cmp.Or(ended(conn), err)
	}
	return a, nil
}

// recvWait waits for a message or notification.
func recvWait(ctx context.Context, conn *socket.Conn) (notification, int, error) {
	b := make([]byte, noteSize)
	n, _, flags, _, err := conn.Recvmsg(ctx, b, nil, 0)
	return b[:n], flags, err
}

// recvNow receives, or peeks at, what is there now. If nothing is, it fails with
// unix.EAGAIN.
func recvNow(conn *socket.Conn, how int) (n notification, flags int, err error) {
	err = control(conn, func(fd int) error {
		b := make([]byte, noteSize)
		k, _, f, _, err := unix.Recvmsg(fd, b, nil, how|unix.MSG_DONTWAIT)
		n, flags = b[:max(k, 0)], f
		if k == 0 && err == nil {
			err = io.EOF
		}
		return err
	})
	return n, flags, err
}

// checkAdaptation checks the peer's indication. The kernel delivers it together with the
// notification that the association is up, or never. Notifications in between are
// returned.
func checkAdaptation(conn *socket.Conn, want uint32) (early []notification, err error) {
	none := func() ([]notification, error) {
		if want == 0 {
			return early, nil
		}
		return nil, &assoc.AdaptationError{Want: want, None: true}
	}
	for {
		n, flags, err := recvNow(conn, unix.MSG_PEEK)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return none()
		case err != nil:
			return nil, handshakeError(err)
		case flags&msgNotification == 0 || n.kind() == noteAssocChange || n.kind() == noteShutdown:
			return none()
		}
		if _, _, err := recvNow(conn, 0); err != nil {
			return nil, handshakeError(err)
		}
		if n.kind() != noteAdaptation {
			early = append(early, n)
			continue
		}
		got, err := n.adaptation()
		if err != nil {
			return nil, err
		}
		if want != 0 && got != want {
			return nil, &assoc.AdaptationError{Want: want, Peer: got}
		}
		return early, nil
	}
}

// handshakeError explains an errno of the kernel.
func handshakeError(err error) error {
	switch {
	case errors.Is(err, unix.ETIMEDOUT):
		return fmt.Errorf("%w: %w", assoc.ErrPeerUnreachable, err)
	case errors.Is(err, io.EOF):
		return errors.New("the association ended during the handshake")
	}
	return err
}

// refusedBy returns why the handshake failed.
func refusedBy(conn *socket.Conn, ch assocChange) error {
	cause := ch.abortCause()
	errno, err := conn.GetsockoptInt(unix.SOL_SOCKET, unix.SO_ERROR)
	switch {
	case err == nil && errno != 0 && cause.Code == 0:
		return handshakeError(syscall.Errno(errno))
	case err == nil && errno != 0:
		return fmt.Errorf("%w: %w", &assoc.AbortError{Cause: cause}, syscall.Errno(errno))
	}
	return &assoc.AbortError{Cause: cause}
}

// abortive sets what closing the socket does to the association: an ABORT that drops
// everything queued, or a shutdown, which the kernel completes without the socket.
func abortive(fd int, on bool) error {
	var l unix.Linger // timeout 0
	if on {
		l.Onoff = 1
	}
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &l)
}

// ended returns why an association that was just established has ended, nil if unknown.
func ended(conn *socket.Conn) error {
	for {
		n, flags, err := recvNow(conn, 0)
		if err != nil {
			return nil
		}
		if flags&msgNotification == 0 || n.kind() != noteAssocChange {
			continue
		}
		if ch, err := n.assocChange(); err == nil && ch.state == commLost {
			errno, _ := conn.GetsockoptInt(unix.SOL_SOCKET, unix.SO_ERROR)
			return lost(ch, unix.Errno(errno))
		}
	}
}
