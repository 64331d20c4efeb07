package sa

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// serviceID is a ServiceRecord's identifier, its RID (section 15.2.5.14).
type serviceID struct {
	id   uint64
	gid  mad.GID
	pkey uint16
}

// service is one registered ServiceRecord. It goes when its lease ends, when it is deleted, and with its owner.
type service struct {
	serviceID
	owner   Requester // by whom it was registered and against whose limit it counts
	key     mad.ServiceKey
	expires time.Time                  // zero: never
	at      int                        // in services.leases, or noLease
	row     [mad.ServiceRecordLen]byte // as the untrusted read it, but for the lease
	size    uint64
}

const leaseAt = 28 // where ServiceLease is in a ServiceRecord

type services struct {
	of      map[serviceID]*service
	sorted  []*service // by identifier
	version uint64     // grows with each change
	leases  leases
}

func (v *services) init() { v.of = make(map[serviceID]*service) }

// list returns the services in the order of their identifiers.
func (v *services) list() []*service { return v.sorted }

// place is where a service is in the list, or would be. The list is kept in order: to sort it anew after a change takes a thousand times as
// long as to move what is behind one place.
func (v *services) place(of serviceID) int {
	at, _ := slices.BinarySearchFunc(v.sorted, of, func(a *service, b serviceID) int {
		return cmp.Or(cmp.Compare(a.id, b.id), bytes.Compare(a.gid[:], b.gid[:]), cmp.Compare(a.pkey, b.pkey))
	})
	return at
}

func (v *services) add(x *service) {
	v.of[x.serviceID] = x
	v.sorted = slices.Insert(v.sorted, v.place(x.serviceID), x)
}

func (v *services) remove(x *service) {
	delete(v.of, x.serviceID)
	at := v.place(x.serviceID)
	v.sorted = slices.Delete(v.sorted, at, at+1)
	v.leases.remove(x)
}

func (v *service) lease(now time.Time) uint32 {
	if v.expires.IsZero() {
		return mad.ServiceLeaseInfinite
	}
	left := v.expires.Sub(now)
	if left <= 0 {
		return 0
	}
	return uint32((left + time.Second - 1) / time.Second)
}

// append appends the record as a requester reads it.
func (v *service) append(b []byte, now time.Time, trusted bool) []byte {
	start := len(b)
	b = append(b, v.row[:]...)
	binary.BigEndian.PutUint32(b[start+leaseAt:], v.lease(now))
	if showsServiceKey(trusted) {
		copy(b[start+leaseAt+4:], v.key[:])
	}
	return b
}

// record returns the record without its key.
func (v *service) record(now time.Time) mad.ServiceRecord {
	r, _ := mad.ParseServiceRecord(v.append(nil, now, false)) // it has the length
	r.Key = mad.ServiceKey{}
	return r
}

// changeService registers, renews or deletes a service.
func (s *Server) changeService(r *request) answer {
	asked, err := mad.ParseServiceRecord(r.Data[:mad.ServiceRecordLen])
	switch {
	case err != nil:
		return fail(mad.StatusInvalidField)
	case !r.ComponentMask.Has(mad.ServiceMaskID | mad.ServiceMaskGID):
		return fail(mad.StatusInsufficientComponents)
	case !r.ComponentMask.Has(mad.ServiceMaskPKey):
		asked.PKey = 0
	}
	v := s.services.of[serviceID{asked.ID, asked.GID, asked.PKey}]
	if v != nil && !mayChangeService(r.isRightful(v), knowsKey(r, &asked, v)) {
		return fail(mad.StatusDenied)
	}
	if r.Method == mad.MethodSet {
		return s.registerService(r, v, &asked)
	}
	if v == nil {
		return fail(mad.StatusNoRecords)
	}
	a := answer{records: v.append(nil, r.now, r.trusted), length: mad.ServiceRecordLen}
	s.removeService(r.now, v)
	return a
}

// isRightful reports whether a service is the requester's to change: by whom it was registered, or at whose port it is.
func (r *request) isRightful(v *service) bool {
	return r.trusted || r.speaksFor(v.owner) || r.owns(v.gid)
}

// knowsKey reports whether a request has the key of a service that has one.
func knowsKey(r *request, asked *mad.ServiceRecord, v *service) bool {
	return r.ComponentMask.Has(mad.ServiceMaskKey) && v.key != mad.ServiceKey{} && asked.Key.Equal(v.key)
}

