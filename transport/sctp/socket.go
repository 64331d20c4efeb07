package sctp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
)

// socket is a UDP socket that uses the kernel's calls for many packets at once.
type socket struct {
	conn *net.UDPConn
	raw  syscall.RawConn
	v6   bool // AF_INET6, IPv4 addresses are mapped
	wild bool // bound to all addresses: each packet carries the one it uses
	bond bool // connected: its packets name no address, so that none leaves once the kernel has disconnected it

	segment atomic.Bool   // UDP_SEGMENT works
	gro     bool          // UDP_GRO is on
	idle    time.Duration // after which buffers for reading are freed

	fragment sync.Mutex // held by whoever needs or clears the Don't Fragment bit
}

func newSocket(conn *net.UDPConn, plain bool) (*socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{conn: conn, raw: raw, bond: conn.RemoteAddr() != nil, idle: readIdle}
	cerr := raw.Control(func(fd uintptr) {
		var family int
		if family, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil {
			return
		}
		s.v6 = family == unix.AF_INET6
		s.tune(int(fd))
		if s.wild = s.local().Addr().IsUnspecified(); s.wild {
			if s.v6 {
				err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1))
			} else {
				err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1))
			}
			if err != nil {
				return
			}
		}
		if !plain {
			// A kernel that has the options has the offloads.
			_, e := unix.GetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT)
			s.segment.Store(e == nil)
			s.gro = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
		}
	})
	_ = s.dontFragment(true)
	return s, errors.Join(cerr, err)
}

// tune asks for large buffers. The kernel may give less.
func (s *socket) tune(fd int) {
	for _, o := range [...][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], socketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], socketBuffer)
		}
	}
}

// recvBuffer returns the size of the socket's receive buffer in bytes, as the kernel
// counts it, including its overhead.
func (s *socket) recvBuffer() (n int) {
	_ = s.raw.Control(func(fd uintptr) {
		n, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	})
	return n
}

