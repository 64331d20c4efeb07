package sockio

import (
	"io"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Writer collects byte slices and writes them to a connection with few system
// calls. It is not safe for concurrent use: the owner holds its own lock.
type Writer struct {
	conn net.Conn
	raw  syscall.RawConn // nil: no file descriptor, see Flush

	iov     []unix.Iovec // iov[head:] is not written yet
	head    int
	pending int
	room    int // bytes that follow the last iovec within the same allocation

	calls calls
	msg   unix.Msghdr
	errno syscall.Errno
	full  bool // the last send met a full socket

	try  func(fd uintptr)      // for RawConn.Control: one pass, never waits
	wait func(fd uintptr) bool // for RawConn.Write: waits until all is sent
}

// SetSendBuffer gives a socket a buffer of n bytes for what it sends. More than the system's
// limit takes CAP_NET_ADMIN; without, the buffer is smaller.
func SetSendBuffer(fd, n int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, n) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, n)
	}
}

// NewWriter returns a Writer on c.
func NewWriter(c net.Conn) *Writer {
	w := &Writer{conn: c, raw: rawConn(c)}
	w.try = w.send
	w.wait = func(fd uintptr) bool {
		w.send(fd)
		return !w.full
	}
	return w
}

// Append adds p to what is to be written. p is referenced, not copied, until a
// flush reports that it is done. A slice that lies directly behind the previous
// one, in the same allocation, is joined to it.
func (w *Writer) Append(p []byte) {
	n := len(p)
	if n == 0 {
		return
	}
	base := unsafe.SliceData(p)
	w.pending += n
	if last := len(w.iov) - 1; last >= w.head && n <= w.room {
		// The capacity of the last slice proves that p, which starts where it
		// ends, is part of the same object: one pointer keeps both alive.
		v := &w.iov[last]
		if unsafe.Add(unsafe.Pointer(v.Base), int(v.Len)) == unsafe.Pointer(base) {
			v.SetLen(int(v.Len) + n)
			w.room -= n
			return
		}
	}
	v := unix.Iovec{Base: base}
	v.SetLen(n)
	w.iov = append(w.iov, v)
	w.room = cap(p) - n
}

// Pending returns the number of bytes not written yet.
func (w *Writer) Pending() int { return w.pending }

// Slices returns the number of separate slices not written yet.
func (w *Writer) Slices() int { return len(w.iov) - w.head }

// Discard drops what is not written yet.
func (w *Writer) Discard() { w.reset() }

// Detach appends what is not written yet to dst, and from then on writes it
// from there, so that the slices appended before are released. It returns dst,
// which has to stay as it is until a flush reports that it is done.
func (w *Writer) Detach(dst []byte) []byte {
	from := len(dst)
	for i := w.head; i < len(w.iov); i++ {
		dst = append(dst, unsafe.Slice(w.iov[i].Base, int(w.iov[i].Len))...)
	}
	w.reset()
	w.Append(dst[from:])
	return dst
}

// TryFlush writes as much as the connection takes without blocking. done means
// that nothing is left. It is false without an error when the socket's buffer
// is full, and when there is something to write to a connection that has no
// file descriptor: then use Flush. Deadlines do not matter to it.
func (w *Writer) TryFlush() (done bool, err error) {
	if w.pending == 0 {
		return true, nil
	}
	if w.raw == nil {
		return false, nil
	}
	if err := w.raw.Control(w.try); err != nil {
		return false, err
	}
	if w.errno != 0 {
		return false, opError(w.conn, "write", "sendmsg", w.errno)
	}
	return w.pending == 0, nil
}

// Flush writes everything, waiting as long as it takes. It ends early with an
// error when the connection fails, is closed or meets its write deadline; what
// is not written then stays pending.
func (w *Writer) Flush() error {
	if w.pending == 0 {
		return nil
	}
	if w.raw == nil {
		return w.flushConn()
	}
	if err := w.raw.Write(w.wait); err != nil {
		return err
	}
	if w.errno != 0 {
		return opError(w.conn, "write", "sendmsg", w.errno)
	}
	return nil
}

// send passes slices to the kernel until none is left, the socket is full or
// an error occurs.
func (w *Writer) send(fd uintptr) {
	w.errno, w.full = 0, false
	for w.head < len(w.iov) {
		w.msg.Iov = &w.iov[w.head]
		w.msg.SetIovlen(min(len(w.iov)-w.head, maxIovecs))
		SendBarrier()
		n, errno := w.calls.call(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&w.msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, w.pending > maxBrief)
		w.msg.Iov = nil
		switch errno {
		case 0:
			w.advance(int(n))
		case unix.EINTR:
		case unix.EAGAIN:
			w.full = true
			return
		default:
			w.errno = errno
			return
		}
	}
}

// flushConn writes through the connection's Write method.
func (w *Writer) flushConn() error {
	for w.head < len(w.iov) {
		v := &w.iov[w.head]
		p := unsafe.Slice(v.Base, int(v.Len))
		n, err := w.conn.Write(p)
		w.advance(min(max(n, 0), len(p)))
		if err != nil {
			return err
		}
		if n != len(p) {
			return io.ErrShortWrite
		}
	}
	return nil
}

// advance drops the first n pending bytes.
func (w *Writer) advance(n int) {
	w.pending -= n
	if w.pending == 0 {
		w.reset()
		return
	}
	for n > 0 {
		v := &w.iov[w.head]
		if size := int(v.Len); n >= size {
			n -= size
			*v = unix.Iovec{}
			w.head++
			continue
		}
		v.Base = (*byte)(unsafe.Add(unsafe.Pointer(v.Base), n))
		v.SetLen(int(v.Len) - n)
		n = 0
	}
}

// reset empties the Writer and releases the slices' memory.
func (w *Writer) reset() {
	clear(w.iov)
	w.iov = w.iov[:0]
	w.head, w.pending, w.room = 0, 0, 0
}
