package ksctp

import (
	"encoding/binary"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/ironwarp/ironwarp/internal/sockio"
	"github.com/ironwarp/ironwarp/transport/assoc"
)

// Values of struct sctp_sndinfo and its flags (RFC 6458 section 5.3.4).
const (
	cmsgSndinfo   = 2
	sndinfoLen    = 16
	flagUnordered = 1 << 0
)

// sending is the sending half. The kernel's send buffer is the queue. Messages that it
// has no room for and that must not be refused, and those that a Barrier holds back, wait
// here, ahead of all later ones. It is guarded by Assoc.mu.
type sending struct {
	kept      []assoc.Outgoing
	keptBytes int  // including assoc.MessageOverhead
	full      bool // the kernel has no room; a goroutine waits for it
	drying    bool // the kernel is to report when all is acknowledged
	shut      bool // SHUT_WR was called

	log    sentLog
	sndbuf int // limit of the kernel's charges, in bytes

	messages, bytes uint64 // accepted by the kernel

	batches   sync.Pool // *sendBatch
	batch     *sendBatch
	sent      int              // of the batch
	sendErr   error            // why the rest was not sent
	send      func(fd uintptr) // sends the batch; the closures are made once
	hasRoom   func(fd uintptr) bool
	measure   func(fd uintptr) // sets the next two
	memory    int              // send buffer memory in use
	memoryErr error
	used      func() (int, error) // Assoc.queued
	await     func()              // Assoc.awaitRoom
}

// sendBatch holds what one sendmmsg sends.
type sendBatch struct {
	hdrs [batchLen]sockio.Mmsghdr
	iovs [batchBufs]unix.Iovec
	ctl  [batchLen][unix.SizeofCmsghdr + sndinfoLen]byte
	n    int // messages
	bufs int // used iovs
}

// putCmsg writes a control message; len(b) is its space.
func putCmsg(b []byte, typ int32, data []byte) {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.IPPROTO_SCTP, typ
	h.SetLen(unix.CmsgLen(len(data)))
	copy(b[unix.CmsgLen(0):], data)
}

func (t *sending) init(a *Assoc) (err error) {
	if t.sndbuf, err = a.conn.GetsockoptInt(unix.SOL_SOCKET, unix.SO_SNDBUF); err != nil {
		return err
	}
	t.send = func(fd uintptr) {
		t.sent, t.sendErr = 0, nil
		for t.sent < t.batch.n {
			r, _, e := unix.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&t.batch.hdrs[t.sent])), uintptr(t.batch.n-t.sent), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
			if e == unix.EINTR {
				continue
			}
			if e != 0 {
				t.sendErr = e
				return
			}
			t.sent += int(r)
		}
	}
	t.hasRoom = func(fd uintptr) bool {
		used, err := queuedMemory(int(fd))
		return err != nil || used <= t.sndbuf/2
	}
	t.measure = func(fd uintptr) { t.memory, t.memoryErr = queuedMemory(int(fd)) }
	t.used, t.await = a.queuedLocked, a.awaitRoom
	return nil
}

// add adds a message to the batch. It returns false if it does not fit.
func (b *sendBatch) add(m *assoc.Outgoing) bool {
	bufs := m.Bufs
	if b.n == len(b.hdrs) || b.bufs+len(bufs) > len(b.iovs) && b.n > 0 {
		return false
	}
	if len(bufs) > len(b.iovs) { // such a message is sent alone and in one piece
		var whole []byte
		for _, p := range bufs {
			whole = append(whole, p...)
		}
		bufs = [][]byte{whole}
	}
	h := &b.hdrs[b.n].Hdr
	h.Iov = &b.iovs[b.bufs]
	h.SetIovlen(len(bufs))
	for _, p := range bufs {
		v := &b.iovs[b.bufs]
		b.bufs++
		v.Base = unsafe.SliceData(p)
		v.SetLen(len(p))
	}
	c := &b.ctl[b.n]
	h.Control = &c[0]
	h.SetControllen(len(c))
	i := c[unix.SizeofCmsghdr:]
	native.PutUint16(i, m.Stream)
	native.PutUint16(i[2:], flagUnordered)
	binary.BigEndian.PutUint32(i[4:], m.PPID)
	b.n++
	return true
}

func (t *sending) getBatch() *sendBatch {
	if b, ok := t.batches.Get().(*sendBatch); ok {
		return b
	}
	b := new(sendBatch)
	var info [sndinfoLen]byte
	for i := range b.ctl {
		putCmsg(b.ctl[i][:], cmsgSndinfo, info[:])
	}
	return b
}

func (t *sending) putBatch(b *sendBatch) {
	clear(b.iovs[:b.bufs])
	b.n, b.bufs = 0, 0
	t.batches.Put(b)
}
