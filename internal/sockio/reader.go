package sockio

import (
	"io"
	"net"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Reader reads from a connection and holds no buffer while it waits. It is not
// safe for concurrent use.
type Reader struct {
	conn net.Conn
	raw  syscall.RawConn // nil: no file descriptor, see WaitReadable

	calls calls
	iov   []unix.Iovec
	room  int // bytes that they have
	msg   unix.Msghdr
	n     int
	errno syscall.Errno
	woken bool
	peek  byte

	try    func(fd uintptr)      // for RawConn.Control: one read, never waits
	spin   func(fd uintptr)      // for RawConn.Control: some reads, never waits
	wait   func(fd uintptr) bool // for RawConn.Read: waits for data
	either func(fd uintptr) bool // for RawConn.Read: one read, or waits
	idle   func()

	// Without a file descriptor: what WaitReadable has read ahead.
	ahead []byte
	buf   []byte
	err   error // after ahead
}

// NewReader returns a Reader on c.
func NewReader(c net.Conn) *Reader {
	r := &Reader{conn: c, raw: rawConn(c)}
	r.try = r.receive
	r.spin = r.spinning
	r.wait = func(fd uintptr) bool {
		// The first call checks for data, since what arrived before RawConn.Read began
		// would not wake it. Later calls are wake-ups.
		if r.woken {
			return true
		}
		r.woken = true
		for {
			_, _, errno := syscall.Syscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&r.peek)), 1,
				unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
			if errno != unix.EINTR {
				return errno != unix.EAGAIN
			}
		}
	}
	r.either = func(fd uintptr) bool {
		if r.woken {
			return true
		}
		if r.receive(fd); r.errno != unix.EAGAIN {
			return true
		}
		r.woken = true
		clear(r.iov)
		r.idle()
		return false
	}
	return r
}

// HasDescriptor reports whether the connection has a file descriptor, without which TryReadv finds only what was read ahead.
func (r *Reader) HasDescriptor() bool { return r.raw != nil }

// TryReadv reads into bufs, one after the other, what can be had without
// blocking. It returns ErrWouldBlock when that is nothing and io.EOF at the
// end of the stream. Fewer bytes than bufs hold mean that there was no more at
// the time: the caller may go to WaitReadable at once. Deadlines do not matter
// to it.
func (r *Reader) TryReadv(bufs [][]byte) (n int, err error) {
	if r.raw == nil {
		return r.readAhead(bufs)
	}
	if !r.prepare(bufs) {
		return 0, nil
	}
	return r.result(r.raw.Control(r.try))
}

// ReadvOrWait is TryReadv if there is something to read. Otherwise it calls idle, in
// which the caller may release bufs, waits as WaitReadable does, and returns
// ErrWouldBlock: call it again. It saves a system call compared with calling the two in
// turn.
func (r *Reader) ReadvOrWait(bufs [][]byte, idle func()) (n int, err error) {
	if r.raw == nil {
		n, err = r.readAhead(bufs)
		if err == ErrWouldBlock {
			idle()
			if werr := r.fill(); werr != nil {
				err = werr
			}
		}
		return n, err
	}
	if !r.prepare(bufs) {
		return 0, nil
	}
	r.woken, r.idle = false, idle
	err = r.raw.Read(r.either)
	r.idle = nil
	return r.result(err)
}

// ReadOrSpin reads into p, polling for up to d, and returns ErrWouldBlock if nothing
// arrived. Other goroutines, and other threads of the machine, run in between. A
// connection without a file descriptor is polled once. It ends early when the connection
// is closed; deadlines do not apply.
func (r *Reader) ReadOrSpin(p []byte, d time.Duration) (n int, err error) {
	bufs := [1][]byte{p}
	if r.raw == nil {
		return r.readAhead(bufs[:])
	}
	for end := time.Now().Add(d); ; {
		if !r.prepare(bufs[:]) {
			return 0, nil
		}
		n, err = r.result(r.raw.Control(r.spin))
		if err != ErrWouldBlock || time.Now().After(end) {
			return n, err
		}
	}
}

// spinning makes some system calls that do not wait, until one brings
// something. Before each of them other goroutines get their turn, since they may
// be waiting for what was read before.
func (r *Reader) spinning(fd uintptr) {
	for range spinTries {
		runtime.Gosched()
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(r.iov[0].Base)), uintptr(r.iov[0].Len),
			unix.MSG_DONTWAIT, 0, 0)
		if r.errno = errno; errno != unix.EAGAIN && errno != unix.EINTR {
			RecvBarrier()
			r.n = int(n)
			return
		}
		syscall.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	r.errno = unix.EAGAIN
}

// prepare sets the iovecs. It returns false if bufs hold nothing.
func (r *Reader) prepare(bufs [][]byte) bool {
	r.iov, r.room = r.iov[:0], 0
	for _, b := range bufs {
		if len(b) > 0 && len(r.iov) < maxIovecs {
			v := unix.Iovec{Base: unsafe.SliceData(b)}
			v.SetLen(len(b))
			r.iov = append(r.iov, v)
			r.room += len(b)
		}
	}
	return len(r.iov) > 0
}

// result returns the result of a read.
func (r *Reader) result(err error) (int, error) {
	clear(r.iov)
	switch {
	case err != nil:
		return 0, err
	case r.errno == unix.EAGAIN:
		return 0, ErrWouldBlock
	case r.errno != 0:
		return 0, opError(r.conn, "read", "recvmsg", r.errno)
	case r.n == 0:
		return 0, io.EOF
	}
	return r.n, nil
}

// receive makes one system call.
func (r *Reader) receive(fd uintptr) {
	for {
		var n uintptr
		if len(r.iov) == 1 {
			n, r.errno = r.calls.call(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(r.iov[0].Base)), uintptr(r.iov[0].Len), unix.MSG_DONTWAIT, r.room > maxBrief)
		} else {
			r.msg.Iov = &r.iov[0]
			r.msg.SetIovlen(len(r.iov))
			n, r.errno = r.calls.call(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&r.msg)), unix.MSG_DONTWAIT, 0, r.room > maxBrief)
			r.msg.Iov = nil
		}
		if r.errno != unix.EINTR {
			RecvBarrier()
			r.n = int(n)
			return
		}
	}
}

// WaitReadable waits until there may be something to read: data, the end of
// the stream or an error, which TryReadv then reports. A wake-up for nothing is
// possible. It honours the read deadline and ends when the connection is
// closed. On a connection without a file descriptor it has to read in order to
// wait, into a buffer of 8 KiB of its own that TryReadv then empties.
func (r *Reader) WaitReadable() error {
	if r.raw == nil {
		return r.fill()
	}
	r.woken = false
	return r.raw.Read(r.wait)
}

// fill reads ahead. An error of the connection is TryReadv's to report, except
// a deadline, after which the caller may come back.
func (r *Reader) fill() error {
	if len(r.ahead) > 0 || r.err != nil {
		return nil
	}
	if r.buf == nil {
		r.buf = make([]byte, waitBuffer)
	}
	n, err := r.conn.Read(r.buf)
	r.ahead = r.buf[:n]
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		if n > 0 {
			return nil
		}
		return err
	}
	r.err = err
	return nil
}

func (r *Reader) readAhead(bufs [][]byte) (n int, err error) {
	room := 0
	for _, b := range bufs {
		c := copy(b, r.ahead)
		r.ahead = r.ahead[c:]
		n += c
		room += len(b)
	}
	switch {
	case n > 0 || room == 0:
		return n, nil
	case r.err != nil:
		return 0, r.err
	}
	return 0, ErrWouldBlock
}
