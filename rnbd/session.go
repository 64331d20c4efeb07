package rnbd

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/rtrs"
)

// session serves a client's session. It implements rtrs.ServerHandler.
type session struct {
	srv    *Server
	info   rtrs.SessionInfo
	number uint64 // greater than that of all earlier sessions

	devices  deviceTable
	refused  sync.Once   // an unsupported I/O of it was logged
	stranger atomic.Bool // its client speaks another major version

	mu     sync.Mutex // guards the fields below it, and opening and closing
	nextID uint32
}

// device is an export that a session has open.
type device struct {
	id         uint32
	exp        *export
	sess       *session
	attachment block.ID
	name       string // the peer's when it opened it, which may have another one or none by now
	readOnly   bool
	migrates   bool // may be a second writer where that is permitted: it asks for it, or was one
	since      time.Time
	sectors    uint64       // the export's when it was opened. Set before closed is cleared
	previous   *Reservation // the disk's before it was given a token there; nil if that has changed nothing

	flushQueued atomic.Bool   // it is in export.toFlush
	closed      atomic.Bool   // takes no more I/O
	fenced      atomic.Bool   // nor again: its token is void. Set before closed
	refs        atomic.Int64  // I/O at the storage, and one until it is closed
	drained     chan struct{} // closed when it is closed, and its last I/O has ended
	drain       func()        // closes that
}

func newDevice(exp *export, s *session, attachment block.ID, readOnly bool) *device {
	d := &device{exp: exp, sess: s, attachment: attachment, readOnly: readOnly, since: time.Now(), sectors: exp.sectors.Load(), drained: make(chan struct{})}
	if f := s.srv.nameOf; f != nil {
		d.name = f(s.info.Peer)
	}
	d.drain = sync.OnceFunc(func() { close(d.drained) })
	d.refs.Store(1)
	d.closed.Store(true) // until admitted
	return d
}

// acquire keeps a device open for an I/O. It returns false once the device is being
// closed, or was fenced.
func (d *device) acquire() bool {
	d.refs.Add(1)
	if d.closed.Load() {
		d.release()
		return false
	}
	return true
}

func (d *device) release() {
	if d.refs.Add(-1) == 0 {
		d.remove()
		d.drain()
	}
}

// close closes the device: it takes no more I/O, and is removed after the last I/O it
// has. It returns how many there are.
func (d *device) close() int64 {
	if d.closed.CompareAndSwap(false, true) {
		d.release()
	}
	return d.refs.Load()
}

// remove takes the device out of its export and its session. A fenced one stays in the
// session, to say so, until the client closes it.
func (d *device) remove() {
	if d.exp.detach(d) {
		d.sess.srv.log.Info("export closed", "peer", d.sess.info.Peer, "session", d.sess.info.Name, "export", d.exp.cfg.Name)
	}
	if !d.fenced.Load() {
		d.sess.devices.remove(d)
	}
}

func (s *session) device(id uint32) *device { return s.devices.get(id) }

// Serve implements rtrs.ServerHandler.
func (s *session) Serve(r *rtrs.Request) {
	var m ioMsg
	if m.Parse(r.Header) {
		s.serveIO(r, &m)
		return
	}
	errno, opened := s.serveControl(r)
	if opened == nil || opened.previous == nil || s.srv.storeReservations == nil {
		r.CompleteMore(errno)
		return
	}
	s.srv.saves.Go(func() {
		// Otherwise the previous writer could return after a restart of this server.
		if err := s.srv.saveReservations(); err != nil {
			s.srv.undoReserve(opened)
			opened.close()
			(&openRsp{Result: openNotReady, Detail: "the server cannot write down who writes to it"}).Append(r.Data[:0])
		}
		r.Complete(errno)
	})
}

// BatchEnd implements rtrs.ServerHandler.
func (s *session) BatchEnd() {}

// Closed implements rtrs.ServerHandler.
func (s *session) Closed(lost time.Time, _ error) {
	until := lost.Add(s.srv.writerGrace)
	for d := range s.devices.all {
		s.srv.startGrace(d, until)
		d.close()
	}
}

// closedErrno returns the result of I/O of a device that is being closed.
func (d *device) closedErrno() syscall.Errno {
	if d.fenced.Load() {
		return errFenced
	}
	return syscall.ENODEV
}

// ioReq is an I/O at the storage. There is one for each chunk of the session.
type ioReq struct {
	r    *rtrs.Request
	dev  *device
	op   block.Op
	size uint32
	at   time.Time // when it began
}

// Complete implements block.Completion.
func (q *ioReq) Complete(errno syscall.Errno) {
	if errno != 0 {
		errno = q.dev.exp.errnoOf(errno)
	}
	d := q.dev
	d.exp.counters.took(q.op, uint64(q.size), errno, q.at)
	d.release()
	q.r.CompleteMore(errno)
	d.exp.queueFlush(d)
}

func (s *session) serveIO(r *rtrs.Request, m *ioMsg) {
	d := s.device(m.Device)
	if d == nil {
		r.CompleteMore(syscall.ENODEV)
		return
	}
	if d.isFenced() {
		r.CompleteMore(errFenced)
		return
	}
	if d.exp.removed.Load() {
		r.CompleteMore(d.exp.removedErrno())
		return
	}
	op, fl, ok := operation(m.RW)
	if !ok {
		d.exp.counters.errors.Add(1)
		s.refused.Do(func() {
			s.srv.log.Warn("a peer asks for I/O that is not supported, and gets EOPNOTSUPP", "peer", s.info.Peer, "session", s.info.Name, "export", d.exp.cfg.Name, "what", refusal(m.RW))
		})
		r.CompleteMore(syscall.EOPNOTSUPP)
		return
	}
	if errno := d.checkIO(r, m, op); errno != 0 {
		d.exp.counters.count(op, 0, errno)
		r.CompleteMore(errno)
		return
	}
	if !d.acquire() {
		r.CompleteMore(d.closedErrno())
		return
	}
	q, _ := r.User.(*ioReq)
	if q == nil {
		q = &ioReq{r: r}
		r.User = q
	}
	q.dev, q.op, q.size, q.at = d, op, m.Size, time.Now()
	d.exp.queue.Do(op, r.Data, int64(m.Sector)*SectorSize, int64(m.Size), fl, q)
}

// checkIO checks an I/O before the storage sees it.
func (d *device) checkIO(r *rtrs.Request, m *ioMsg, op block.Op) syscall.Errno {
	sectors := uint64(m.Size) / SectorSize
	switch {
	case r.Dir != direction(op) || len(r.Data) != int(op.BufferLen(m.Size)) || m.Size%SectorSize != 0:
		return syscall.EINVAL
	case d.readOnly && op.Writes():
		return syscall.EROFS // EPERM is errFenced
	}
	if size := d.exp.sectors.Load(); m.Sector > size || sectors > size-m.Sector {
		return syscall.EINVAL
	}
	return 0
}
