package rnbd

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/checks"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/rtrs"
)

// session serves one incarnation of a client's session. It implements
// rtrs.ServerHandler.
type session struct {
	srv    *Server
	info   rtrs.SessionInfo
	number uint64 // greater than that of each session before

	// devices by id modulo their number, so that an id of the past is not
	// taken for another's.
	devices [maxDevices]atomic.Pointer[device]

	mu     sync.Mutex // opening and closing
	nextID uint32
}

// device is an export that a session has open.
type device struct {
	id         uint32
	exp        *export
	sess       *session
	attachment block.ID
	readOnly   bool
	since      time.Time

	closed atomic.Bool  // it takes no more I/O
	refs   atomic.Int64 // I/O at the storage, and one until it is closed
}

// acquire keeps a device open for an I/O. It fails once the device is being closed.
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
	}
}

// close ends the device: it takes no more I/O, and is gone with the last that it has.
// It reports how many those are.
func (d *device) close() int64 {
	if d.closed.CompareAndSwap(false, true) {
		d.release()
	}
	return d.refs.Load()
}

func (d *device) remove() {
	if d.exp.detach(d) {
		d.sess.srv.log.Info("export closed", "peer", d.sess.info.Peer, "session", d.sess.info.Name, "export", d.exp.cfg.Name)
	}
	d.sess.devices[d.id%maxDevices].CompareAndSwap(d, nil)
}

func (s *session) device(id uint32) *device {
	if d := s.devices[id%maxDevices].Load(); d != nil && d.id == id {
		return d
	}
	return nil
}

// Serve implements rtrs.ServerHandler.
func (s *session) Serve(r *rtrs.Request) {
	var m ioMsg
	if m.Parse(r.Header) {
		s.io(r, &m)
		return
	}
	errno, opened := s.control(r)
	if opened != nil && s.srv.takePlace(opened) {
		s.srv.saves.Go(func() {
			s.srv.savePlaces()
			r.Complete(errno)
		})
		return
	}
	r.CompleteMore(errno)
}

// BatchEnd implements rtrs.ServerHandler.
func (s *session) BatchEnd() {}

// Closed implements rtrs.ServerHandler.
func (s *session) Closed(error) {
	until := time.Now().Add(s.srv.writerGrace)
	for i := range s.devices {
		if d := s.devices[i].Load(); d != nil {
			s.srv.keepPlace(d, until)
			d.close()
		}
	}
}

// ioReq is an I/O at the storage. There is one for each chunk of the session.
type ioReq struct {
	r    *rtrs.Request
	dev  *device
	op   block.Op
	size uint32
}

// Complete implements block.Completion.
func (q *ioReq) Complete(errno syscall.Errno) {
	switch errno {
	case syscall.EBADF, syscall.ESHUTDOWN:
		errno = q.dev.exp.gone()
	case errReplaced:
		errno = syscall.EIO // that is said of exports alone
	}
	q.dev.exp.counters.count(q.op, uint64(q.size), errno)
	q.dev.release()
	q.r.CompleteMore(errno)
}

func (s *session) io(r *rtrs.Request, m *ioMsg) {
	d := s.device(m.Device)
	if d == nil {
		r.CompleteMore(syscall.ENODEV)
		return
	}
	if d.exp.removed.Load() {
		r.CompleteMore(d.exp.gone())
		return
	}
	op, fl, ok := operation(m.RW)
	if !ok {
		d.exp.counters.errors.Add(1)
		r.CompleteMore(syscall.EOPNOTSUPP)
		return
	}
	if errno := d.check(r, m, op); errno != 0 {
		d.exp.counters.count(op, 0, errno)
		r.CompleteMore(errno)
		return
	}
	if !d.acquire() {
		r.CompleteMore(syscall.ENODEV)
		return
	}
	q, _ := r.User.(*ioReq)
	if q == nil {
		q = &ioReq{r: r}
		r.User = q
	}
	q.dev, q.op, q.size = d, op, m.Size
	d.exp.queue.Do(op, r.Data, int64(m.Sector)*SectorSize, int64(m.Size), fl, q)
}

// check judges an I/O before the storage sees it.
func (d *device) check(r *rtrs.Request, m *ioMsg, op block.Op) syscall.Errno {
	dir, data := rtrs.Write, 0
	if op == block.OpRead {
		dir = rtrs.Read
	}
	if op.HasData() {
		data = int(m.Size)
	}
	sectors := uint64(m.Size) / SectorSize
	switch {
	case r.Dir != dir || len(r.Data) != data || m.Size%SectorSize != 0:
		return syscall.EINVAL
	case d.readOnly && op.Writes():
		return syscall.EPERM
	case m.Sector > d.exp.sectors || sectors > d.exp.sectors-m.Sector:
		return syscall.EINVAL
	}
	return 0
}

// control carries out everything but I/O. The answer is put in r.Data, the rest
// of which becomes zero. It returns the device that was opened, if one was.
func (s *session) control(r *rtrs.Request) (errno syscall.Errno, opened *device) {
	if r.Dir != rtrs.Read {
		return syscall.EINVAL, nil
	}
	var answer []byte
	var err error
	out := r.Data[:0]
	switch msgType(r.Header) {
	case msgSessInfo:
		var m sessInfo
		if err = m.Parse(r.Header, msgSessInfo); err == nil {
			if m.Version != ProtoVersion {
				err = syscall.EPROTONOSUPPORT
			}
			answer = (&sessInfo{Version: ProtoVersion}).Append(out, msgSessInfoRsp)
		}
	case msgOpen:
		var m openMsg
		if len(r.Data) < openRspLen {
			err = syscall.EINVAL
		} else if err = m.Parse(r.Header); err == nil {
			var rsp openRsp
			if rsp, opened, err = s.open(&m); err == nil {
				answer = rsp.Append(out)
			}
		}
	case msgClose:
		var m numMsg
		if err = m.Parse(r.Header, msgClose); err == nil {
			s.leavePlace(m.N)
			err = s.close(m.N)
		}
	case msgList:
		var m numMsg
		if err = m.Parse(r.Header, msgList); err == nil {
			answer = s.list(m.N, out, len(r.Data))
		}
	default:
		err = syscall.EOPNOTSUPP
	}
	if err != nil {
		errno = syscall.EINVAL
		errors.As(err, &errno)
		return errno, nil
	}
	if len(answer) > len(r.Data) {
		return syscall.EINVAL, nil
	}
	clear(r.Data[len(answer):])
	return 0, opened
}

