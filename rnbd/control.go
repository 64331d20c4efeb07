package rnbd

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/ironwarp/ironwarp/block"
	"github.com/ironwarp/ironwarp/internal/printable"
	"github.com/ironwarp/ironwarp/rtrs"
)

// serveControl carries out everything except I/O. It puts the answer in r.Data and clears the
// rest. It returns the device that was opened, if any.
func (s *session) serveControl(r *rtrs.Request) (errno syscall.Errno, opened *device) {
	if r.Dir != rtrs.Read {
		return syscall.EINVAL, nil
	}
	var answer []byte
	var err error
	out := r.Data[:0]
	typ := msgType(r.Header)
	if typ != msgSessInfo && s.stranger.Load() {
		return syscall.EPROTONOSUPPORT, nil
	}
	switch typ {
	case msgSessInfo:
		var m sessInfo
		if err = m.Parse(r.Header, msgSessInfo); err == nil {
			s.agreeVersion(m.Version)
			answer = (&sessInfo{Version: s.srv.version}).Append(out, msgSessInfoRsp)
		}
	case msgOpen:
		var m openMsg
		if len(r.Data) < openRspLen {
			err = syscall.EINVAL
		} else if err = m.Parse(r.Header); err == nil {
			var rsp openRsp
			if rsp, opened, err = s.openExport(&m); err == nil {
				answer = rsp.Append(out)
			}
		}
	case msgClose:
		var m numMsg
		if err = m.Parse(r.Header, msgClose); err == nil {
			s.releaseReservation(m.N)
			err = s.closeDevice(m.N)
		}
	case msgGrown:
		var m numMsg
		if err = m.Parse(r.Header, msgGrown); err == nil {
			answer = s.listGrown(m.N, out, len(r.Data))
		}
	case msgList:
		var m numMsg
		if err = m.Parse(r.Header, msgList); err == nil {
			answer = s.listExports(m.N, out, len(r.Data))
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

// agreeVersion notes which version a client speaks. One of another major version gets to know
// ours, and nothing else.
func (s *session) agreeVersion(theirs rtrs.Protocol) {
	v, err := agree(s.srv.version, theirs)
	s.stranger.Store(err != nil)
	log := s.srv.log.With("peer", s.info.Peer, "session", s.info.Name)
	if err != nil {
		log.Warn("a session is refused", "error", err)
		return
	}
	log.Info("session introduced", "rnbd", v.String())
}

func (s *session) openExport(m *openMsg) (openRsp, *device, error) {
	log := s.srv.log.With("peer", s.info.Peer, "session", s.info.Name, "export", m.Name)
	exp, onlyReads, err := s.srv.lookUpExport(m.Name, &s.info)
	var why notReady
	switch {
	case errors.As(err, &why):
		return openRsp{Result: openNotReady, Detail: printable.Text(string(why))}, nil, nil
	case errors.Is(err, ErrNotFound):
		log.Warn("a peer asked for an export that does not exist")
		return openRsp{}, nil, syscall.ENOENT
	case errors.Is(err, ErrTrusted):
		log.Warn("a peer asked for an export in a session that is trusted more than the export permits; end the session, and it reconnects with less trust", "trust", s.info.Trust)
		return openRsp{}, nil, syscall.EAGAIN
	case err != nil:
		log.Warn("a peer asked for an export that it may not open; add its identity to the export's allowed peers if it should")
		return openRsp{}, nil, syscall.EACCES
	}
	st := exp.cfg.Storage
	identity := st.Identity()
	d := newDevice(exp, s, m.Claim.Attachment, m.Access == accessRO || onlyReads)
	d.migrates = m.Access == accessMigration
	switch fault := st.Fault(); {
	case m.Claim.isOfAnother(&identity):
		log.Warn("a peer asked for another disk than the export is; it has to attach it anew", "asked_for", m.Claim.Disk, "is", identity.Disk)
		return openRsp{Result: openOtherDisk}, nil, nil
	case fault != "" && !d.readOnly && m.Claim.Life != identity.Life:
		log.Warn("a peer asked for an export whose storage has lost acknowledged writes; see to the storage, then run `ironwarp export repair`", "fault", fault)
		return openRsp{Result: openDamaged, Detail: printable.Text(fault)}, nil, nil
	}
	if err := s.addDevice(d, m.Device); err != nil {
		log.Warn("an export cannot be opened", "error", err)
		return openRsp{}, nil, err
	}
	refused, err := s.srv.admitDevice(d, m.Claim.Writer)
	if refused != nil || err != nil {
		s.devices.remove(d)
	}
	switch {
	case errors.Is(err, errTakenOut):
		return s.openExport(m) // as what is there now, if anything is
	case err != nil:
		return openRsp{}, nil, err
	case refused == nil:
	case refused.Result == openFenced:
		log.Warn("a peer that was fenced asked for an export that it had open; it has to attach it anew", "fenced", refused.Detail)
		rsp := s.describeDevice(exp, d, identity)
		rsp.Result, rsp.Detail = refused.Result, refused.Detail
		return rsp, nil, nil
	case refused.Result == openPreempted:
		log.Warn("a peer that was away asked for an export that was opened for writing since; it has to attach it anew", "by", refused.Detail)
		return *refused, nil, nil
	default:
		log.Warn("a peer asked for an export that another has open for writing", "writer", refused.Detail)
		return *refused, nil, nil
	}
	log.Info("export opened", "read_only", d.readOnly)
	rsp := s.describeDevice(exp, d, identity)
	if !m.Claim.Life.IsZero() && (m.Claim.Life == identity.Life || st.Keeps(m.Claim.Life)) {
		rsp.Flags |= flagKept
	}
	if !d.readOnly && !d.attachment.IsZero() {
		rsp.Flags |= flagWriter
	}
	return rsp, d, nil
}

// describeDevice describes an export as a device of it has it.
func (s *session) describeDevice(exp *export, d *device, identity block.Identity) openRsp {
	g := exp.cfg.Storage.Geometry()
	rsp := openRsp{Device: d.id, Identity: identity, Sectors: d.sectors, MaxIO: uint32(s.info.MaxIO / SectorSize),
		Physical: uint16(max(SectorSize, min(g.PreferredBlock, 1<<15))), Logical: SectorSize,
		Rotational: g.Rotational, CachePolicy: cacheFUA | cacheWriteback}
	if d.readOnly {
		rsp.Flags |= flagReadOnly
		return rsp
	}
	if exp.writers() != OneWriter {
		rsp.Flags |= flagShared
	}
	rsp.MaxZeroes = maxZeroes / SectorSize
	if g.CanTrim {
		rsp.MaxDiscard, rsp.DiscardGran = maxZeroes/SectorSize, uint32(rsp.Physical)
	}
	return rsp
}

// addDevice gives d a slot and an id, the one the client wants or any.
func (s *session) addDevice(d *device, want uint32) error {
	if want != 0 {
		if err := s.closeDevice(want); err != nil {
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
		if s.devices.add(d) {
			return nil
		}
	}
	return fmt.Errorf("the peer has as many exports open in one session as it may, %d: %w", maxDevices, syscall.EMFILE)
}

// closeDevice closes a device. It fails with EBUSY while I/O of it is being carried out.
func (s *session) closeDevice(id uint32) error {
	d := s.device(id)
	if d == nil {
		return nil
	}
	if n := d.close(); mustWaitFor(n) {
		return fmt.Errorf("%d I/Os of the device are being carried out: %w", n, syscall.EBUSY)
	}
	d.remove()
	s.devices.remove(d)
	return nil
}

func (s *session) listExports(first uint32, out []byte, size int) []byte {
	all := s.srv.exportsOpenTo(s.info.Peer, s.info.Partition)
	if int64(first) > int64(len(all)) {
		first = uint32(len(all))
	}
	answer, n := (&listRsp{Entries: all[first:]}).Append(out, size)
	if next := int(first) + n; n > 0 && next < len(all) {
		le.PutUint32(answer[8:], uint32(next))
	}
	return answer
}