// registerService takes a Set of a record that is v, if there is one already.
func (s *Server) registerService(r *request, v *service, asked *mad.ServiceRecord) answer {
	var was mad.ServiceRecord
	if v != nil {
		was = v.record(r.now)
		was.Key = v.key
	}
	keepUnasked(asked, was, r.ComponentMask)
	of, _ := s.portOf(asked.GID)
	_, err := asked.Name.Text()
	switch {
	case asked.Lease == 0 || !isName(err):
		return fail(mad.StatusReqInvalid)
	case of == nil && !r.owns(asked.GID):
		return fail(mad.StatusInvalidGID)
	}
	owner := r.who
	if v != nil && (!r.owns(asked.GID) || r.speaksFor(v.owner)) {
		owner = v.owner // a renewal is no new record, whoever of those who may makes it
	}
	if v == nil || v.owner != owner {
		p := s.ports[owner.GUID]
		switch {
		case r.overLimit(p.has(owner.VPort).services, r.opts.MaxNumSrvcs):
			return drop(TooManyServices)
		case p.used.services >= MaxServicesPerPort || v == nil && len(s.services.of) >= MaxServices:
			return fail(mad.StatusNoResources)
		}
	}
	event, kind := false, mad.VendorExportCome
	switch {
	case v == nil:
		v = &service{serviceID: serviceID{asked.ID, asked.GID, asked.PKey}, owner: owner, at: noLease}
		s.services.add(v)
		s.charge(owner, 1, 0, 0)
		event = true
	case v.owner != owner:
		s.charge(v.owner, -1, 0, 0)
		s.charge(owner, 1, 0, 0)
		v.owner = owner
	}
	if size := asked.Data64[0]; !event && size != v.size {
		event, kind = true, mad.VendorExportResized
	}
	v.set(r.now, asked)
	s.services.version++
	s.services.leases.put(v)
	if event {
		s.serviceNotice(r.now, kind, v)
	}
	return answer{records: v.append(nil, r.now, r.trusted), length: mad.ServiceRecordLen}
}

// set makes the service what a record says.
func (v *service) set(now time.Time, asked *mad.ServiceRecord) {
	v.expires = time.Time{}
	if asked.Lease != mad.ServiceLeaseInfinite {
		v.expires = now.Add(time.Duration(asked.Lease) * time.Second)
	}
	v.key, v.size = asked.Key, asked.Data64[0]
	public := *asked
	public.Key = mad.ServiceKey{}
	v.row = [mad.ServiceRecordLen]byte(public.Append(nil))
}

// keepUnasked takes what the component mask of a Set does not have from the record as it was, or from an empty one. The lease is
// then infinite.
func keepUnasked(asked *mad.ServiceRecord, was mad.ServiceRecord, m mad.Mask) {
	if !m.Has(mad.ServiceMaskLease) {
		asked.Lease = mad.ServiceLeaseInfinite
	}
	if !m.Has(mad.ServiceMaskKey) {
		asked.Key = was.Key
	}
	if !m.Has(mad.ServiceMaskName) {
		asked.Name = was.Name
	}
	keep(asked.Data8[:], was.Data8[:], m>>7)
	keep(asked.Data16[:], was.Data16[:], m>>23)
	keep(asked.Data32[:], was.Data32[:], m>>31)
	keep(asked.Data64[:], was.Data64[:], m>>35)
}

func keep[T any](asked, was []T, m mad.Mask) {
	for i := range asked {
		if m&(1<<i) == 0 {
			asked[i] = was[i]
		}
	}
}

func (s *Server) removeService(now time.Time, v *service) {
	s.services.remove(v)
	s.services.version++
	s.charge(v.owner, -1, 0, 0)
	s.serviceNotice(now, mad.VendorExportGone, v)
}

// forgetServices removes what a requester has registered.
func (s *Server) forgetServices(now time.Time, who Requester) {
	p := s.ports[who.GUID]
	if p == nil || p.uses[who.VPort] == nil || p.uses[who.VPort].services == 0 {
		return
	}
	for _, v := range s.services.of {
		if v.owner == who {
			s.removeService(now, v)
		}
	}
}

// expire removes the services whose lease has ended.
func (s *Server) expire(now time.Time) {
	for len(s.services.leases) > 0 && isOver(s.services.leases[0].expires.Sub(now)) {
		s.removeService(now, s.services.leases[0])
	}
}