func (s *session) open(m *openMsg) (openRsp, *device, error) {
	log := s.srv.log.With("peer", s.info.Peer, "session", s.info.Name, "export", m.Name)
	exp, err := s.srv.lookUp(m.Name, &s.info)
	var why notReady
	switch {
	case errors.As(err, &why):
		return openRsp{Result: openNotReady, Detail: printable.Text(string(why))}, nil, nil
	case errors.Is(err, ErrNotFound):
		log.Warn("a peer asked for an export that does not exist")
		return openRsp{}, nil, syscall.ENOENT
	case errors.Is(err, ErrTrusted):
		log.Warn("a peer asked for an export in a session that is trusted more than the export permits; end the session, and it comes back as it should be", "trust", s.info.Trust)
		return openRsp{}, nil, syscall.EAGAIN
	case err != nil:
		log.Warn("a peer asked for an export that it may not open; add its identity to the export's allowed peers if it should")
		return openRsp{}, nil, syscall.EACCES
	}
	st := exp.cfg.Storage
	identity := st.Identity()
	d := &device{exp: exp, sess: s, attachment: m.Claim.Attachment, readOnly: m.Access == accessRO || exp.cfg.ReadOnly, since: time.Now()}
	d.refs.Store(1)
	d.closed.Store(true) // until it is admitted
	switch fault := st.Fault(); {
	case !m.Claim.Disk.IsZero() && m.Claim.Disk != identity.Disk && checks.On(checks.DiskIdentity):
		log.Warn("a peer asked for another disk than the export is; it has to attach it anew", "asked_for", m.Claim.Disk, "is", identity.Disk)
		return openRsp{Result: openOtherDisk}, nil, nil
	case fault != "" && !d.readOnly && m.Claim.Life != identity.Life:
		log.Warn("a peer asked for an export whose storage has lost acknowledged writes; see to the storage, then run `ironwarp export repair`", "fault", fault)
		return openRsp{Result: openDamaged, Detail: printable.Text(fault)}, nil, nil
	}
	if err := s.enter(d, m.Device); err != nil {
		log.Warn("an export cannot be opened", "error", err)
		return openRsp{}, nil, err
	}
	switch w, err := exp.attach(d); {
	case err != nil:
		s.devices[d.id%maxDevices].CompareAndSwap(d, nil)
		return openRsp{}, nil, err
	case w != nil:
		s.devices[d.id%maxDevices].CompareAndSwap(d, nil)
		log.Warn("a peer asked for an export that another has open for writing", "writer", w.peer, "writers_session", w.session)
		return openRsp{Result: openInUse, Detail: w.String()}, nil, nil
	}
	d.closed.Store(false)
	log.Info("export opened", "read_only", d.readOnly)
	g := st.Geometry()
	rsp := openRsp{Device: d.id, Identity: identity, Sectors: exp.sectors, MaxIO: uint32(s.info.MaxIO / SectorSize),
		Physical: uint16(max(SectorSize, min(g.PreferredBlock, 1<<15))), Logical: SectorSize,
		Rotational: g.Rotational, CachePolicy: cacheFUA | cacheWriteback}
	if !m.Claim.Life.IsZero() && (m.Claim.Life == identity.Life || st.Keeps(m.Claim.Life)) {
		rsp.Flags |= flagKept
	}
	if d.readOnly {
		rsp.Flags |= flagReadOnly
	} else {
		rsp.MaxZeroes = maxZeroes / SectorSize
		if g.CanTrim {
			rsp.MaxDiscard, rsp.DiscardGran = maxZeroes/SectorSize, uint32(rsp.Physical)
		}
	}
	return rsp, d, nil
}

// enter gives d a place and an id, that which the client wants or any.
func (s *session) enter(d *device, want uint32) error {
	if want != 0 {
		if err := s.close(want); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for range maxDevices {
		d.id = want
		if want == 0 {
			s.nextID = s.nextID%maxDeviceID + 1
			d.id = s.nextID
		}
		if s.devices[d.id%maxDevices].CompareAndSwap(nil, d) {
			return nil
		}
	}
	return fmt.Errorf("the peer has as many exports open in one session as it may, %d: %w", maxDevices, syscall.EMFILE)
}

// close ends a device. It fails with EBUSY while I/O of it is being carried out.
func (s *session) close(id uint32) error {
	d := s.device(id)
	if d == nil {
		return nil
	}
	if n := d.close(); n > 0 && checks.On(checks.CloseWaits) {
		return fmt.Errorf("%d I/Os of the device are being carried out: %w", n, syscall.EBUSY)
	}
	d.remove()
	return nil
}

func (s *session) list(first uint32, out []byte, size int) []byte {
	all := s.srv.offered(s.info.Peer)
	if int64(first) > int64(len(all)) {
		first = uint32(len(all))
	}
	answer, n := (&listRsp{Entries: all[first:]}).Append(out, size)
	if next := int(first) + n; n > 0 && next < len(all) {
		le.PutUint32(answer[8:], uint32(next))
	}
	return answer
}