func (s *socket) local() netip.AddrPort {
	a, _ := s.conn.LocalAddr().(*net.UDPAddr)
	ap := a.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

func (s *socket) close() { s.conn.Close() }

// sender holds what one call of socket.send needs.
type sender struct {
	batch   batch
	from    netip.Addr // the local address, if the socket has several
	refused int        // length of the shortest packet refused as too long, 0 if none

	msgs  [batchPackets]sockio.Mmsghdr
	iovs  [batchPackets]unix.Iovec
	ctl   [batchPackets][controlLen]byte
	first [batchPackets]int // index of the first packet of each message
	sizes [batchPackets]int // number of packets in each message
	name  [unix.SizeofSockaddrInet6]byte
	n     int // messages
	sent  int
	errno syscall.Errno
	write func(fd uintptr) bool
}

func (s *sender) init() {
	s.batch = *newBatch()
	s.write = s.sendmmsg
}

// senderPool keeps senders.
type senderPool struct{ p sync.Pool }

func (p *senderPool) get() *sender {
	if s, ok := p.p.Get().(*sender); ok {
		return s
	}
	s := new(sender)
	s.init()
	return s
}

func (p *senderPool) put(s *sender) {
	s.batch.reset()
	p.p.Put(s)
}

// send sends the packets of s.batch to one address. It returns the first error after it
// has tried the rest: a packet that was not sent is as good as lost.
func (k *socket) send(to netip.AddrPort, s *sender) error {
	s.refused = 0
	nameLen, err := sockio.PutSockaddr(s.name[:], to, k.v6)
	if err != nil {
		return err
	}
	if k.bond {
		nameLen = 0
	}
	if s.batch.special {
		return k.sendSpecial(s, nameLen)
	}
	return k.sendAll(s, nameLen, packetPlain)
}

// sendSpecial is send for a batch with packets that are not plain.
func (k *socket) sendSpecial(s *sender, nameLen int) error {
	err := k.sendAll(s, nameLen, packetPlain)
	k.fragment.Lock()
	aerr := k.sendAll(s, nameLen, packetAlone)
	k.fragment.Unlock()
	if aerr != nil && !errors.Is(aerr, unix.EMSGSIZE) { // that is the answer to a probe
		err = errors.Join(err, aerr)
	}
	return errors.Join(err, k.sendLoose(s, nameLen))
}

// sendAll sends the packets of one kind.
func (k *socket) sendAll(s *sender, nameLen int, kind packetKind) error {
	s.n, s.sent = 0, 0
	k.add(s, 0, kind == packetPlain && k.segment.Load(), nameLen, kind)
	err := k.pass(s)
	if err == errSegment {
		// The rest is sent one by one, and if that works, so are later packets.
		from := s.first[s.sent]
		s.n, s.sent = 0, 0
		k.add(s, from, false, nameLen, kind)
		if err = k.pass(s); err == nil {
			k.segment.Store(false)
		}
	}
	runtime.KeepAlive(s)
	return err
}

// errSegment reports that packets are refused together which may be accepted one by one.
var errSegment = errors.New("UDP_SEGMENT is refused")

// pass hands the messages to the kernel. It stops only at one that is refused because of
// UDP_SEGMENT, and where the socket was shut down.
func (k *socket) pass(s *sender) (first error) {
	again := -1 // a message that was tried twice
	for s.sent < s.n {
		s.errno = 0
		if err := k.raw.Write(s.write); err != nil {
			return err // the socket is closed
		}
		if s.errno == 0 {
			continue
		}
		if isShut(s.errno) {
			return fmt.Errorf("%w (%w)", errShut, s.errno)
		}
		if k.bond && again != s.sent { // it may be what ICMP has reported of an earlier packet
			again = s.sent
			continue
		}
		if s.sizes[s.sent] > 1 && cannotSegment(s.errno) {
			return errSegment
		}
		if s.errno == unix.EMSGSIZE {
			s.refuse()
		}
		if first == nil {
			first = os.NewSyscallError("sendmmsg", s.errno)
		}
		s.sent++
	}
	return first
}

// errShut ends the associations of a socket that was shut down, or disconnected by the kernel
// (SOCK_DESTROY), while they had it.
var errShut = errors.New("their UDP socket was shut down, by the daemon or by root")

// isShut reports whether by this error a socket sends nothing any more.
func isShut(errno syscall.Errno) bool {
	switch errno {
	case unix.EPIPE, unix.EDESTADDRREQ, unix.ECONNABORTED, unix.ENOTCONN:
		return true
	}
	return false
}

// refuse records the length of a packet that is too long.
func (s *sender) refuse() {
	if n := len(s.batch.packets[s.first[s.sent]]); s.refused == 0 || n < s.refused {
		s.refused = n
	}
}

// cannotSegment reports whether by this error a kernel or device may refuse UDP_SEGMENT.
func cannotSegment(errno syscall.Errno) bool {
	switch errno {
	case unix.EIO, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOPROTOOPT, unix.EMSGSIZE:
		return true
	}
	return false
}

// add makes messages from the packets of a kind: with segment set, one for each run of
// packets of equal size, of which the last may be shorter.
func (k *socket) add(s *sender, i int, segment bool, nameLen int, kind packetKind) {
	b := &s.batch
	end := len(b.packets)
	used := 0 // iovs
	for i < end {
		if b.kinds[i] != kind {
			i++
			continue
		}
		size, n := len(b.packets[i]), 1
		for segment && i+n < end && b.kinds[i+n] == kind {
			q := len(b.packets[i+n])
			if q > size {
				break
			}
			n++
			if q < size {
				break
			}
		}
		m := &s.msgs[s.n]
		iovs := gather(s.iovs[used:], b.packets[i:i+n])
		used += len(iovs)
		m.Hdr = unix.Msghdr{Name: &s.name[0], Namelen: uint32(nameLen), Iov: &iovs[0]}
		m.Hdr.SetIovlen(len(iovs))
		if n > 1 {
			segmented(&m.Hdr, s.ctl[s.n][:], size)
		}
		if k.wild && s.from.IsValid() {
			k.sentFrom(&m.Hdr, s.ctl[s.n][:], s.from)
		}
		s.first[s.n], s.sizes[s.n] = i, n
		s.n++
		i += n
	}
}

// gather makes a vector of packets, with one element for those that are adjacent in memory.
func gather(iovs []unix.Iovec, packets [][]byte) []unix.Iovec {
	n, length := 0, 0
	end := uintptr(0) // a number: where an allocation ends there is nothing to point at
	for _, p := range packets {
		if from := uintptr(unsafe.Pointer(&p[0])); from != end {
			iovs[n].Base, length, end = &p[0], 0, from
			n++
		}
		length += len(p)
		end += uintptr(len(p))
		iovs[n-1].SetLen(length)
	}
	return iovs[:n]
}

// sendmmsg is called by the poller; it returns false when the socket's buffer is full.
func (s *sender) sendmmsg(fd uintptr) bool {
	sockio.SendBarrier()
	for s.sent < s.n {
		n, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&s.msgs[s.sent])), uintptr(s.n-s.sent), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			s.sent += int(n)
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			s.errno = errno
			return true
		}
	}
	return true
}

// getName reads an address in the kernel's form.
func getName(b []byte, n uint32) netip.AddrPort {
	switch {
	case n >= unix.SizeofSockaddrInet4 && binary.NativeEndian.Uint16(b) == unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), binary.BigEndian.Uint16(b[2:]))
	case n >= unix.SizeofSockaddrInet6 && binary.NativeEndian.Uint16(b) == unix.AF_INET6:
		a := netip.AddrFrom16([16]byte(b[8:24])).Unmap()
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 && a.Is6() {
			a = a.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(a, binary.BigEndian.Uint16(b[2:]))
	}
	return netip.AddrPort{}
}
