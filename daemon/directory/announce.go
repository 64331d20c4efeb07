package directory

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// announced is what the master has of this host.
type announced struct {
	at       *port // the stream by which it got it; another one needs all again
	services map[uint64]mad.ServiceRecord
	vports   []mad.GUID
	heard    bool    // of events
	key      mad.Key // the SA_Key by which it has subscribed to them
}

// announce keeps the master informed: of services when they change, and again before their leases end; of the vports; and that this
// host wants to hear of events.
func (m *member) announce(ctx context.Context) {
	look, renew := time.NewTicker(lookEvery), time.NewTicker(lease/3)
	defer look.Stop()
	defer renew.Stop()
	var have announced
	for all := true; ; {
		if p, err := m.master(); err == nil {
			if have.at != p {
				have, all = announced{at: p, services: map[uint64]mad.ServiceRecord{}}, true
			}
			if err := m.inform(ctx, &have, all); err != nil && ctx.Err() == nil {
				m.d.cfg.Log.Warn("the fabric's directory does not take what this host announces", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-m.wake:
			all = false
		case <-look.C:
			all = false
		case <-renew.C:
			all = true
		}
	}
}

// inform tells the master what it does not know, or with all what it knows as well.
func (m *member) inform(ctx context.Context, have *announced, all bool) error {
	var errs []error
	if key := m.d.saKey(); !have.heard || !key.Equal(have.key) {
		err := m.subscribe(ctx, have.at)
		have.key = key
		if have.heard = err == nil; have.heard {
			m.d.event(Event{Time: time.Now(), Kind: Connected, From: have.at.guid, Host: have.at.guid}) // whatever was missed
		}
		errs = append(errs, err)
	}
	errs = append(errs, m.informVPorts(ctx, have))
	want := map[uint64]mad.ServiceRecord{}
	for _, s := range m.d.cfg.Services() {
		r, err := s.record(gid(m.self.GUID), m.d.serviceKey(s.Name))
		if err != nil {
			errs = append(errs, err)
		} else if len(want) < maxServices {
			want[r.ID] = r
		}
	}
	for id, r := range have.services {
		if _, ok := want[id]; ok {
			continue
		}
		if _, err := m.ask(ctx, have.at, 0, m.sa(mad.MethodDelete, mad.AttrServiceRecord, serviceRID|mad.ServiceMaskKey, r)); err != nil && !isStatus(err, mad.StatusNoRecords) {
			errs = append(errs, err)
			if errors.Is(err, ErrSilence) {
				break // it takes as long for each of them
			}
			continue
		}
		delete(have.services, id)
	}
	for id, r := range want {
		if old, ok := have.services[id]; ok && old == r && !all {
			continue
		}
		if _, err := m.ask(ctx, have.at, 0, m.sa(mad.MethodSet, mad.AttrServiceRecord, serviceAll, r)); err != nil {
			errs = append(errs, err)
			if errors.Is(err, ErrSilence) {
				break // it takes as long for each of them
			}
			continue
		}
		have.services[id] = r
	}
	return errors.Join(errs...)
}

const (
	serviceRID = mad.ServiceMaskID | mad.ServiceMaskGID | mad.ServiceMaskPKey
	serviceAll = serviceRID | mad.ServiceMaskLease | mad.ServiceMaskKey | mad.ServiceMaskName | mad.ServiceMaskData8 | mad.ServiceMaskData16 | mad.ServiceMaskData32 | mad.ServiceMaskData64
)

func isStatus(err error, s mad.Status) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Status == s
}

// subscribe asks to hear of all events but those of security; with the SA_Key of these as well.
func (m *member) subscribe(ctx context.Context, at *port) error {
	all := mad.InformInfo{LIDBegin: mad.InformAllLIDs, Subscribe: 1, QPN: 1, ProducerType: mad.InformAllProducers}
	var infos []mad.InformInfo
	for _, trap := range []uint16{mad.TrapGIDInService, mad.TrapGIDOutOfService} {
		one := all
		one.Generic, one.Type, one.TrapNumber = 1, mad.InformAllTypes, trap
		infos = append(infos, one)
	}
	for _, number := range []uint16{mad.VendorExportCome, mad.VendorExportGone, mad.VendorExportResized, mad.VendorPathGone, mad.VendorPathBack, mad.VendorEventsLost} {
		one := all
		one.Type, one.TrapNumber, one.ProducerType = mad.InformAllTypes, number, mad.Vendor
		infos = append(infos, one)
	}
	if m.d.saKey() != 0 {
		one := all
		one.Generic, one.Type, one.TrapNumber = 1, mad.InformAllTypes, mad.TrapMKey
		infos = append(infos, one)
	}
	for _, one := range infos {
		if _, err := m.ask(ctx, at, 0, m.sa(mad.MethodSet, mad.AttrInformInfo, 0, one)); err != nil {
			return err
		}
	}
	return nil
}

// informVPorts gives the master the alias GUIDs of this host's local consumers, 8 to a block; number 0 is the port's own.
func (m *member) informVPorts(ctx context.Context, have *announced) error {
	want := m.d.cfg.VPorts()
	if slices.Equal(want, have.vports) {
		return nil
	}
	lid, err := m.lid(ctx, have.at)
	if err != nil {
		return err
	}
	for block := 0; block*mad.GUIDsPerBlock <= max(len(want), len(have.vports)); block++ {
		r := mad.GUIDInfoRecord{LID: lid, BlockNum: uint8(block)}
		var set, drop mad.Mask
		for i := range r.GUIDs {
			at := block*mad.GUIDsPerBlock + i - 1
			old, now := guidAt(have.vports, at), guidAt(want, at)
			r.GUIDs[i] = now
			switch {
			case now != 0 && now != old:
				set |= mad.GUIDInfoMaskGUID(i)
			case now == 0 && old != 0:
				drop |= mad.GUIDInfoMaskGUID(i)
			}
		}
		rid := mad.GUIDInfoMaskLID | mad.GUIDInfoMaskBlockNum
		if set != 0 {
			if _, err := m.ask(ctx, have.at, 0, m.sa(mad.MethodSet, mad.AttrGUIDInfoRecord, rid|set, r)); err != nil {
				return err
			}
		}
		if drop != 0 {
			if _, err := m.ask(ctx, have.at, 0, m.sa(mad.MethodDelete, mad.AttrGUIDInfoRecord, rid|drop, r)); err != nil {
				return err
			}
		}
	}
	have.vports = want
	return nil
}

func guidAt(list []mad.GUID, i int) mad.GUID {
	if i < 0 || i >= len(list) {
		return 0
	}
	return list[i]
}

// lid is the LID that the master has given this host.
func (m *member) lid(ctx context.Context, at *port) (mad.LID, error) {
	own := gid(m.self.GUID)
	data, err := m.ask(ctx, at, 0, m.sa(mad.MethodGet, mad.AttrPathRecord, mad.PathMaskSGID|mad.PathMaskDGID, mad.PathRecord{SGID: own, DGID: own}))
	if err != nil {
		return 0, err
	}
	r, err := mad.ParsePathRecord(data[:mad.PathRecordLen])
	return r.SLID, err
}

// pathChanged tells the directory that this host has lost its way to a peer, or has it back.
func (m *member) pathChanged(to mad.GUID, back bool) {
	at, err := m.master()
	if err != nil {
		return
	}
	number := mad.VendorPathGone
	if back {
		number = mad.VendorPathBack
	}
	n := mad.Notice{Type: mad.NoticeInfo, ProducerType: mad.Vendor, TrapNumber: number, IssuerGID: gid(m.self.GUID)}
	mad.PathDetails{SGID: gid(m.self.GUID), DGID: gid(to)}.Set(&n)
	// Once: what counts of paths is what those who use them see.
	smp := mad.SMP{Header: mad.Header{Class: mad.ClassSubn, ClassVersion: mad.SMPClassVersion, Method: mad.MethodTrap, Attribute: mad.AttrNotice}}
	copy(smp.Data[:], n.Append(nil)[:mad.SMPNoticeLen])
	at.send(m.packet(at, 0, smp.MAD()))
}
