package ksctp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Of struct sctp_rcvinfo (RFC 6458 section 5.3.5).
const (
	cmsgRcvinfo = 3
	rcvinfoLen  = 28
)

// receiving is the receiving half. It belongs to the goroutine that reads, except for the
// atomic fields.
type receiving struct {
	recv     assoc.Receiver
	window   int64         // bytes that the Receiver may hold
	held     atomic.Int64  // bytes that it holds
	draining atomic.Bool   // the association is ending: read on regardless of held
	wake     chan struct{} // signals a change of held or draining
	partial  bool          // the last fragment's message goes on

	messages, bytes atomic.Uint64

	batches sync.Pool // *recvBatch
	batch   *recvBatch
	msg     assoc.Message // the message being delivered
	n       int
	err     error
	take    func(fd uintptr) bool // reads a batch; made once
}

// recvBatch holds what one recvmmsg receives.
type recvBatch struct {
	hdrs [readBatch]sockio.Mmsghdr
	iovs [readBatch]unix.Iovec
	ctl  [readBatch][recvSpace]byte
	mem  []byte
}

// recvSpace has room for struct sctp_rcvinfo.
const recvSpace = unix.SizeofCmsghdr + (rcvinfoLen+7)&^7

func (r *receiving) init(a *Assoc) {
	_, window := a.c.buffers()
	r.window = int64(window)
	r.wake = make(chan struct{}, 1)
	r.take = func(fd uintptr) bool {
		b := r.getBatch()
		for {
			n, _, e := unix.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.hdrs[0])), readBatch, unix.MSG_DONTWAIT, 0, 0)
			switch e {
			case unix.EINTR:
				continue
			case unix.EAGAIN:
				r.batches.Put(b) // none is needed while nothing arrives
				return false
			case 0:
				r.n, r.err = int(n), nil
			default:
				r.n, r.err = 0, e
			}
			r.batch = b
			return true
		}
	}
}

func (r *receiving) getBatch() *recvBatch {
	b, ok := r.batches.Get().(*recvBatch)
	if !ok {
		b = &recvBatch{mem: make([]byte, readBatch*readSize)}
		for i := range b.hdrs {
			b.iovs[i].Base = &b.mem[i*readSize]
			b.iovs[i].SetLen(readSize)
			b.hdrs[i].Hdr.Iov = &b.iovs[i]
			b.hdrs[i].Hdr.Iovlen = 1
			b.hdrs[i].Hdr.Control = &b.ctl[i][0]
		}
	}
	for i := range b.hdrs {
		b.hdrs[i].Hdr.SetControllen(recvSpace)
	}
	return b
}

// resume wakes a reader that waits for Release.
func (r *receiving) resume() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// drain makes the reader find out how the association ends.
func (r *receiving) drain() {
	r.draining.Store(true)
	r.resume()
}

// Release implements assoc.Association.
func (a *Assoc) Release(n int) {
	r := &a.rx
	now := r.held.Add(-int64(n))
	if now < r.window && now+int64(n) >= r.window {
		r.resume()
	}
}

// read delivers everything until the association ends.
func (a *Assoc) read() {
	r := &a.rx
	r.recv.Event(assoc.Event{Kind: assoc.EventUp})
	for _, n := range a.early {
		a.notified(n)
	}
	a.early = nil
	var end error
	for end == nil {
		for r.held.Load() >= r.window && !r.draining.Load() && !a.isEnding() {
			<-r.wake // the kernel's buffer fills, and the peer's window closes
		}
		if err := a.rc.Read(r.take); err != nil {
			end = err // closed
			break
		}
		end = a.handOver()
	}
	a.finish(a.reason(end))
}

func (a *Assoc) isEnding() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ending
}

// handOver delivers what one read returned.
func (a *Assoc) handOver() (end error) {
	r, b := &a.rx, a.rx.batch
	if r.err != nil {
		r.batch = nil
		r.batches.Put(b)
		// recvmmsg reports an error before the messages that arrived earlier.
		var errno unix.Errno
		if errors.As(r.err, &errno) && a.noteErrno(errno) {
			return nil
		}
		return r.err
	}
	now := time.Now().UnixNano()
	a.heard.Store(now)
	messages, bytes := 0, 0
	for i := range r.n {
		h := &b.hdrs[i]
		p := b.mem[i*readSize:][:h.Len]
		switch {
		case h.Hdr.Flags&msgNotification != 0:
			end = a.notified(p)
		case h.Len == 0:
			end = io.EOF
		default:
			a.message(p, b.ctl[i][:h.Hdr.Controllen], h.Hdr.Flags)
			messages++
			bytes += len(p)
		}
		if end != nil {
			break
		}
	}
	r.batch = nil
	r.batches.Put(b)
	if messages > 0 {
		a.used.Store(now)
		r.messages.Add(uint64(messages))
		r.bytes.Add(uint64(bytes))
		r.recv.BatchEnd()
	}
	return end
}

