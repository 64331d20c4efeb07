package sctp

import (
	"errors"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
)

// reader is what reading the socket needs: buffers for several datagrams, each of which
// may hold many packets of one sender (UDP_GRO). A socket that receives nothing has no
// buffers.
type reader struct {
	pool  bufferPool
	bufs  [readBuffers]*buffer // nil while there are none
	used  bool                 // since the last call of rest
	msgs  [readBuffers]sockio.Mmsghdr
	iovs  [readBuffers]unix.Iovec
	names [readBuffers][unix.SizeofSockaddrInet6]byte
	ctl   [readBuffers][controlLen]byte
	n     int
	errno syscall.Errno
}

// read delivers what arrives until the socket is closed or fails.
func (k *socket) read(p *demux) error {
	r := new(reader)
	// While readable returns false, the poller waits for what arrives after it was
	// called, so no recvmmsg is needed just to find nothing.
	readable := func(fd uintptr) bool {
		if r.bufs[0] == nil { // which are needed if there is something
			if r.errno = peek(fd); r.errno != unix.EAGAIN {
				return true
			}
			return k.bond && r.isHungUp(fd)
		}
		for first := true; ; first = false {
			switch r.recvmmsg(fd); {
			case r.errno != 0:
				return true
			case r.n == 0:
				return first && k.bond && r.isHungUp(fd)
			}
			r.used = true
			r.hand(p)
			if r.n < readBuffers {
				return false
			}
		}
	}
	for {
		r.errno = 0
		switch err := k.raw.Read(readable); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			k.rest(r)
		case err != nil:
			return nil // closed
		case isShut(r.errno):
			return errShut
		case r.bufs[0] == nil:
			for i := range r.bufs {
				r.bufs[i] = r.pool.get()
			}
			r.used = true
			k.rest(r)
		case !transient(r.errno):
			return os.NewSyscallError("recvmmsg", r.errno)
		}
	}
}

// rest frees the buffers if nothing has arrived since its last call, otherwise it
// arranges to be called again.
func (k *socket) rest(r *reader) {
	if !r.used {
		clear(r.bufs[:])
		clear(r.iovs[:])
		r.pool.rest()
		_ = k.conn.SetReadDeadline(time.Time{})
		return
	}
	r.used = false
	_ = k.conn.SetReadDeadline(time.Now().Add(k.idle))
}

// isHungUp reports whether a socket was shut down in both directions, of which the poller
// says no more than that it may be read. A packet that arrives with it hides that until
// its answer is refused.
func (r *reader) isHungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(p, 0)
	if err != nil || n == 0 || p[0].Revents&unix.POLLHUP == 0 {
		return false
	}
	r.errno = unix.EPIPE
	return true
}

// peek returns 0 if there is something to read, EAGAIN if there is not, and else the
// socket's error.
func peek(fd uintptr) syscall.Errno {
	for {
		_, _, errno := unix.Syscall6(unix.SYS_RECVFROM, fd, 0, 0, unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
		if errno != unix.EINTR {
			return errno
		}
	}
}

// hand delivers what one call has returned.
func (r *reader) hand(p *demux) {
	p.now = p.e.now()
	for i := range r.n {
		from, to, seg, data := r.message(i)
		if !to.IsValid() {
			to = p.own
		}
		if to != p.to {
			p.finish()
			p.to = to
		}
		if seg == 0 {
			seg = len(data)
		}
		p.memory = nil
		if len(data) >= leastKept && r.pool.mayKeep() {
			p.memory = r.bufs[i]
		}
		for len(data) > 0 {
			n := min(seg, len(data))
			p.packet(from, packet(data[:n]))
			data = data[n:]
		}
	}
	p.finish()
	p.memory = nil
	for i := range r.n {
		r.bufs[i] = r.pool.unkept(r.bufs[i])
	}
}

// transient reports whether an error is one that a UDP socket reports once, about earlier
// packets or a temporary shortage.
func transient(errno syscall.Errno) bool {
	switch errno {
	case unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ECONNRESET, unix.EMSGSIZE, unix.ENOBUFS, unix.ENOMEM, unix.EPERM, unix.EACCES, unix.ENETDOWN, unix.EHOSTDOWN:
		return true
	}
	return false
}

// failAll ends all associations of a socket that can no longer be read.
func (e *Endpoint) failAll(err error) {
	for _, a := range e.shut() {
		a.mu.Lock()
		a.t.close(err)
		a.deliverAndUnlock(false)
	}
}

// recvmmsg reads what is there, n datagrams, or finds the socket's error.
func (r *reader) recvmmsg(fd uintptr) {
	for i := range r.msgs {
		r.iovs[i].Base = &r.bufs[i].bytes[0]
		r.iovs[i].SetLen(readBufferSize)
		h := &r.msgs[i].Hdr
		h.Name, h.Namelen = &r.names[i][0], uint32(len(r.names[i]))
		h.Iov = &r.iovs[i]
		h.SetIovlen(1)
		h.Control = &r.ctl[i][0]
		h.SetControllen(len(r.ctl[i]))
		h.Flags = 0
	}
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&r.msgs[0])), readBuffers, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case 0:
			r.n = int(n)
			sockio.RecvBarrier()
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			r.n = 0
		default:
			r.errno = errno
		}
		return
	}
}

// message returns the i-th datagram: its sender, the address it came to if the socket has
// several, the size in bytes of the packets that the kernel joined, 0 if it did not, and
// the bytes. A truncated datagram is returned as empty.
func (r *reader) message(i int) (from netip.AddrPort, to netip.Addr, seg int, data []byte) {
	m := &r.msgs[i]
	if m.Hdr.Flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		return from, to, 0, nil
	}
	seg, to = control(r.ctl[i][:min(int(m.Hdr.Controllen), len(r.ctl[i]))])
	return getName(r.names[i][:], m.Hdr.Namelen), to, seg, r.bufs[i].bytes[:min(int(m.Len), readBufferSize)]
}
