package directory

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// Lookup finds the services of a name on the hosts among which this one may choose, its peers, for one of its vports, or 0. It fails
// with ErrNoFabric, ErrNoMaster, ErrSilence, a *StatusError, and ctx's error.
//
// Under the enhanced trust model the untrusted may ask for one record, and not for a table: so it asks for the record of the
// name, and where there are several for those of each peer.
func (d *Directory) Lookup(ctx context.Context, name string, vport mad.GUID) ([]Service, error) {
	m, at, err := d.asMember()
	if err != nil {
		return nil, err
	}
	want := mad.ServiceRecord{}
	if want.Name, err = mad.MakeName(name); err != nil {
		return nil, err
	}
	one := func(mask mad.Mask) (found []Service, err error) {
		data, err := m.ask(ctx, at, vport, m.sa(mad.MethodGet, mad.AttrServiceRecord, mask, want))
		switch {
		case isStatus(err, mad.StatusNoRecords):
			return nil, nil
		case err != nil:
			return nil, err
		}
		r, err := mad.ParseServiceRecord(data[:mad.ServiceRecordLen])
		if err != nil {
			return nil, err
		}
		s, err := serviceOf(r)
		if err != nil || s.Name != name {
			return nil, err
		}
		return []Service{s}, nil
	}
	found, err := one(mad.ServiceMaskName)
	if !isStatus(err, mad.StatusTooManyRecords) {
		return found, err
	}
	for _, host := range d.cfg.Hosts() {
		for _, kind := range []Kind{Export, Target} {
			want.GID, want.ID = gid(host), IDOf(kind, name)
			more, err := one(mad.ServiceMaskName | mad.ServiceMaskGID | mad.ServiceMaskID)
			if err != nil {
				return nil, err
			}
			found = append(found, more...)
		}
	}
	return found, nil
}

// Services lists all that the directory has; some directories let only the trusted see that, and answer nobody else. It fails as
// Lookup does.
func (d *Directory) Services(ctx context.Context) (all []Service, err error) {
	m, at, err := d.asMember()
	if err != nil {
		return nil, err
	}
	rows, err := m.table(ctx, at, 0, m.sa(mad.MethodGetTable, mad.AttrServiceRecord, 0, nil), mad.ServiceRecordLen)
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		r, err := mad.ParseServiceRecord(row)
		if err != nil {
			return nil, err
		}
		if s, err := serviceOf(r); err == nil { // a name that can't be printed is no service of ours
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Service) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Host, b.Host), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}

// Path is the way to a host.
type Path struct {
	Host mad.GUID
	LID  mad.LID
	MTU  int // bytes; 0: the directory says none that there is
}

// mtuOf is the MTU of a code (IBTA volume 1, 14.2.5.6) in bytes, 0 for what is no code.
func mtuOf(code uint8) int {
	if code < mad.MTU256 || code > mad.MTU4096 {
		return 0
	}
	return 128 << code
}

// Paths asks for the ways to the hosts among which this one may choose: those that are there. It fails as Lookup does.
func (d *Directory) Paths(ctx context.Context) (all []Path, err error) {
	m, at, err := d.asMember()
	if err != nil {
		return nil, err
	}
	for _, host := range d.cfg.Hosts() {
		data, err := m.ask(ctx, at, 0, m.sa(mad.MethodGet, mad.AttrPathRecord, mad.PathMaskSGID|mad.PathMaskDGID, mad.PathRecord{SGID: gid(m.self.GUID), DGID: gid(host)}))
		var status *StatusError
		if errors.As(err, &status) {
			continue // it is not there
		}
		if err != nil {
			return nil, err
		}
		r, err := mad.ParsePathRecord(data[:mad.PathRecordLen])
		if err != nil {
			return nil, err
		}
		all = append(all, Path{Host: host, LID: r.DLID, MTU: mtuOf(r.MTU)})
	}
	return all, nil
}
