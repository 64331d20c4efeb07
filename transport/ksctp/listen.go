package ksctp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	lksctp "github.com/ishidawataru/sctp"
	"github.com/mdlayher/socket"
	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Listener accepts associations that peers set up. The kernel answers INITs itself,
// statelessly (RFC 9260 section 5.1.3).
type Listener struct {
	c     Config
	conn  *socket.Conn
	v6    bool
	addrs []netip.AddrPort

	accepted chan *Assoc
	closed   chan struct{}
	stop     sync.Once
	wg       sync.WaitGroup
}

// Listen listens at port c.Port of all addresses of c.Local. Errors are *assoc.Error.
func Listen(_ context.Context, c Config) (*Listener, error) {
	c.Params = c.Params.Filled()
	l := &Listener{c: c, accepted: make(chan *Assoc, c.Backlog), closed: make(chan struct{})}
	if err := l.listen(); err != nil {
		at := netip.AddrPort{}
		if len(c.Local) > 0 {
			at = netip.AddrPortFrom(c.Local[0], c.Port)
		}
		return nil, &assoc.Error{Op: "listen at", Remote: at, Err: err}
	}
	l.wg.Go(l.acceptAll)
	return l, nil
}

func (l *Listener) listen() (err error) {
	local := slices.Clone(l.c.Local)
	if len(local) == 0 {
		return errors.New("Config.Local is missing: name the addresses to listen at")
	}
	for i := range local {
		local[i] = local[i].Unmap()
	}
	if l.conn, l.v6, err = open(&l.c, local); err != nil {
		return err
	}
	if err = l.conn.Listen(l.c.Backlog); err == nil {
		l.addrs, err = boundAddrs(l.conn)
	}
	if err != nil {
		l.conn.Close()
	}
	return err
}

// Addr returns the listener's first address, with its port.
func (l *Listener) Addr() netip.AddrPort { return l.addrs[0] }

// Addrs returns all addresses of the listener.
func (l *Listener) Addrs() []netip.AddrPort { return slices.Clone(l.addrs) }

// acceptAll accepts associations from the kernel until the socket is closed.
func (l *Listener) acceptAll() {
	for {
		conn, sa, err := l.conn.Accept(context.Background(), 0)
		switch {
		case err == nil:
			l.offer(conn, fromSockaddr(sa))
		case l.over():
			return
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			select {
			case <-l.closed:
				return
			case <-time.After(acceptBackoff):
			}
		}
	}
}

func (l *Listener) over() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// offer hands a new association to Accept, or ends it. All that it reads has already
// arrived.
func (l *Listener) offer(conn *socket.Conn, remote netip.AddrPort) {
	a, err := establish(conn, &l.c, l.v6, func() (notification, int, error) { return recvNow(conn, 0) })
	if err == nil {
		select {
		case l.accepted <- a:
			return
		default:
		}
		err = fmt.Errorf("%d associations wait to be accepted", cap(l.accepted))
		a.Abort("too many associations wait here")
	}
	if l.c.Refused != nil {
		l.c.Refused(remote, err)
	}
}

// Accept waits for the next association that a peer has set up. After Close it returns
// net.ErrClosed. It skips associations that have ended meanwhile.
func (l *Listener) Accept(ctx context.Context) (*Assoc, error) {
	for {
		select {
		case a := <-l.accepted:
			if a.alive() {
				return a, nil
			}
			a.Abort("")
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.closed:
			return nil, fmt.Errorf("ksctp: accept on %v: %w", l.Addr(), net.ErrClosed)
		}
	}
}

// Close stops listening, aborts the associations that wait for Accept, and leaves
// the others alone. It is idempotent.
func (l *Listener) Close() error {
	l.stop.Do(func() {
		close(l.closed)
		l.conn.Close()
		l.wg.Wait()
		for {
			select {
			case a := <-l.accepted:
				a.Abort("the listener is closed")
				continue
			default:
			}
			break
		}
	})
	l.wg.Wait()
	return nil
}

// boundAddrs returns the addresses of a socket without an association.
func boundAddrs(conn *socket.Conn) (addrs []netip.AddrPort, err error) {
	err = control(conn, func(fd int) (err error) {
		addrs, err = getAddrs(fd, lksctp.SCTP_GET_LOCAL_ADDRS)
		return err
	})
	if err == nil && len(addrs) == 0 {
		err = errors.New("the kernel has bound it to no address")
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the local addresses: %w", err)
	}
	return addrs, err
}

func fromSockaddr(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
