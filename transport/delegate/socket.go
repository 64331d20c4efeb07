package delegate

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

// Socket is the daemon's duplicate of a program's socket. It is never read or written, and not polled: traffic of the
// program wakes nobody here.
type Socket struct {
	flow  transport.Flow
	trash *Trash

	mu sync.RWMutex // guards the field below it, and is held for as long as that is used
	fd int          // -1: closed
}

var errClosed = errors.New("delegate: the socket is closed")

// Flow is what the kernel says of the socket.
func (s *Socket) Flow() transport.Flow { return s.flow }

// SyscallConn returns the socket itself. It never fails.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return s, nil }

// Control calls f with the socket. It fails after the flow has ended.
func (s *Socket) Control(f func(fd uintptr)) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.fd < 0 {
		return errClosed
	}
	f(uintptr(s.fd))
	return nil
}

// Read fails: nothing is read here.
func (s *Socket) Read(func(uintptr) bool) error { return errors.ErrUnsupported }

// Write fails: nothing is written here.
func (s *Socket) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

// Outq returns the number of written bytes that the peer has not acknowledged. It fails after the flow has ended.
func (s *Socket) Outq() (n int, err error) {
	if cerr := s.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); cerr != nil {
		return 0, cerr
	}
	return n, err
}

// Bytes are what the peer has acknowledged and what has arrived from it, by the kernel's count, which has a SYN for one.
func (s *Socket) Bytes() (out, in uint64) {
	_ = s.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			out, in = info.Bytes_acked, info.Bytes_received
		}
	})
	return out, in
}

// Shutdown ends the flow in both directions, whoever has its socket.
func (s *Socket) Shutdown() {
	_ = s.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

func (s *Socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd >= 0 {
		s.trash.throw(s.fd)
		s.fd = -1
	}
}

// Trash closes what has come from the programs of one account. To close what another has made takes as long as he likes,
// by SO_LINGER for one, or by a file system of his own; so nobody waits for that, and he is let have no more than so much
// of it. The zero value is ready.
type Trash struct {
	once  sync.Once
	slots chan struct{} // each a thread that may hang
	n     atomic.Int64
}

const (
	maxClosing = 32
	maxTrash   = 4096
)

// IsFull reports whether so much is being closed that no more should be taken.
func (t *Trash) IsFull() bool { return t.n.Load() >= maxTrash }

func (t *Trash) throw(fd int) {
	if t == nil { // what the daemon has sent, and it sends none
		unix.Close(fd)
		return
	}
	t.once.Do(func() { t.slots = make(chan struct{}, maxClosing) })
	t.n.Add(1)
	go func() {
		t.slots <- struct{}{}
		unix.Close(fd)
		<-t.slots
		t.n.Add(-1)
	}()
}

// identify asks the kernel what the socket is. It fails unless that is a TCP connection of this network namespace.
func (s *Socket) identify() error {
	var f transport.Flow
	var err error
	if cerr := s.Control(func(fd uintptr) { f, err = identify(int(fd)) }); cerr != nil {
		return cerr
	}
	s.flow = f
	return err
}

func identify(fd int) (f transport.Flow, err error) {
	for _, q := range []struct {
		option, want int
		what         string
	}{{unix.SO_TYPE, unix.SOCK_STREAM, "a stream"}, {unix.SO_PROTOCOL, unix.IPPROTO_TCP, "TCP"}} {
		is, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, q.option)
		if err != nil {
			return f, fmt.Errorf("what came is no socket: %w", err)
		}
		if is != q.want {
			return f, fmt.Errorf("the socket is not %s", q.what)
		}
	}
	if err := isHere(fd); err != nil {
		return f, err
	}
	f.Protocol = transport.ProtoTCP
	local, err := unix.Getsockname(fd)
	if err != nil {
		return f, err
	}
	f.Local = addrPort(local)
	remote, err := unix.Getpeername(fd)
	if err != nil {
		return f, fmt.Errorf("the socket is not connected: %w", err)
	}
	f.Remote = addrPort(remote)
	if !f.Local.IsValid() || !f.Remote.IsValid() {
		return f, errors.New("the socket is neither IPv4 nor IPv6")
	}
	return f, nil
}

// isHere fails for a socket of another network namespace, where other SAs and guards are.
func isHere(fd int) error {
	its, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return fmt.Errorf("ask the kernel for the socket's network namespace (Linux 5.14 can tell): %w", err)
	}
	own, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	ours, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == nil && isForeign(its, ours) {
		err = errors.New("the socket is of another network namespace than the daemon")
	}
	return err
}

func addrPort(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
