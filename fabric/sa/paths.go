package sa

import (
	"encoding/binary"

	"github.com/ironwarp/ironwarp/fabric/mad"
)

// What each path has. The directory knows which ports there are, not the network between them.
const (
	pathLifeTime uint8  = 18     // about a second
	defaultPKey  uint16 = 0xffff // the default partition, full membership
)

// end is one end of a path.
type end struct {
	gid mad.GID
	lid mad.LID
}

// path returns the record of the path between two ports.
func path(from, to end) mad.PathRecord {
	return mad.PathRecord{
		SGID: from.gid, SLID: from.lid, DGID: to.gid, DLID: to.lid,
		Reversible: true, NumbPath: 1, PKey: defaultPKey,
		MTUSelector: mad.SelectExactly, MTU: mad.MTU4096,
		RateSelector: mad.SelectExactly, Rate: mad.Rate100G,
		LifeTimeSelector: mad.SelectExactly, LifeTime: pathLifeTime,
	}
}

// ends returns the ports that are up among those that a request means by a GID, a LID, both or neither.
func (s *Server) ends(gid mad.GID, byGID bool, lid mad.LID, byLID bool) (list []end) {
	if !byGID && !byLID {
		for _, p := range s.sortedPorts() {
			if p.state == portUp {
				list = append(list, end{p.gid, p.LID})
			}
		}
		return list
	}
	p := s.lids[lid]
	if byGID {
		of, _ := s.portOf(gid)
		if of == nil || byLID && of != p {
			return nil
		}
		p = of
	} else if p != nil {
		gid = p.gid
	}
	if p == nil || p.state != portUp {
		return nil
	}
	return []end{{gid, p.LID}}
}

// putEnds writes the ends into the bytes of a PathRecord (section 15.2.5.16).
func putEnds(row []byte, from, to end) {
	const dgid, sgid, dlid, slid = 8, 24, 40, 42
	copy(row[dgid:], to.gid[:])
	copy(row[sgid:], from.gid[:])
	binary.BigEndian.PutUint16(row[dlid:], uint16(to.lid))
	binary.BigEndian.PutUint16(row[slid:], uint16(from.lid))
}

// pathRows returns the paths that a request asks for, at most limit bytes of them and one more.
func (s *Server) pathRows(r *request, limit int) (rows []byte) {
	asked, err := mad.ParsePathRecord(r.Data[:mad.PathRecordLen])
	if err != nil {
		return nil
	}
	m := r.ComponentMask
	// But for its ends each path is the same, so it is compared once and written once.
	const compared = mad.PathMaskRawTraffic | mad.PathMaskFlowLabel | mad.PathMaskHopLimit | mad.PathMaskTClass | mad.PathMaskPKey | mad.PathMaskSL
	each := path(end{}, end{})
	row := each.Append(nil)
	if !pathLayout.pattern(m&compared, asked.Append(nil)).matches(row) || !chosen(m,
		choice{mad.PathMaskMTUSelector, mad.PathMaskMTU, asked.MTUSelector, asked.MTU, each.MTU},
		choice{mad.PathMaskRateSelector, mad.PathMaskRate, asked.RateSelector, asked.Rate, each.Rate},
		choice{mad.PathMaskLifeTimeSelector, mad.PathMaskLifeTime, asked.LifeTimeSelector, asked.LifeTime, each.LifeTime}) {
		return nil
	}
	from := s.ends(asked.SGID, m.Has(mad.PathMaskSGID), asked.SLID, m.Has(mad.PathMaskSLID))
	if r.Method == mad.MethodGet && m&(mad.PathMaskSGID|mad.PathMaskSLID) == 0 {
		from = []end{{r.port.gid, r.port.LID}} // the requester's own
	}
	for _, to := range s.ends(asked.DGID, m.Has(mad.PathMaskDGID), asked.DLID, m.Has(mad.PathMaskDLID)) {
		for _, f := range from {
			if len(rows) > limit {
				return rows
			}
			putEnds(row, f, to)
			rows = append(rows, row...)
		}
	}
	return rows
}
