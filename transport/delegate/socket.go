package delegate

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/transport"
)

// Socket is the daemon's duplicate of a program's socket. It is never read or written, and not polled: traffic of the
// program wakes nobody here.
type Socket struct {
	flow    transport.Flow
	account *Account
	assoc   *Association // what the program says of a flow of UDP
	will    []byte       // what tells the peer that the association has ended; set before there is a flow
	isOver  atomic.Bool  // the program has said that it is

	out, in atomic.Uint64 // what Bytes has seen last

	mu    sync.Mutex // guards the fields below it
	fd    int        // -1: closed
	users int        // calls that are under way
	free  chan struct{}
	ended chan struct{} // closed when the flow was shut down; nil: that was not begun
}

var errClosed = errors.New("delegate: the socket is closed")

func newSocket(fd int, account *Account) *Socket {
	s := &Socket{fd: fd, account: account}
	s.assoc = &Association{sock: s}
	return s
}

// Monitored is what a Protector sees of the flow's traffic: for TCP the socket itself.
func (s *Socket) Monitored() transport.Monitored {
	if s.isUDP() {
		return s.assoc
	}
	return s
}

func (s *Socket) isUDP() bool { return s.flow.Protocol == transport.ProtoUDP }

// Flow is what the kernel says of the socket.
func (s *Socket) Flow() transport.Flow { return s.flow }

// SyscallConn returns the socket itself. It never fails.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return s, nil }

// Control calls f with the socket. It fails after the flow has ended, and where f does not end soon: then f goes on, and
// whoever has called Control does not look at what f finds.
func (s *Socket) Control(f func(fd uintptr)) error { return s.control(s.account.patience(), f) }

func (s *Socket) control(limit time.Duration, f func(fd uintptr)) error {
	fd, ok := s.use()
	switch {
	case !ok:
		return errClosed
	case !s.account.ask(limit, func() { f(uintptr(fd)) }, s.leave):
		return errLate
	}
	return nil
}

// use keeps the descriptor from being closed until leave.
func (s *Socket) use() (fd int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return -1, false
	}
	s.users++
	return s.fd, true
}

func (s *Socket) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 && s.free != nil {
		close(s.free)
		s.free = nil
	}
}

// Read fails: nothing is read here.
func (s *Socket) Read(func(uintptr) bool) error { return errors.ErrUnsupported }

// Write fails: nothing is written here.
func (s *Socket) Write(func(uintptr) bool) error { return errors.ErrUnsupported }

// Outq returns the number of written bytes that the peer has not acknowledged. It fails after the flow has ended.
func (s *Socket) Outq() (int, error) {
	fd, ok := s.use()
	if !ok {
		return 0, errClosed
	}
	defer s.leave()
	return unix.IoctlGetInt(fd, unix.SIOCOUTQ) // which takes no lock
}

// Bytes are what the peer has acknowledged and what has arrived from it: over TCP by the kernel's count, which has a SYN
// for one, of an association by the program's.
func (s *Socket) Bytes() (out, in uint64) {
	if s.isUDP() {
		return s.assoc.bytes()
	}
	_ = s.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			s.out.Store(info.Bytes_acked)
			s.in.Store(info.Bytes_received)
		}
	})
	return s.out.Load(), s.in.Load()
}

// Shutdown ends the flow in both directions, whoever has its socket: at once, or when that is not locked any more. The peer
// of an association is sent the program's ABORT, in its name and by its socket, so that it learns of the end of a program
// that was killed, or does not answer; TCP's peer is told by the kernel. The channel is closed when it has. Each socket that stays locked costs a thread.
func (s *Socket) Shutdown() <-chan struct{} {
	s.mu.Lock()
	ended, fd := s.ended, s.fd
	if ended == nil || isDone(ended) { // by now it may be connected anew
		ended = make(chan struct{})
		s.ended = ended
		if fd < 0 {
			close(ended)
		} else {
			s.users++
			go func() {
				if len(s.will) > 0 && s.isUDP() && !s.isOver.Load() {
					_ = unix.Send(fd, s.will, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) // lost, the peer finds out by itself
				}
				_ = unix.Shutdown(fd, unix.SHUT_RDWR)
				s.leave()
				close(ended)
			}()
		}
	}
	s.mu.Unlock()
	timer := time.NewTimer(s.account.patience())
	defer timer.Stop()
	s.account.await(ended, timer.C)
	return ended
}

// EndTime is how long a program has to end an association that the daemon wants ended.
const EndTime = time.Second

// Finish is Shutdown, of an association after EndTime: when it is over before then, the socket is closed.
func (s *Socket) Finish() {
	if s.isUDP() {
		if shutsDown() {
			time.AfterFunc(EndTime, func() { s.Shutdown() })
		}
		return
	}
	s.Shutdown()
}

func isDone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (s *Socket) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return
	}
	fd := s.fd
	s.fd = -1
	if s.account == nil { // what the daemon has sent, and it sends none
		unix.Close(fd)
		return
	}
	if s.users > 0 {
		s.free = make(chan struct{})
	}
	s.account.throw(func() { unix.Close(fd) }, s.free)
}

// identify asks the kernel what the socket is. It fails unless that is a TCP connection, or a connected UDP socket, of this
// network namespace.
func (s *Socket) identify() error {
	type answer struct {
		f   transport.Flow
		err error
	}
	answers := make(chan answer, 1)
	if err := s.control(identifyTime, func(fd uintptr) {
		f, err := identify(int(fd))
		answers <- answer{f, err}
	}); err != nil {
		return err
	}
	a := <-answers
	s.flow = a.f
	return a.err
}

// identifyTime is how long a flow that comes may wait for others of its account, and for the kernel.
const identifyTime = 5 * time.Second

func identify(fd int) (f transport.Flow, err error) {
	kind, err1 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	protocol, err2 := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	switch err := errors.Join(err1, err2); {
	case err != nil:
		return f, fmt.Errorf("what came is no socket: %w", err)
	case kind == unix.SOCK_STREAM && protocol == unix.IPPROTO_TCP:
		f.Protocol = transport.ProtoTCP
	case kind == unix.SOCK_DGRAM && protocol == unix.IPPROTO_UDP:
		f.Protocol = transport.ProtoUDP
	default:
		return f, errors.New("the socket is neither of TCP nor of UDP")
	}
	if err := isHere(fd); err != nil {
		return f, err
	}
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