// message delivers one message, or a part of one, to the Receiver.
func (a *Assoc) message(p, ctl []byte, flags int32) {
	r := &a.rx
	m := &r.msg
	*m = assoc.Message{Payload: p, Flags: assoc.Begin | assoc.End}
	if info, ok := rcvinfo(ctl); ok {
		m.Stream = native.Uint16(info)
		m.SSN = native.Uint16(info[2:])
		if native.Uint16(info[4:])&flagUnordered != 0 {
			m.Flags |= assoc.Unordered
		}
		m.PPID = binary.BigEndian.Uint32(info[8:])
		m.TSN = native.Uint32(info[12:])
	}
	if r.partial {
		m.Flags &^= assoc.Begin
	}
	if r.partial = flags&unix.MSG_EOR == 0; r.partial {
		m.Flags &^= assoc.End
	}
	if r.recv.Message(m) {
		r.held.Add(int64(len(p)))
	}
	m.Payload = nil
}

// rcvinfo finds struct sctp_rcvinfo in control messages.
func rcvinfo(ctl []byte) (info []byte, ok bool) {
	for len(ctl) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&ctl[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(ctl) {
			return nil, false
		}
		if h.Level == unix.IPPROTO_SCTP && h.Type == cmsgRcvinfo && n >= unix.CmsgLen(rcvinfoLen) {
			return ctl[unix.SizeofCmsghdr:n], true
		}
		ctl = ctl[min(len(ctl), (n+7)&^7):]
	}
	return nil, false
}

// notified handles a notification. An error means that the association has ended.
func (a *Assoc) notified(n notification) (over error) {
	event := func(e assoc.Event) { a.rx.recv.Event(e) }
	switch n.kind() {
	case noteAssocChange:
		ch, err := n.assocChange()
		if err != nil {
			return err
		}
		return a.changed(ch)
	case notePathChange:
		if path, state, err := n.pathChange(); err == nil {
			a.pathChanged(path, state)
		}
	case noteRemoteError:
		if cause, err := n.remoteError(); err == nil {
			event(assoc.Event{Kind: assoc.EventPeerError, Cause: cause})
		}
	case noteShutdown:
		a.mu.Lock()
		ours := a.shutting
		a.peerShut = true
		a.room.Broadcast()
		a.mu.Unlock()
		if !ours {
			event(assoc.Event{Kind: assoc.EventShutdown})
		}
	case notePartialDelivery:
		a.rx.partial = false // the message begun is not continued
	case noteSenderDry:
		a.dried()
	}
	return nil
}

// changed handles a change of the association's state.
func (a *Assoc) changed(ch assocChange) (over error) {
	switch ch.state {
	case shutdownComplete:
		a.mu.Lock()
		ours := a.shutting
		a.mu.Unlock()
		if ours {
			return errOrderly
		}
		return assoc.ErrShutdown
	case restart:
		a.mu.Lock()
		a.failLocked(assoc.ErrRestarted)
		a.mu.Unlock()
		return assoc.ErrRestarted
	case commLost, cannotStart:
		n, _ := a.conn.GetsockoptInt(unix.SOL_SOCKET, unix.SO_ERROR)
		a.noteErrno(unix.Errno(n))
		a.mu.Lock()
		defer a.mu.Unlock()
		return lost(ch, a.errno)
	}
	return nil
}

// noteErrno records the socket's error about the association's end, which the kernel
// reports once, to whoever asks first. It returns false if there is no error, or one is
// already known.
func (a *Assoc) noteErrno(errno unix.Errno) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.errno != 0 || errno == 0 {
		return false
	}
	a.errno = errno
	return true
}

// errOrderly ends an association that this end has shut down.
var errOrderly = errors.New("shut down")

// lost returns why the kernel lost an association.
func lost(ch assocChange, errno unix.Errno) error {
	cause := ch.abortCause()
	switch {
	case errno == unix.ETIMEDOUT:
		return fmt.Errorf("%w: %w", assoc.ErrPeerUnreachable, errno)
	case errno == unix.ECONNABORTED: // by this end's kernel
		return &assoc.AbortError{Local: true, Cause: cause}
	case errno == unix.ECONNRESET, errno == unix.ECONNREFUSED, len(ch.info) > 0, cause.Code != 0:
		return &assoc.AbortError{Cause: cause}
	}
	return assoc.ErrPeerUnreachable
}

// reason returns what Err reports after the reader has met err.
func (a *Assoc) reason(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case err == errOrderly, errors.Is(err, io.EOF) && a.shutting:
		return nil
	case a.errno != 0 && (errors.Is(err, io.EOF) || errors.Is(err, a.errno)):
		return lost(assocChange{}, a.errno)
	case errors.Is(err, io.EOF):
		return assoc.ErrShutdown
	}
	return err
}
