package sa

import (
	"github.com/ironwarp/ironwarp/fabric/mad"
)

const blocks = MaxAliases / mad.GUIDsPerBlock

// rangeOf is the upper half of a GUID. A port's GUID and those with the same upper half are that port's range: nobody else gets an alias
// in it, or one host could take the names under which another's vports will ask.
func rangeOf(g mad.GUID) mad.GUID { return g >> 32 }

// block returns a block of a port's GUIDs.
func (p *port) block(n int) (r mad.GUIDInfoRecord) {
	r.LID, r.BlockNum = p.LID, uint8(n)
	for i := range r.GUIDs {
		r.GUIDs[i] = p.aliases[n*mad.GUIDsPerBlock+i].guid
	}
	return r
}

// changeGUIDs gives a port alias GUIDs, or takes them away (section 15.2.5.18). A GUID that is not to be had is answered as zero.
// The port's own GUID and the vports of the configuration stay.
func (s *Server) changeGUIDs(r *request) answer {
	asked, err := mad.ParseGUIDInfoRecord(r.Data[:mad.GUIDInfoRecordLen])
	if err != nil {
		return fail(mad.StatusInvalidField)
	}
	p := s.lids[asked.LID]
	switch {
	case !r.ComponentMask.Has(mad.GUIDInfoMaskLID|mad.GUIDInfoMaskBlockNum) || r.ComponentMask&mad.GUIDInfoMaskGUIDs == 0:
		return fail(mad.StatusInsufficientComponents)
	case p == nil:
		return fail(mad.StatusNoRecords)
	case int(asked.BlockNum) >= blocks:
		return fail(mad.StatusReqInvalid)
	case !r.mayLookAt(s.losses(r, p, &asked)):
		return fail(mad.StatusBusy)
	}
	var refused [mad.GUIDsPerBlock]bool
	for i, guid := range asked.GUIDs {
		at := int(asked.BlockNum)*mad.GUIDsPerBlock + i
		a := &p.aliases[at]
		if !r.ComponentMask.Has(mad.GUIDInfoMaskGUID(i)) || a.base {
			continue
		}
		switch {
		case a.guid != 0 && !mayChangeAlias(r.trusted || r.port == p || r.speaksFor(a.by)):
			refused[i] = true
		case r.Method == mad.MethodDelete:
			s.dropAlias(r.now, p, at)
		case guid == 0 && a.guid != 0, guid != 0 && guid == a.guid: // it has one
		case guid != 0 && !isFreeGUID(s.isTaken(guid, p)):
			refused[i] = true
		default:
			if guid == 0 {
				guid = s.newGUID(p, at)
			}
			s.dropAlias(r.now, p, at)
			s.evict(r.now, guid)
			*a = alias{guid: guid, by: r.who}
			s.aliases[guid] = p
		}
	}
	row := p.block(int(asked.BlockNum))
	for i := range refused {
		if refused[i] {
			row.GUIDs[i] = 0
		}
	}
	return one(row, mad.GUIDInfoRecordLen)
}

// losses returns how many services and groups are looked at for what the vports have registered that lose their alias by a request.
func (s *Server) losses(r *request, p *port, asked *mad.GUIDInfoRecord) (n int) {
	for i, guid := range asked.GUIDs {
		a := &p.aliases[int(asked.BlockNum)*mad.GUIDsPerBlock+i]
		if r.ComponentMask.Has(mad.GUIDInfoMaskGUID(i)) && !a.base && a.guid != 0 && (a.guid != guid || r.Method == mad.MethodDelete) {
			n += len(s.services.of) + len(s.groups.of)
			if u := p.uses[a.guid]; u != nil && u.memberships > 0 {
				n += s.groups.members
			}
		}
	}
	return n
}

// isTaken reports whether a GUID is not to be an alias of p: it is somebody's, or in the range of another port that is known or
// may come.
func (s *Server) isTaken(guid mad.GUID, p *port) bool {
	switch {
	case s.ports[guid] != nil || s.aliases[guid] != nil || guid == s.cfg.GUID:
		return true
	case rangeOf(guid) == rangeOf(p.GUID):
		return false
	}
	return s.ranges[rangeOf(guid)] > 0 || s.cfg.Reserved != nil && s.cfg.Reserved(guid)
}

// newGUID returns an alias GUID for a place in a port's table, in the port's range: the same each time, unless somebody has it.
func (s *Server) newGUID(p *port, at int) mad.GUID {
	for n := uint32(p.GUID) + uint32(at); ; n += MaxAliases {
		if guid := rangeOf(p.GUID)<<32 | mad.GUID(n); guid != 0 && !s.isTaken(guid, p) {
			return guid
		}
	}
}
